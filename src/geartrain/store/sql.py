"""The SQL of both databases, and where they differ.

Parameters are written `:name`. A `Dialect` puts in what stands in braces: the time, locks, and numbers that grow.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from geartrain.domain.predictions.batch_jobs import OPEN_BATCH
from geartrain.domain.predictions.ledger import LISTED_ECHO, RowStep, states_before
from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.prediction import CLIENT_LEFT
from geartrain.store.errors import StoreOptionError


class Dialect(msgspec.Struct, frozen=True):
    """Pieces of SQL that differ between databases.

    Attributes:
        now: the time, in seconds since the epoch.
        next_place: a number that is greater than that of every row before.
        next_revision: likewise, of the wishes for models.
        skip_locked: put behind a selection of rows, passes over those that another transaction is about to change.
        blob, double, place, counter: types of columns; the last two are those of primary keys. A counter never gives a
            number twice.
    """

    now: str
    next_place: str
    next_revision: str
    skip_locked: str
    blob: str
    double: str
    place: str
    counter: str

    def render(self, template: str) -> str:
        """Return the SQL of a template for this database."""
        for name in self.__struct_fields__:
            template = template.replace(f"{{{name}}}", getattr(self, name))
        return template


def _one_of(states: tuple[StrEnum, ...]) -> str:
    return "(" + ", ".join(f"'{state}'" for state in states) + ")"


_OPEN: Final = _one_of(states_before(RowStep.FINISH))
_ENDED: Final = _one_of(states_before(RowStep.REMOVE))
OPEN_BATCHES: Final = _one_of(OPEN_BATCH)

# --- the schema ------------------------------------------------------------------------------------------------------

VERSION: Final = 4
"""The version of the schema that this code reads and writes."""

_CREATE_PIECES: Final = """CREATE TABLE geartrain_outbox_pieces (
    number BIGINT NOT NULL, piece INTEGER NOT NULL, body {blob} NOT NULL, PRIMARY KEY (number, piece))"""
_CREATE_BATCHES: Final = (
    """CREATE TABLE geartrain_files (
        number {counter}, id TEXT NOT NULL UNIQUE, principal TEXT NOT NULL, purpose TEXT NOT NULL, name TEXT NOT NULL,
        size BIGINT NOT NULL, pieces INTEGER NOT NULL, created_at {double} NOT NULL, expires_at {double},
        owner TEXT NOT NULL, batch TEXT NOT NULL, is_errors INTEGER NOT NULL)""",
    "CREATE INDEX geartrain_files_principal ON geartrain_files (principal)",
    "CREATE INDEX geartrain_files_batch ON geartrain_files (batch)",
    "CREATE INDEX geartrain_files_expiry ON geartrain_files (expires_at)",
    """CREATE TABLE geartrain_file_pieces (
        file TEXT NOT NULL, piece INTEGER NOT NULL, key_id TEXT NOT NULL, body {blob} NOT NULL,
        PRIMARY KEY (file, piece))""",
    """CREATE TABLE geartrain_batches (
        number {counter}, id TEXT NOT NULL UNIQUE, principal TEXT NOT NULL, input_file TEXT NOT NULL,
        request {blob} NOT NULL, status TEXT NOT NULL, owner TEXT NOT NULL, epoch INTEGER NOT NULL,
        progress {blob} NOT NULL, cancelling_at {double}, ended_at {double}, completed INTEGER NOT NULL,
        failed INTEGER NOT NULL, input_tokens BIGINT NOT NULL, output_tokens BIGINT NOT NULL)""",
    f"CREATE INDEX geartrain_batches_open ON geartrain_batches (input_file) WHERE status IN {OPEN_BATCHES}",
    "CREATE INDEX geartrain_batches_ended ON geartrain_batches (ended_at)",
    """CREATE TABLE geartrain_batch_lines (
        batch TEXT NOT NULL, line INTEGER NOT NULL, is_error INTEGER NOT NULL, body {blob} NOT NULL,
        PRIMARY KEY (batch, line))""",
)
_INDEX_PRINCIPAL: Final = "CREATE INDEX geartrain_predictions_principal ON geartrain_predictions (principal, place)"

CREATE: Final = (
    "CREATE TABLE geartrain_schema (version INTEGER NOT NULL)",
    """CREATE TABLE geartrain_predictions (
        place {place}, model TEXT NOT NULL, id TEXT NOT NULL,
        state TEXT NOT NULL, status TEXT NOT NULL, owner TEXT NOT NULL, epoch INTEGER NOT NULL, nonce BIGINT NOT NULL,
        version TEXT NOT NULL, created_at {double} NOT NULL, started_at {double}, completed_at {double},
        ended_at {double}, echo {blob} NOT NULL, error TEXT NOT NULL, size BIGINT NOT NULL,
        request {blob} NOT NULL, key_id TEXT NOT NULL, retry TEXT NOT NULL, most_attempts INTEGER NOT NULL,
        attempts INTEGER NOT NULL, is_cancel_requested INTEGER NOT NULL, principal TEXT NOT NULL DEFAULT '',
        UNIQUE (model, id))""",
    f"CREATE INDEX geartrain_predictions_open ON geartrain_predictions (owner) WHERE state IN {_OPEN}",
    "CREATE INDEX geartrain_predictions_status ON geartrain_predictions (status, place)",
    _INDEX_PRINCIPAL,
    f"CREATE INDEX geartrain_predictions_ended ON geartrain_predictions (ended_at, size) WHERE state IN {_ENDED}",
    """CREATE TABLE geartrain_parts (
        model TEXT NOT NULL, id TEXT NOT NULL, epoch INTEGER NOT NULL, part INTEGER NOT NULL,
        events {blob} NOT NULL, file TEXT NOT NULL, PRIMARY KEY (model, id, epoch, part))""",
    """CREATE TABLE geartrain_outbox (
        number {counter}, model TEXT NOT NULL, id TEXT NOT NULL, webhook {blob} NOT NULL, key_id TEXT NOT NULL,
        body {blob} NOT NULL, due_at {double} NOT NULL, attempts INTEGER NOT NULL,
        pieces INTEGER NOT NULL DEFAULT 0)""",
    _CREATE_PIECES,
    "CREATE INDEX geartrain_outbox_due ON geartrain_outbox (due_at)",
    """CREATE TABLE geartrain_replicas (
        owner TEXT NOT NULL PRIMARY KEY, address TEXT NOT NULL, ends_at {double} NOT NULL)""",
    """CREATE TABLE geartrain_wanted (
        model TEXT NOT NULL PRIMARY KEY, is_wanted INTEGER NOT NULL, revision BIGINT NOT NULL)""",
    *_CREATE_BATCHES,
    f"INSERT INTO geartrain_schema (version) VALUES ({VERSION})",
)

MIGRATIONS: Final[dict[int, tuple[str, ...]]] = {
    1: ("ALTER TABLE geartrain_predictions ADD COLUMN principal TEXT NOT NULL DEFAULT ''", _INDEX_PRINCIPAL),
    2: ("ALTER TABLE geartrain_outbox ADD COLUMN pieces INTEGER NOT NULL DEFAULT 0", _CREATE_PIECES),
    3: _CREATE_BATCHES,
}
"""By an older version: what makes the next one of it. The statements are run in one transaction."""

READ_VERSION: Final = "SELECT max(version) FROM geartrain_schema"
WRITE_VERSION: Final = "UPDATE geartrain_schema SET version = :version"


def migration(version: int, store: str) -> tuple[str, ...]:
    """Return the statements that bring a schema to `VERSION`; raise `StoreOptionError` if there are none.

    `store` begins the sentence of the error.
    """
    if version > VERSION:
        msg = f"{store} is that of a newer geartrain (schema {version}, this one knows {VERSION}); upgrade this server"
        raise StoreOptionError(msg)
    statements: list[str] = []
    for older in range(version, VERSION):
        if older not in MIGRATIONS:
            msg = f"{store} is that of an older geartrain (schema {older}), which this one cannot read; choose another"
            raise StoreOptionError(msg)
        statements += MIGRATIONS[older]
    return (*statements, WRITE_VERSION) if statements else ()


# --- rows ------------------------------------------------------------------------------------------------------------

ALIVE: Final = "SELECT 1 FROM geartrain_replicas AS r WHERE r.ends_at > {now} AND r.owner"
"""Followed by a comparison: whether the lease of an owner runs."""

_MINE: Final = "model = :model AND id = :id AND owner = :owner AND epoch = :epoch"

_ROW: Final = """model, id, owner, epoch, state, status, version, created_at, echo, attempts, is_cancel_requested,
    started_at, completed_at, error, principal"""
_OWNED_ROW: Final = f"{_ROW}, (SELECT r.address FROM geartrain_replicas AS r WHERE r.owner = :owner), 1"
"""The columns of a row whose owner is `:owner`, whose lease runs."""

_ROW_AND_OWNER: Final = f"""SELECT {", ".join(f"p.{name.strip()}" for name in _ROW.split(","))},
    coalesce(r.address, ''), CASE WHEN r.ends_at > {{now}} THEN 1 ELSE 0 END
    FROM geartrain_predictions AS p LEFT JOIN geartrain_replicas AS r ON r.owner = p.owner"""

_IS_OWN: Final = "p.state = 'claimed' AND p.owner = excluded.owner"

CLAIM: Final = f"""
INSERT INTO geartrain_predictions AS p
    (place, model, id, state, status, owner, epoch, nonce, version, created_at, echo, error, size, request, key_id,
     retry, most_attempts, attempts, is_cancel_requested, principal)
