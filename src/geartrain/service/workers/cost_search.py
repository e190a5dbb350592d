"""Search for the limit of a call's cost (`max_cost: auto`): ever larger calls, until memory or time says no."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from math import inf
from typing import Any, Final, NamedTuple

import msgspec

from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.batching import Batching, BatchItems
from geartrain.domain.predictions.calls import CallInput, ItemInput, WorkerInfo, WorkerObserver
from geartrain.domain.predictions.costs import CostRule
from geartrain.domain.signature.types import InputField
from geartrain.domain.signature.validation import InputValidator
from geartrain.domain.tensors.tensor import VARIABLE, Tensor
from geartrain.service.ports import WorkerPort
from geartrain.service.workers.warmup import ExampleCall, WarmUp, WarmUpError

logger = logging.getLogger(__name__)

_GAIN: Final = 1.05  # more cost per second than that counts as a gain
_PATIENCE: Final = 2  # larger calls in a row without a gain
_LONG: Final = 1.0  # seconds of a call; longer ones are for models whose single requests take half as long
_OF_TIMEOUT: Final = 0.25  # of the time limit of a run, for a call
_BUDGET: Final = 60.0  # seconds of a search
_RUNS: Final = (2, 5)  # of each call, at least and at most: the first of a shape may compile something
_SHORT: Final = 0.05  # seconds of all runs of a call, until which there may be more of them
_MOST_BYTES: Final = 256 * 1024**2  # of the inputs of one call
_MOST_DOUBLINGS: Final = 64


class ProbeError(Exception):
    """A call that is no measure: it failed, or took too long. The message is the reason."""


class CostSearch:
    """Finds the limit with the first worker of a pool. The others are equal, and so are those that follow a crash."""

    def __init__(
        self,
        warm_up: WarmUp | None,
        *,
        run_timeout: float | None = None,
        labels: Mapping[str, str],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`warm_up` has the examples. `labels` name the model in log records; `clock` is in seconds."""
        self._warm_up = warm_up
        self._run_timeout = inf if run_timeout is None else run_timeout
        self._labels = labels
        self._clock = clock
        self._turn = asyncio.Lock()
        self._found: float | None = None

    async def settle(
        self, worker: WorkerPort, info: WorkerInfo, observer: WorkerObserver, *, ends_at: float | None
    ) -> WorkerInfo:
        """Return `info` with the limit in its policy, after the search if there has been none.

        `ends_at` is the time on the monotonic clock at which the setup has to be over, if there is one. Raises
        `WarmUpError` if the worker dies of a call.
        """
        batching = info.batching
        if batching is None or not batching.policy.auto_cost:
            return info
        async with self._turn:
            if self._found is None:
                left = inf if ends_at is None else (ends_at - time.monotonic()) / 2
                self._found = await self._search(worker, info, batching, observer=observer, budget=min(_BUDGET, left))
        policy = msgspec.structs.replace(batching.policy, max_cost=self._found)
        return msgspec.structs.replace(info, batching=msgspec.structs.replace(batching, policy=policy))

    async def _search(
        self, worker: WorkerPort, info: WorkerInfo, batching: Batching, *, observer: WorkerObserver, budget: float
    ) -> float:
        """Return the limit, 0 for none."""
        if info.signature.contract:
            return self._give_up("the model takes whole requests, which have no inputs to grow")
        async with contextlib.AsyncExitStack() as stack:
            try:
                example = (
                    None
                    if self._warm_up is None
                    else await stack.enter_async_context(self._warm_up.first(info.signature))
                )
                if example is None:
                    return self._give_up("there is no example", "add one below warmup: or examples: in geartrain.yaml")
                loads = Loads(example, info, batching)
            except (WarmUpError, GeartrainError) as error:
                return self._give_up(str(error))
            probes = _Probes(worker, info, observer, clock=self._clock, budget=budget)
            return await self._climb(loads, probes)

    async def _climb(self, loads: Loads, probes: _Probes) -> float:
        """Measure ever larger calls; return the cost of the one from which on there is no gain."""
        best: Load | None = None
        rate, longest, without, stop = 0.0, inf, 0, "no larger call is possible"
        following = iter(loads)
        # In a thread: the inputs of a large call take long to make.
        while (load := await asyncio.to_thread(next, following, None)) is not None:
            try:
                seconds = await probes.measure(load, longest)
            except ProbeError as error:
                stop = str(error)
                break
            if best is None:
                longest = min(max(_LONG, 2 * seconds), self._run_timeout * _OF_TIMEOUT)
            elif seconds > longest:
                stop = f"a call that costs {load.cost:.15g} takes {seconds:.3g} s"
                break
            if load.cost > _GAIN * rate * seconds:
                best, rate, without = load, load.cost / seconds, 0
                continue
            without += 1
            if without == _PATIENCE:
                stop = "larger calls do no more in a second"
                break
        if best is None:
            return self._give_up(f"the example could not be measured: {stop}")
        fields = {"max_cost": best.cost, "requests": best.number, "per_second": round(rate, 1), "stop": stop}
        logger.info("max_cost of calls has been found", extra={**self._labels, **fields})
        return best.cost

    def _give_up(self, reason: str, hint: str = "write a number for max_cost") -> float:
        fields = {**self._labels, "reason": reason, "hint": hint}
        logger.warning("max_cost: auto has not been found, and there is no limit", extra=fields)
        return 0.0


