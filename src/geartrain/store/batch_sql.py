"""The SQL of files and batches, written as in `geartrain.store.sql`."""

from __future__ import annotations

from typing import Final

from geartrain.domain.predictions.batch_jobs import MESSAGE_BATCH, OF_MESSAGES, BatchStatus
from geartrain.store.sql import ALIVE, OPEN_BATCHES

_SEEN: Final = "(:sees_all = 1 OR principal IN ('', :principal))"

# --- files -----------------------------------------------------------------------------------------------------------

_FILE: Final = "id, name, purpose, created_at, expires_at, size, principal, pieces, batch, is_errors"
_KEPT: Final = "owner = '' AND (expires_at IS NULL OR expires_at > {now})"
_READ_BY_BATCH: Final = f"SELECT 1 FROM geartrain_batches AS b WHERE b.status IN {OPEN_BATCHES} AND b.input_file"

ADD_FILE: Final = f"""
INSERT INTO geartrain_files
    (id, principal, purpose, name, size, pieces, created_at, expires_at, owner, batch, is_errors)
SELECT :id, :principal, :purpose, :name, 0, 0, :created_at, :expires_at, :owner, '', 0
WHERE EXISTS ({ALIVE} = :owner)
RETURNING number"""

COUNT_FILES: Final = """
SELECT count(*), coalesce(sum(size), 0) FROM geartrain_files WHERE principal = :principal"""

GROW_FILE: Final = """
UPDATE geartrain_files SET size = size + :size, pieces = pieces + 1
WHERE id = :id AND owner = :owner AND pieces = :piece RETURNING id"""

ADD_PIECE: Final = """
INSERT INTO geartrain_file_pieces (file, piece, key_id, body) VALUES (:id, :piece, :key_id, :body)"""

COMPLETE_FILE: Final = (
    "UPDATE geartrain_files SET owner = '', expires_at = :expires_at WHERE id = :id AND owner = :owner"
)

FIND_FILE: Final = f"SELECT {_FILE} FROM geartrain_files WHERE id = :id AND {_KEPT}"

FIND_USED_FILE: Final = f"SELECT {_FILE} FROM geartrain_files WHERE id = :id AND owner = ''"

PLACE_OF_FILE: Final = "SELECT number FROM geartrain_files WHERE id = :id"

READ_PIECE: Final = "SELECT body, key_id FROM geartrain_file_pieces WHERE file = :id AND piece = :piece"

REMOVE_FILE: Final = f"""
DELETE FROM geartrain_files WHERE id = :id AND NOT EXISTS ({_READ_BY_BATCH} = geartrain_files.id)
RETURNING batch, is_errors"""

REMOVE_PIECES: Final = "DELETE FROM geartrain_file_pieces WHERE file = :id"

REMOVE_LINES: Final = "DELETE FROM geartrain_batch_lines WHERE batch = :batch AND is_error = :is_error"

IS_FILE: Final = "SELECT 1 FROM geartrain_files WHERE id = :id AND owner = ''"

OLD_FILES: Final = f"""
SELECT f.id FROM geartrain_files AS f
WHERE ((f.owner = '' AND f.expires_at <= {{now}}) OR (f.owner <> '' AND NOT EXISTS ({ALIVE} = f.owner)))
    AND NOT EXISTS ({_READ_BY_BATCH} = f.id)
ORDER BY f.number LIMIT :limit {{skip_locked}}"""


def list_files(*, is_ascending: bool, of_purpose: bool) -> str:
    """Return the SQL of a list of files, which begins behind `:place`."""
    order, beyond = ("", ">") if is_ascending else (" DESC", "<")
    purpose = "AND purpose = :purpose " if of_purpose else ""
    purpose += f"AND purpose <> '{OF_MESSAGES}' "
    return f"""SELECT {_FILE} FROM geartrain_files WHERE number {beyond} :place AND {_KEPT} AND {_SEEN} {purpose}
ORDER BY number{order} LIMIT :limit"""


# --- batches ---------------------------------------------------------------------------------------------------------

_BATCH: Final = """request, status, owner, epoch, progress, cancelling_at, completed, failed, input_tokens,
    output_tokens"""
_MINE: Final = f"id = :id AND owner = :owner AND epoch = :epoch AND status IN {OPEN_BATCHES}"

ADD_BATCH: Final = f"""
INSERT INTO geartrain_batches
    (id, principal, input_file, request, status, owner, epoch, progress, completed, failed, input_tokens, output_tokens)
SELECT :id, :principal, :input_file, :request, '{BatchStatus.VALIDATING}', '', 0, :progress, 0, 0, 0, 0
WHERE (SELECT count(*) FROM geartrain_batches AS b
    WHERE b.principal = :principal AND b.status IN {OPEN_BATCHES}) < :most
RETURNING number"""

