"""Making a prediction that a store knows, and making it again of what the store has of it."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from geartrain.domain.errors import Code, FieldError, GeartrainError
from geartrain.domain.predictions.ledger import Claim, ClaimResult, Key, Row, Submission
from geartrain.domain.predictions.prediction import Prediction, Webhook
from geartrain.domain.predictions.request_context import NO_REQUEST, RequestContext
from geartrain.domain.principal import Principal
from geartrain.service.durable.durability import Durability
from geartrain.service.durable.runs import DurableExecution, DurableRun
from geartrain.service.models.admission import NewPrediction
from geartrain.service.scheduling.failures import log_end, log_fault
from geartrain.service.scheduling.files import Attachment, Attachments
from geartrain.service.scheduling.tracing import telling

if TYPE_CHECKING:
    from geartrain.service.models.deployment import Deployment


_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NO_LIMIT: Final = 1 << 62  # of a queue: what was accepted once is not refused again
_NO_KEY: Final = (
    "is a secret, and the input of an accepted prediction is stored: start the server with --store-key-file, which "
    "encrypts it, or leave out `Prefer: respond-async`"
)


class _StoredFile(msgspec.Struct, frozen=True, array_like=True):
    """A file that came with a request; see `Attachment`."""

    name: str
    index: int
    file_name: str
    content: bytes


class StoredRequest(msgspec.Struct, frozen=True, array_like=True):
    """Stored form of an accepted request, complete enough to run it. `version` is the one that it names, if any."""

    input: bytes
    context: dict[str, str] | None = None
    webhook: Webhook | None = None
    output_prefix: str | None = None
    version: str = ""
    request: RequestContext = NO_REQUEST
    files: tuple[_StoredFile, ...] = ()


NOTHING_STORED: Final = StoredRequest(b"{}")
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(StoredRequest).decode


def read_request(request: bytes) -> StoredRequest:
    """Decode what `create_durable` has stored."""
    return _decode(request)


def key_of(deployment: Deployment, prediction_id: str) -> Key:
    """Return the key of a prediction's row."""
    return Key(table_of(deployment.name, deployment.settings.noun), prediction_id)


def table_of(model: str, noun: str) -> str:
    """Return the table of ids of a model: its trainings have one of their own."""
    return model if noun == "prediction" else f"{noun}s/{model}"


def model_of(table: str, noun: str) -> str:
    """Return the model of a table of ids."""
    return table if noun == "prediction" else table.removeprefix(f"{noun}s/")


def create_durable(
    deployment: Deployment, durability: Durability, new: NewPrediction, *, values: dict[str, Any] | None
) -> Prediction:
    """Create a live prediction that begins when its row is written. Raises as `Deployment.create`.

    A protocol waits for the row before it answers: see `DurableRun.made`.
    """
    if new.accepted:
        _check_secrets(deployment, durability, new)
    run = _admit(deployment, durability, new)
    begin = functools.partial(_begin, deployment, durability, new, run=run, values=values)
    try:
        run.claim(functools.partial(_ask, deployment, durability, new, run=run), begin)
    except Exception as error:
        run.refuse(error)
        raise
    return run.prediction


def resume(
    deployment: Deployment, durability: Durability, row: Row, *, stored: StoredRequest, attachments: Attachments | None
) -> DurableRun:
    """Make a prediction live again that was taken over. Raises as `Deployment.create`."""
    new = NewPrediction(
        input=stored.input,
        id=row.ownership.key.id,
        context=stored.context,
        created_at=row.created_at,
        keep=True,
        accepted=True,
        webhook=stored.webhook,
        output_prefix=stored.output_prefix,
        background=True,
        queue=_NO_LIMIT,
        request=stored.request,
        attachments=attachments,
        principal=Principal(row.principal),
    )
    deployment.workers.check_ready()
    values = deployment.admission.check(new)
    run = _admit(deployment, durability, new)
    run.hold(row.ownership)
    run.made.set_result(None)
    log_end(run.prediction)
    _begin(deployment, durability, new, run=run, values=values)
    return run


def _admit(deployment: Deployment, durability: Durability, new: NewPrediction) -> DurableRun:
    """Give a prediction its place, where it waits for its row."""
    if deployment.executions.is_closed:
        noun = deployment.settings.noun
        raise GeartrainError(Code.SHUTTING_DOWN, f"The server is shutting down and takes no new {noun}s.")
    webhook = () if new.webhook is None or "completed" not in new.webhook.events else (new.webhook,)
    run = DurableRun(durability, is_accepted=new.accepted, webhook=webhook)
    make = functools.partial(DurableExecution, run=run)
    admission = deployment.admission
    execution = deployment.admit(new, admission.echo(new) if admission.secrets else new.input, make)
    try:
        run.live(key_of(deployment, execution.prediction.id), execution)
        durability.add(run)
    except BaseException:
        deployment.undo(execution)
        raise
    return run


