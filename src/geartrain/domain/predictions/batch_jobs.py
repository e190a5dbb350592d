"""Stored files, and batches of requests that are read from them: records, states and steps.

No clock and no database. Times are in seconds since the epoch. A batch has an owner and an epoch, as a stored
prediction has (`geartrain.domain.predictions.ledger`): the server that answers its lines, and its fencing token.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from geartrain.domain.principal import ANYONE, Principal

PIECE: Final = 1_048_576
"""Bytes of a file in one row."""

MESSAGES: Final = "/v1/messages"
"""Endpoint of the batches of Anthropic's API. Their requests and answers are not among the files of a client."""

MESSAGE_BATCH: Final = "msgbatch_"
"""Beginning of the ids of such batches, and of no others."""

OF_MESSAGES: Final = "messages"
"""Purpose of the files of such a batch."""


class BatchStatus(StrEnum):
    """State of a batch, as clients of OpenAI's API see it."""

    VALIDATING = "validating"
    FAILED = "failed"  # the file is not one of requests; none was run
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    EXPIRED = "expired"  # its time was up before each line had an answer
    CANCELLING = "cancelling"  # a client has asked for its end; its owner stops
    CANCELLED = "cancelled"


BATCH_STEPS: Final[dict[BatchStatus, frozenset[BatchStatus]]] = {
    BatchStatus.VALIDATING: frozenset(
        {BatchStatus.IN_PROGRESS, BatchStatus.FAILED, BatchStatus.EXPIRED, BatchStatus.CANCELLING}
    ),
    BatchStatus.IN_PROGRESS: frozenset(
        {BatchStatus.COMPLETED, BatchStatus.FAILED, BatchStatus.EXPIRED, BatchStatus.CANCELLING}
    ),
    BatchStatus.CANCELLING: frozenset({BatchStatus.CANCELLED}),
    BatchStatus.COMPLETED: frozenset(),
    BatchStatus.FAILED: frozenset(),
    BatchStatus.EXPIRED: frozenset(),
    BatchStatus.CANCELLED: frozenset(),
}
"""The states that may follow each; none follows the end of a batch."""

OPEN_BATCH: Final = tuple(status for status, following in BATCH_STEPS.items() if following)
"""States of a batch that has not ended."""


def end_of(status: BatchStatus, wanted: BatchStatus) -> BatchStatus:
    """Return the state in which a batch ends: one that is being cancelled ends so, whatever came of its lines."""
    return BatchStatus.CANCELLED if status is BatchStatus.CANCELLING else wanted


class StoredFile(msgspec.Struct, frozen=True):
    """A file without its content.

    Attributes:
        purpose: `batch` for requests, `batch_output` for their answers, `OF_MESSAGES` for both of a batch of messages.
        size: bytes of the content.
        expires_at: None for a file that stays until it is deleted.
        principal: the name of the client that it belongs to; empty on a server without keys.
        pieces: number of the rows that hold the content; 0 for the answers of a batch.
        batch: the batch whose answers are the content; empty for an uploaded file.
        is_errors: of the answers of a batch, true for those of lines that failed.
    """

    id: str
    name: str
    purpose: str
    created_at: float
    expires_at: float | None = None
    size: int = 0
    principal: str = ""
    pieces: int = 0
    batch: str = ""
    is_errors: bool = False


class FileRemoval(StrEnum):
    """Result of the removal of a file."""

    REMOVED = "removed"
    ABSENT = "absent"
    IN_USE = "in_use"  # a batch that has not ended reads it


class Selection(msgspec.Struct, frozen=True):
    """A part of a list of files or batches that `principal` may see.

    Attributes:
        limit: most members.
        after: the id behind which it begins; empty for the first ones.
        purpose: of files; empty for any.
        is_ascending: true for the oldest first.
        of_messages: of batches, true for those of Anthropic's API.
    """

    limit: int
    after: str = ""
    purpose: str = ""
    is_ascending: bool = False
    principal: Principal = ANYONE
    of_messages: bool = False


class NewBatch(msgspec.Struct, frozen=True):
    """A batch as it was asked for.

    Attributes:
        input_file: the id of the file with its lines.
        window: the time that it may take, as the client has written it.
        output_seconds: time that the files of its answers are kept.
        principal: as in `StoredFile`.
        key: the name of the key that it was made with, for the log.
        models: patterns of the models that this key is for.
        total: number of its lines, if they were checked when it was made; 0 for a file that its owner reads first.
    """

    id: str
    endpoint: str
    input_file: str
    window: str
    created_at: float
    expires_at: float
    output_seconds: float
    metadata: dict[str, str] | None = None
    principal: str = ""
    key: str = ""
    models: tuple[str, ...] = ("*",)
    total: int = 0

    @property
    def is_of_messages(self) -> bool:
        """True for a batch of Anthropic's API."""
        return self.endpoint == MESSAGES


class BatchFault(msgspec.Struct, frozen=True):
    """Reason for which a batch failed: a code, a sentence, and where it lies. `line` is 0 for the file as a whole."""

    code: str
    message: str
    param: str | None = None
    line: int = 0


class BatchProgress(msgspec.Struct, frozen=True):
    """Progress of a batch, which its owner alone writes.

    Attributes:
        total: number of lines; 0 until they have been counted.
        model: the model that the first line names.
        faults: reasons for which it failed.
        in_progress_at, ended_at: None until then.
        output_file, error_file: ids of the files with its answers; empty without one.
    """

    total: int = 0
    model: str = ""
    faults: tuple[BatchFault, ...] = ()
    in_progress_at: float | None = None
    ended_at: float | None = None
    output_file: str = ""
    error_file: str = ""


class Batch(msgspec.Struct, frozen=True):
    """Stored state of a batch.

    Attributes:
        owner: the server that answers its lines; empty until one has taken it.
        cancelling_at: None until a client has asked for its end.
        completed, failed: lines that have an answer, by what it is.
        input_tokens, output_tokens: sums of the answers that tell them.
    """

    new: NewBatch
    status: BatchStatus
    owner: str = ""
    epoch: int = 0
    progress: BatchProgress = BatchProgress()
    cancelling_at: float | None = None
    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class BatchOwnership(msgspec.Struct, frozen=True):
    """The right to write a batch: its id, its owner, and the epoch in which that owner got it."""

    id: str
    owner: str
    epoch: int


class LineAnswer(msgspec.Struct, frozen=True):
    """The answer to one line of a batch: a line of one of its files, without its end."""

    line: int
    is_error: bool
    body: bytes
    input_tokens: int = 0
    output_tokens: int = 0


class BatchEnd(msgspec.Struct, frozen=True):
    """The end of a batch. `output_file` and `error_file` are the ids of files that are made if they have lines."""

    status: BatchStatus
    at: float
    output_file: str
    error_file: str
    faults: tuple[BatchFault, ...] = ()