class Load(NamedTuple):
    """A call of equal requests."""

    item: ItemInput
    number: int
    cost: float  # of the call


class _Probes:
    """Measures calls on the slots of one worker, which takes no others meanwhile."""

    def __init__(
        self,
        worker: WorkerPort,
        info: WorkerInfo,
        observer: WorkerObserver,
        *,
        clock: Callable[[], float],
        budget: float,
    ) -> None:
        """`budget` is in seconds."""
        self._worker = worker
        self._observer = observer
        self._slots = info.slots
        self._is_apart = info.batching is not None and info.batching.travels_apart
        self._clock = clock
        self._ends_at = time.monotonic() + budget
        self._serial = count(1)

    async def measure(self, load: Load, longest: float) -> float:
        """Return the seconds of a call, the shortest of several runs unless the first is far above `longest`.

        Raises `ProbeError`, and `WarmUpError` if the worker dies.
        """
        least, most = _RUNS
        times: list[float] = []
        while len(times) < least or (len(times) < most and sum(times) < _SHORT):
            times.append(await self._run(load))
            if times[0] > 4 * longest:
                break
        return max(min(times), 1e-9)

    async def _run(self, load: Load) -> float:
        """Run a call on each slot at once, as under load; return the seconds until all are over."""
        left = self._ends_at - time.monotonic()
        if left <= 0:
            raise ProbeError("the time for the search is over")
        worker, name = self._worker, f"max-cost-{next(self._serial)}"
        items = tuple(
            msgspec.structs.replace(load.item, id=f"{name}-{index}" if load.number > 1 else name)
            for index in range(load.number)
        )
        began = self._clock()
        calls = [ExampleCall(worker, self._observer, keep_prints=False) for _ in range(self._slots)]
        for slot, call in enumerate(calls):
            worker.run(slot, CallInput(name, items, apart=self._is_apart, probe=True), call)
        try:
            async with asyncio.timeout(left):
                await _all_over(calls)
        except TimeoutError:
            for slot in range(self._slots):
                worker.cancel(slot, name)
            await _all_over(calls)
            await asyncio.gather(*(call.is_idle.wait() for call in calls))
            raise ProbeError(f"a call that costs {load.cost:.15g} takes more than {left:.3g} s") from None
        seconds = self._clock() - began
        fault = next((call.fault for call in calls if call.fault), "")
        if not all(call.is_idle.is_set() for call in calls):
            raise WarmUpError(
                f"`max_cost: auto`: a call of {load.number} requests that cost {load.cost:.15g} could not be run:"
                f" {fault}; write a smaller number for max_cost"
            )
        if fault:
            raise ProbeError(f"a call that costs {load.cost:.15g} fails: {fault}")
        return seconds


async def _all_over(calls: Sequence[ExampleCall]) -> None:
    for call in calls:
        await call.is_over.wait()


class _Request(NamedTuple):
    """An example in some size."""

    values: dict[str, Any]
    item: ItemInput
    cost: float
    size: int  # bytes


