"""Predictions of a model that keeps answers: what has been answered before, or is being answered, needs no run."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.principal import ANYONE
from geartrain.service.models.admission import NewPrediction
from geartrain.service.scheduling.answers import Answers, SharedRun, replay
from geartrain.service.scheduling.execution import Execution
from geartrain.service.scheduling.files import Digests
from geartrain.service.scheduling.tracing import telling

if TYPE_CHECKING:
    from geartrain.service.models.deployment import Deployment

MAX_JSON: Final = 262_144
"""Bytes of an input in JSON that has a key: it is sorted on the loop."""
MAX_TENSORS: Final = 16 * 1024**2
"""Bytes of the tensors of an input that has a key: they are hashed on the loop."""

_NO_DEFAULTS: Final[Mapping[str, Any]] = {}
_NO_FILES: Final[Digests] = {}
_EXACT: Final = 2**53  # whole numbers up to it are floats without loss

_decode: Final = msgspec.json.Decoder().decode
_encode_sorted: Final = msgspec.json.Encoder(order="sorted").encode


def create_cached(deployment: Deployment, answers: Answers, new: NewPrediction, *, echo: bytes) -> Prediction | None:
    """Admit a prediction that is given a kept answer, or else that of an equal one that runs, or of a run for all.

    Returns None for one whose answer is not to be kept. Raises `GeartrainError`, and leaves nothing of the admission.
    """
    key = key_of(new, share=answers.settings.share, defaults=deployment.interface.defaults)
    if key is None:
        return None
    kept, run = _look_up(answers, key, new)
    begun = _begin(deployment, new) if kept is None and run is None else None
    member: Execution | None = None
    try:
        if begun is not None:
            run = begun.shared = SharedRun(answers, key, begun)
        # It needs no slot: what it waits for has one, or is there already.
        member = deployment.admit(msgspec.structs.replace(new, queue=sys.maxsize), echo, Execution)
        member.is_kept = new.keep
        if new.webhook is not None:
            with telling(deployment.scheduler.context.traces, new.request):
                deployment.webhooks().follow(member.prediction, new.webhook)
        _answer(member, kept, run)
        if begun is not None:
            deployment.scheduler.submit(begun)
    except BaseException:
        if begun is not None:
            _take_back(deployment, begun)
        if member is not None:
            deployment.undo(member)
        raise
    return member.prediction


def after_files(
    deployment: Deployment, answers: Answers | None, new: NewPrediction
) -> Callable[[Execution, Digests], None] | None:
    """Return the step of a prediction whose input files have been fetched; None if its answer is not to be kept."""
    if answers is None or not _may_have_key(new):
        return None
    return lambda member, digests: _go_on(deployment, answers, new, member=member, digests=digests)


def _go_on(
    deployment: Deployment, answers: Answers, new: NewPrediction, *, member: Execution, digests: Digests
) -> None:
    """Give a prediction whose files are there an answer, as `create_cached` does; it has a place in the queue."""
    local = member.item.input
    defaults = deployment.interface.defaults
    key = key_of(new, share=answers.settings.share, defaults=defaults, local=local, digests=digests)
    if key is None:
        deployment.scheduler.submit(member)
        return
    kept, run = _look_up(answers, key, new)
    if kept is not None or run is not None:
        _answer(member, kept, run)
        return
    try:
        begun = _begin(deployment, msgspec.structs.replace(new, queue=sys.maxsize))  # the place is that of the member
    except GeartrainError as error:
        member.refuse(error)
        return
    try:
        begun.take_files(member)
        begun.shared = SharedRun(answers, key, begun)
        _answer(member, None, begun.shared)
        deployment.scheduler.submit(begun)
    except BaseException:
        _take_back(deployment, begun)
        member.take_files(begun)
        raise


def _look_up(
    answers: Answers, key: bytes, new: NewPrediction
) -> tuple[tuple[Prediction, float] | None, SharedRun | None]:
    """Return a kept answer with its age, or else the run of an equal request; None for what there is not."""
    if new.request.cache == "no-cache":
        return None, None
    kept = answers.find(key)
    return kept, None if kept is not None else answers.join(key)


def _begin(deployment: Deployment, new: NewPrediction) -> Execution:
    """Admit the run for all: it has neither the id of a client nor its time limit."""
    if new.id is not None or new.webhook is not None or new.schedule.timeout is not None:
        schedule = msgspec.structs.replace(new.schedule, timeout=None)
        new = msgspec.structs.replace(new, id=None, webhook=None, schedule=schedule)
    begun = deployment.admit(new, b"{}", Execution)
    try:
        deployment.predictions.remove(begun)  # no client knows it
    except BaseException:
        deployment.undo(begun)
        raise
    return begun


def _take_back(deployment: Deployment, begun: Execution) -> None:
    """Undo the admission of the run for all."""
    if begun.shared is not None:
        begun.shared.undo()
    deployment.undo(begun)


def _answer(member: Execution, kept: tuple[Prediction, float] | None, run: SharedRun | None) -> None:
    record, context = member.record, member.scheduler.context
    counts = context.counts
    if kept is not None:
        answer, age = kept
        record.cache, record.age = "hit", int(age)
        replay(member, answer)
        counts.add_hit((record.completed or context.clock()) - record.admitted)
    elif run is not None and run.has_members:
        record.cache = "shared"
        counts.add_hit(0.0)
        run.add(member)
    elif run is not None:
        record.cache = "miss"
        counts.add_miss()
        run.add(member)


def _may_have_key(new: NewPrediction) -> bool:
    """True unless the answer of a request is its client's alone."""
    return new.request.cache != "no-store" and not new.nested and new.output_prefix is None