def _begin(
    deployment: Deployment,
    durability: Durability,
    new: NewPrediction,
    *,
    run: DurableRun,
    values: dict[str, Any] | None,
) -> None:
    """Run what has its row now."""
    try:
        if new.webhook is not None and new.webhook.events:
            with telling(deployment.scheduler.context.traces, run.prediction.record.request):
                told = deployment.webhooks().follow_until_end(run.prediction, new.webhook)
            durability.follow(run.key, told)
        run.execution.go_on(values, new.attachments)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the end of the prediction, which has a row
        run.execution.fail(log_fault(run.prediction, error))


def _ask(
    deployment: Deployment, durability: Durability, new: NewPrediction, *, run: DurableRun
) -> asyncio.Future[ClaimResult]:
    """Ask for the row. Raises `GeartrainError` as the store does of what it never takes."""
    prediction = run.prediction
    claim = Claim(
        run.key,
        durability.owner,
        deployment.version,
        prediction.created_at,
        prediction.input,
        principal=prediction.principal,
        request=b"" if new.accepted or new.webhook is None else _encode(StoredRequest(b"{}", webhook=new.webhook)),
    )
    if not new.accepted:
        return durability.store.ledger.claim(claim)
    if new.attachments is not None and new.attachments.files:
        attached = new.attachments.files
        return asyncio.ensure_future(_ask_with_files(deployment, durability, new, claim=claim, attached=attached))
    return _accept(deployment, durability, new, claim=claim)


async def _ask_with_files(
    deployment: Deployment,
    durability: Durability,
    new: NewPrediction,
    *,
    claim: Claim,
    attached: tuple[Attachment, ...],
) -> ClaimResult:
    """Ask for a row that has the content of the files that came with the request."""
    files = await asyncio.to_thread(_read_files, attached)
    return await _accept(deployment, durability, new, claim=claim, files=files)


def _accept(
    deployment: Deployment,
    durability: Durability,
    new: NewPrediction,
    *,
    claim: Claim,
    files: tuple[_StoredFile, ...] = (),
) -> asyncio.Future[ClaimResult]:
    request = StoredRequest(new.input, new.context, new.webhook, new.output_prefix, new.version, new.request, files)
    submission = Submission(
        _encode(request),
        has_secret=bool(_secrets(deployment, new)),
        retry=deployment.settings.retry,
        attempts=durability.settings.attempts,
    )
    return durability.store.ledger.accept(claim, submission)


def _secrets(deployment: Deployment, new: NewPrediction) -> list[str]:
    """Return the inputs of a request that are secrets."""
    secrets = deployment.admission.secrets
    return sorted(set(secrets) & _decode_members(new.input).keys()) if secrets else []


def _check_secrets(deployment: Deployment, durability: Durability, new: NewPrediction) -> None:
    """Raise `INVALID_INPUT` for secrets that would be stored in the clear."""
    if durability.settings.has_key:
        return
    names = _secrets(deployment, new)
    if names:
        fields = tuple(FieldError(("body", "input", name), _NO_KEY, "value_error") for name in names)
        raise GeartrainError(Code.INVALID_INPUT, f"The input `{names[0]}` {_NO_KEY}.", fields=fields)


def _read_files(files: tuple[Attachment, ...]) -> tuple[_StoredFile, ...]:
    """Read the files that came with a request; in a thread."""
    return tuple(
        _StoredFile(file.name, file.index, Path(file.path).name, Path(file.path).read_bytes()) for file in files
    )


async def restore_files(deployment: Deployment, stored: StoredRequest) -> Attachments | None:
    """Write the files that came with a request again, for its run. Raises `GeartrainError` as the disk does."""
    if not stored.files:
        return None
    store = deployment.outbound.new_attachments()

    def write() -> tuple[Attachment, ...]:
        written = []
        for kept in stored.files:
            file = store.open(kept.name, kept.file_name)
            try:
                file.write(memoryview(kept.content))
            finally:
                file.close()
            written.append(Attachment(kept.name, file.path, kept.index))
        return tuple(written)

    try:
        return Attachments(store, await asyncio.to_thread(write))
    except BaseException:
        await store.remove()
        raise