SELECT {{next_place}}, :model, :id, :state, 'starting', :owner, 1, :nonce, :version, :created_at, :echo, '', :size,
    :request, :key_id, :retry, :most_attempts, 1, 0, :principal
WHERE EXISTS ({ALIVE} = :owner)
ON CONFLICT (model, id) DO UPDATE SET
    place = CASE WHEN {_IS_OWN} THEN p.place ELSE excluded.place END,
    epoch = CASE WHEN {_IS_OWN} THEN p.epoch ELSE p.epoch + 1 END,
    status = CASE WHEN {_IS_OWN} THEN p.status ELSE excluded.status END,
    started_at = CASE WHEN {_IS_OWN} THEN p.started_at ELSE NULL END,
    is_cancel_requested = CASE WHEN {_IS_OWN} THEN p.is_cancel_requested ELSE 0 END,
    completed_at = NULL, ended_at = NULL, error = '', attempts = 1, state = excluded.state, owner = excluded.owner,
    nonce = excluded.nonce, version = excluded.version, created_at = excluded.created_at, echo = excluded.echo,
    size = excluded.size, request = excluded.request, key_id = excluded.key_id, retry = excluded.retry,
    most_attempts = excluded.most_attempts, principal = excluded.principal
WHERE p.principal IN ('', excluded.principal) AND (
    (p.state = 'claimed' AND NOT EXISTS ({ALIVE} = p.owner))
    OR (p.state IN {_ENDED} AND (:reuse = 1 OR (p.status = '{Status.CANCELED}' AND p.error = '{CLIENT_LEFT}')))
    OR (excluded.state = 'accepted' AND {_IS_OWN}))