def key_of(
    new: NewPrediction,
    *,
    share: bool,
    defaults: Mapping[str, Any] = _NO_DEFAULTS,
    local: bytes | None = None,
    digests: Digests = _NO_FILES,
) -> bytes | None:
    """Return the key of a request, which equal ones have; None for one whose answer is not to be kept.

    An input that is left out counts as its value in `defaults`. `local`: the input with paths in place of files, which
    count as their digests.
    """
    tensors = new.tensors or ()
    given = new.input if local is None else local
    if not _may_have_key(new) or len(given) > MAX_JSON or sum([len(tensor.data) for tensor in tensors]) > MAX_TENSORS:
        return None
    principal = "" if share or new.principal is ANYONE else new.principal.name
    values = _decode(given)
    files = _take_out(values, digests) if digests else ()
    beside = (new.tensors is None, new.context, new.parameters, new.inline, new.pieces, principal, files)
    digest = hashlib.blake2b(_encode_sorted((_filled(values, defaults), beside)), digest_size=32)
    for tensor in tensors:
        digest.update(_encode_sorted((tensor.name, tensor.datatype, tensor.shape, len(tensor.data))))
        digest.update(tensor.data)
    return digest.digest()


def _take_out(values: dict[str, Any], digests: Digests) -> list[tuple[list[str | int], str]]:
    """Leave None in the place of each file; return the places with the digests."""
    found: list[tuple[list[str | int], str]] = []
    rest: list[tuple[Any, list[str | int]]] = [(values, [])]
    while rest:
        holder, at = rest.pop()
        for key, value in list(holder.items() if type(holder) is dict else enumerate(holder)):
            if type(value) is str and value in digests:
                holder[key] = None
                found.append(([*at, key], digests[value]))
            elif type(value) is dict or type(value) is list:
                rest.append((value, [*at, key]))
    return sorted(found, key=str)


def _filled(values: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs with their defaults; 5 counts as 5.0 where the default is a float."""
    for name, default in defaults.items():
        value = values.setdefault(name, default)
        if type(value) is int and type(default) is float and abs(value) <= _EXACT:
            values[name] = float(value)
    return values