FIND_BATCH: Final = f"SELECT {_BATCH} FROM geartrain_batches WHERE id = :id"

PLACE_OF_BATCH: Final = "SELECT number FROM geartrain_batches WHERE id = :id"

_IS_OF_MESSAGES: Final = f"substr(id, 1, {len(MESSAGE_BATCH)}) = '{MESSAGE_BATCH}'"


def list_batches(*, is_ascending: bool, of_messages: bool) -> str:
    """Return the SQL of a list of batches, which begins behind `:place`."""
    order, beyond = ("", ">") if is_ascending else (" DESC", "<")
    kind = _IS_OF_MESSAGES if of_messages else f"NOT {_IS_OF_MESSAGES}"
    return f"""SELECT {_BATCH} FROM geartrain_batches WHERE number {beyond} :place AND {_SEEN} AND {kind}
ORDER BY number{order} LIMIT :limit"""


CANCEL_BATCH: Final = f"""
UPDATE geartrain_batches SET status = '{BatchStatus.CANCELLING}', cancelling_at = :at
WHERE id = :id AND {_SEEN} AND status IN ('{BatchStatus.VALIDATING}', '{BatchStatus.IN_PROGRESS}') RETURNING id"""

FIND_FREE_BATCHES: Final = f"""
SELECT b.id, b.epoch FROM geartrain_batches AS b
WHERE b.status IN {OPEN_BATCHES} AND EXISTS ({ALIVE} = :owner) AND NOT EXISTS ({ALIVE} = b.owner)
ORDER BY b.number LIMIT :limit {{skip_locked}}"""

TAKE_BATCH: Final = f"""
UPDATE geartrain_batches SET owner = :owner, epoch = epoch + 1
WHERE id = :id AND epoch = :epoch AND status IN {OPEN_BATCHES} RETURNING {_BATCH}"""

GIVE_BACK: Final = f"UPDATE geartrain_batches SET owner = '' WHERE {_MINE}"

HOLD_BATCH: Final = f"UPDATE geartrain_batches SET epoch = epoch WHERE {_MINE} RETURNING status"

LOOK_AT_BATCH: Final = f"SELECT status FROM geartrain_batches WHERE {_MINE}"

NOTE_PROGRESS: Final = f"""
UPDATE geartrain_batches SET progress = :progress,
    status = CASE WHEN status = '{BatchStatus.CANCELLING}' THEN status ELSE '{BatchStatus.IN_PROGRESS}' END
WHERE {_MINE} RETURNING status"""

ADD_LINE: Final = """
INSERT INTO geartrain_batch_lines (batch, line, is_error, body) VALUES (:id, :line, :is_error, :body)
ON CONFLICT (batch, line) DO NOTHING RETURNING line"""

COUNT_LINES: Final = f"""
UPDATE geartrain_batches SET completed = completed + :completed, failed = failed + :failed,
    input_tokens = input_tokens + :input_tokens, output_tokens = output_tokens + :output_tokens
WHERE {_MINE}"""

ANSWERED: Final = "SELECT line FROM geartrain_batch_lines WHERE batch = :id"

READ_LINES: Final = """
SELECT line, body FROM geartrain_batch_lines WHERE batch = :batch AND is_error = :is_error AND line > :after
ORDER BY line LIMIT :limit"""

SIZE_OF_LINES: Final = """
SELECT is_error, coalesce(sum(length(body) + 1), 0) FROM geartrain_batch_lines WHERE batch = :id GROUP BY is_error"""

ADD_ANSWERS: Final = """
INSERT INTO geartrain_files
    (id, principal, purpose, name, size, pieces, created_at, expires_at, owner, batch, is_errors)
VALUES (:file, :principal, :purpose, :name, :size, 0, :at, :expires_at, '', :id, :is_errors)"""

END_BATCH: Final = f"""
UPDATE geartrain_batches SET status = :status, progress = :progress, ended_at = {{now}}
WHERE {_MINE} RETURNING {_BATCH}"""

OLD_BATCHES: Final = f"""
SELECT b.id FROM geartrain_batches AS b
WHERE b.ended_at <= {{now}} - :seconds AND b.status NOT IN {OPEN_BATCHES}
    AND NOT EXISTS (SELECT 1 FROM geartrain_files AS f WHERE f.batch = b.id)
ORDER BY b.number LIMIT :limit {{skip_locked}}"""

REMOVE_BATCH: Final = "DELETE FROM geartrain_batches WHERE id = :id"

REMOVE_ENDED_BATCH: Final = f"""
DELETE FROM geartrain_batches WHERE id = :id AND status NOT IN {OPEN_BATCHES} RETURNING input_file"""

REMOVE_ANSWERS: Final = "DELETE FROM geartrain_files WHERE batch = :id"

REMOVE_ALL_LINES: Final = "DELETE FROM geartrain_batch_lines WHERE batch = :id"