RETURNING {_OWNED_ROW}"""

DISOWN: Final = """
UPDATE geartrain_predictions SET owner = ''
WHERE model = :model AND id = :id AND nonce = :nonce AND state = 'accepted'"""

UNCLAIM: Final = """
DELETE FROM geartrain_predictions WHERE model = :model AND id = :id AND nonce = :nonce AND state = 'claimed'"""

IS_ALIVE: Final = f"{ALIVE} = :owner"

RELEASE: Final = f"DELETE FROM geartrain_predictions WHERE {_MINE} AND state IN {_OPEN} RETURNING model"

FIND: Final = f"{_ROW_AND_OWNER} WHERE p.model = :model AND p.id = :id"

_SHORT_ECHO: Final = f"CASE WHEN length(p.echo) <= {LISTED_ECHO} THEN p.echo ELSE :nothing END"
_LISTED_ROW: Final = _ROW_AND_OWNER.replace("SELECT ", "SELECT p.place, ", 1).replace("p.echo", _SHORT_ECHO, 1)


def list_rows(*, of_one_model: bool, status: str, of_one_principal: bool) -> str:
    """Return the SQL of a list of the rows in one status, which is trusted, or in any if it is empty.

    Its rows begin with their place, and have an echo only where it is short.
    """
    conditions = ["p.place < :before"]
    if of_one_model:
        conditions.append("p.model = :model")
    if status:
        conditions.append(f"p.status = '{status}'")
    if of_one_principal:
        conditions.append("p.principal = :principal")
    return f"{_LISTED_ROW} WHERE {' AND '.join(conditions)} ORDER BY p.place DESC LIMIT :limit"


OWNED: Final = f"""
SELECT model, id, epoch, state, is_cancel_requested FROM geartrain_predictions
WHERE owner = :owner AND state IN {_OPEN}"""

CHECKPOINT: Final = f"""
UPDATE geartrain_predictions SET status = :status, started_at = coalesce(:started_at, started_at), size = size + :size
WHERE {_MINE} AND state IN {_OPEN} RETURNING is_cancel_requested"""

FINISH: Final = f"""
UPDATE geartrain_predictions
SET state = 'ended', status = :status, started_at = coalesce(:started_at, started_at), completed_at = :completed_at,
    ended_at = {{now}}, error = :error, request = :nothing, size = size + :size