class Loads:
    """Calls of an example, each at least as costly as the one before: more of it, up to `max_size`, then longer ones.

    The inputs that the rule of costs names are made twice as long, where the signature allows it. Lists and dimensions
    that have to be as long as theirs grow with them.
    """

    def __init__(self, example: bytes, info: WorkerInfo, batching: Batching) -> None:
        """Raises `GeartrainError` for an example that the model takes in no batch."""
        signature = info.signature
        self._slots = info.slots
        self._policy = batching.policy
        self._by_rows = batching.by_rows
        self._validator = InputValidator(signature)
        self._rows_of = BatchItems(signature, batching).measure
        self._cost_of = CostRule(batching.policy.cost, signature)
        self._fields = {field.name: field for field in signature.inputs}
        values = msgspec.json.decode(example)
        for name in self._cost_of.names:
            field = self._fields[name]
            if name not in values and field.has_default and field.default is not None:
                values[name] = field.default
        self._example = self._request(values)

    def __iter__(self) -> Iterator[Load]:
        found = self._example
        number = 1
        for number in self._numbers(found.item.rows):
            if number > 1 and not self._fits(found, number):
                return
            if found.cost:
                yield Load(found.item, number, number * found.cost)
        for _ in range(_MOST_DOUBLINGS):
            longer = self._longer(found)
            if longer is None or not self._fits(longer, number):
                return
            found = longer
            yield Load(found.item, number, number * found.cost)

    def _numbers(self, rows: int) -> list[int]:
        """Return the numbers of requests in a call: powers of two, or those that fill it up, and the most."""
        most = max(1, self._policy.max_size // max(1, rows))
        steps = [size // max(1, rows) for size in self._policy.pad_to] or [
            2**power for power in range(most.bit_length())
        ]
        return sorted({*(min(max(1, each), most) for each in steps), most})

    def _fits(self, request: _Request, number: int) -> bool:
        return request.size * number * self._slots <= _MOST_BYTES

    def _request(self, values: dict[str, Any]) -> _Request:
        rest, tensors = dict(values), self._tensors(values)
        for tensor in tensors or ():
            del rest[tensor.name]
        json = msgspec.json.encode(rest)
        rows = self._rows_of(json, tensors)[1]
        size = len(json) + sum(len(tensor.data) for tensor in tensors or ())
        return _Request(values, ItemInput("", json, rows, tensors=tensors), self._cost_of(json, tensors), size)

    def _tensors(self, values: Mapping[str, Any]) -> tuple[Tensor, ...] | None:
        """Return the inputs that are tensors, as most clients of such models send them; None where there are none."""
        named = [name for name, field in self._fields.items() if field.type.kind == "tensor" and values.get(name)]
        if not named:
            return None
        try:
            from geartrain.domain.tensors.array_json import tensor_of  # late: it needs numpy
        except ImportError:
            return None
        kinds = {name: self._fields[name].type for name in named}
        return tuple(
            tensor_of(name, kind.datatype, msgspec.json.encode(values[name]), shape=kind.shape)
            for name, kind in kinds.items()
        )

    def _longer(self, found: _Request) -> _Request | None:
        """Return the request with longer inputs that cost more; None if there is none that the model takes."""
        changes = [change for name in self._cost_of.names for change in self._changes(name, found.values)]
        together: dict[str, Any] = {}
        for change in changes:
            together = {**change, **together}
        for change in (together, *changes):
            values = {**found.values, **change}
            try:
                if self._validator.check(msgspec.json.encode(values)):
                    continue
                request = self._request(values)
            except GeartrainError:
                continue
            if request.cost > found.cost and request.item.rows == found.item.rows:
                return request
        return None

    def _changes(self, name: str, values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Give the ways in which an input gets twice as long, with those that have to grow with it."""
        value = values.get(name)
        if isinstance(value, str) or (isinstance(value, (int, float)) and not isinstance(value, bool)):
            yield {name: value + value}  # type: ignore[operator]  # mypy joins the two
        elif isinstance(value, list):
            sizes = _sizes(value)
            for axis in sorted(self._open(self._fields[name], sizes), key=lambda each: sizes[each]):
                yield self._along(name, axis, values)

    def _along(self, name: str, axis: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """Double one dimension of an input, and the equal ones: of the same name, or without names of the same size."""
        label, size = self._label(name, axis), _sizes(values[name])[axis]
        change: dict[str, Any] = {}
        for other, field in self._fields.items():
            value = values.get(other)
            if not isinstance(value, list):
                continue
            sizes = _sizes(value)
            for place in self._open(field, sizes):
                own = self._label(other, place)
                is_equal = own == label if own or label else other != name and sizes[place] == size
                if is_equal or (other, place) == (name, axis):
                    value = change[other] = _doubled(value, place)
        return change

    def _label(self, name: str, axis: int) -> str:
        kind = self._fields[name].type
        return kind.names[axis] if axis < len(kind.names) and not kind.variadic else ""

    def _open(self, field: InputField, sizes: Sequence[int]) -> list[int]:
        """Return the dimensions of an input that may have any size, without that of its rows."""
        kind = field.type
        if kind.kind == "array":
            return [] if self._by_rows or not sizes else [0]
        if kind.kind != "tensor":
            return []
        shape = kind.shape if len(kind.shape) == len(sizes) and not kind.variadic else (VARIABLE,) * len(sizes)
        return [axis for axis, size in enumerate(shape) if size == VARIABLE and not (axis == 0 and self._by_rows)]


def _sizes(value: Any) -> tuple[int, ...]:
    sizes = []
    while isinstance(value, list):
        sizes.append(len(value))
        value = value[0] if value else None
    return tuple(sizes)


def _doubled(value: list[Any], axis: int) -> list[Any]:
    return value + value if axis == 0 else [_doubled(each, axis - 1) for each in value]