WHERE {_MINE} AND state IN {_OPEN} RETURNING epoch"""

STATE: Final = f"SELECT state FROM geartrain_predictions WHERE {_MINE}"

CANCEL: Final = f"""
UPDATE geartrain_predictions SET is_cancel_requested = 1
WHERE model = :model AND id = :id AND state IN {_OPEN} AND (:sees_all = 1 OR principal IN ('', :principal))
RETURNING epoch"""

FIND_ABANDONED: Final = f"""
SELECT p.model, p.id, p.epoch FROM geartrain_predictions AS p
WHERE p.state IN {_OPEN} AND EXISTS ({ALIVE} = :owner) AND NOT EXISTS ({ALIVE} = p.owner)
    AND (:key_ids LIKE '%,' || p.key_id || ',%' OR NOT EXISTS (
        SELECT 1 FROM geartrain_replicas AS r WHERE r.owner = p.owner AND r.ends_at > {{now}} - :patience))
ORDER BY p.place LIMIT :limit {{skip_locked}}"""

TAKE_OVER: Final = f"""
UPDATE geartrain_predictions
SET owner = :owner, epoch = epoch + 1, attempts = attempts + 1, status = 'starting', started_at = NULL,
    size = length(echo)
WHERE model = :model AND id = :id AND epoch = :epoch AND state IN {_OPEN}
RETURNING {_OWNED_ROW}, request, key_id, retry, most_attempts"""

# --- parts of events -------------------------------------------------------------------------------------------------

ADD_PART: Final = """
INSERT INTO geartrain_parts (model, id, epoch, part, events, file)
VALUES (:model, :id, :epoch, :part, :events, :file) ON CONFLICT (model, id, epoch, part) DO NOTHING RETURNING part"""

READ_PARTS: Final = """
SELECT s.events, s.file FROM geartrain_parts AS s
JOIN geartrain_predictions AS p ON p.model = s.model AND p.id = s.id AND p.epoch = s.epoch
WHERE s.model = :model AND s.id = :id AND s.epoch = :epoch AND s.part >= :start ORDER BY s.part"""

REMOVE_PARTS: Final = "DELETE FROM geartrain_parts WHERE model = :model AND id = :id AND epoch < :epoch RETURNING file"

ALL_FILES: Final = "SELECT file FROM geartrain_parts WHERE file <> ''"

# --- retention -------------------------------------------------------------------------------------------------------

SIZE: Final = f"SELECT coalesce(sum(size), 0) FROM geartrain_predictions WHERE state IN {_ENDED}"

OLDEST: Final = f"""
SELECT p.model, p.id, p.size, CASE WHEN p.ended_at <= {{now}} - :seconds THEN 1 ELSE 0 END
FROM geartrain_predictions AS p WHERE p.state IN {_ENDED} ORDER BY p.ended_at LIMIT :limit {{skip_locked}}"""

REMOVE: Final = f"""
DELETE FROM geartrain_predictions WHERE model = :model AND id = :id AND state IN {_ENDED} RETURNING epoch"""

FORGET_REPLICAS: Final = f"""
DELETE FROM geartrain_replicas WHERE owner IN (
    SELECT r.owner FROM geartrain_replicas AS r
    WHERE r.ends_at < {{now}} - :patience AND NOT EXISTS (
        SELECT 1 FROM geartrain_predictions AS p WHERE p.owner = r.owner AND p.state IN {_OPEN}) {{skip_locked}})"""

# --- outbox ----------------------------------------------------------------------------------------------------------

ADD_DELIVERY: Final = """
INSERT INTO geartrain_outbox (model, id, webhook, key_id, body, due_at, attempts, pieces)
VALUES (:model, :id, :webhook, :key_id, :body, {now}, 0, :pieces) RETURNING number"""

ADD_PIECE: Final = "INSERT INTO geartrain_outbox_pieces (number, piece, body) VALUES (:number, :piece, :body)"

READ_PIECE: Final = "SELECT body FROM geartrain_outbox_pieces WHERE number = :number AND piece = :piece"

REMOVE_PIECES: Final = "DELETE FROM geartrain_outbox_pieces WHERE number = :number"

LEASE_DELIVERIES: Final = f"""
UPDATE geartrain_outbox SET due_at = {{now}} + :seconds
WHERE number IN (
    SELECT o.number FROM geartrain_outbox AS o
    WHERE (o.due_at <= {{now}} OR o.due_at > {{now}} + :longest)
        AND :key_ids LIKE '%,' || o.key_id || ',%' AND NOT (o.attempts = 0 AND EXISTS (
        SELECT 1 FROM geartrain_predictions AS p
        WHERE p.model = o.model AND p.id = o.id AND p.state IN {_ENDED} AND p.owner <> :owner
            AND EXISTS ({ALIVE} = p.owner)))
    ORDER BY o.number LIMIT :limit {{skip_locked}})
RETURNING number, model, id, webhook, key_id, body, attempts + 1, pieces"""

REMOVE_DELIVERY: Final = "DELETE FROM geartrain_outbox WHERE number = :number"

POSTPONE_DELIVERY: Final = """
UPDATE geartrain_outbox SET due_at = {now} + :seconds, attempts = attempts + 1 WHERE number = :number"""

# --- replicas and the models that they shall have --------------------------------------------------------------------

RENEW: Final = """
INSERT INTO geartrain_replicas AS r (owner, address, ends_at) VALUES (:owner, :address, {now} + :seconds)
ON CONFLICT (owner) DO UPDATE SET address = excluded.address, ends_at = excluded.ends_at"""

LEAVE: Final = "UPDATE geartrain_replicas SET ends_at = {now} WHERE owner = :owner AND ends_at > {now}"

END_LEASES: Final = "UPDATE geartrain_replicas SET ends_at = {now} WHERE ends_at > {now}"

REPLICAS: Final = "SELECT owner, address, ends_at - {now} FROM geartrain_replicas WHERE ends_at > {now} ORDER BY owner"

WANT: Final = """
INSERT INTO geartrain_wanted AS w (model, is_wanted, revision) VALUES (:model, :is_wanted, {next_revision})
ON CONFLICT (model) DO UPDATE SET is_wanted = excluded.is_wanted, revision = excluded.revision
RETURNING model, is_wanted, revision"""

WANTED: Final = "SELECT model, is_wanted, revision FROM geartrain_wanted ORDER BY model"
