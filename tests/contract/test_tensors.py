"""The life of a prediction with tensors, for every kind of worker and every way that a tensor may travel."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from geartrain.bridge.child import ChildWorker
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.inference import InferRequest, InferResponse, Parameters
from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.principal import ANYONE
from geartrain.domain.tensors.tensor import Tensor, join_bytes
from geartrain.ipc.framing import INLINE_LIMIT
from geartrain.ipc.memory import LARGEST, MAX_KEPT, WORTHWHILE
from geartrain.service.models import inference
from geartrain.service.models.admission import NewPrediction
from tests.contract.conftest import LIMIT, ROOT, Bench, OpenBench, _bench
from tests.contract.model import tensors as models
from tests.support.gates import Gates

SIZES = [0, WORTHWHILE // 4, 150_000, LARGEST // 4 + 1]  # elements of 4 bytes


def ramp(count: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.arange(count, dtype=np.float32)


def request(
    array: np.ndarray[tuple[int, ...], np.dtype[np.float32]], step: str = "", **parameters: int
) -> InferRequest:
    given: Parameters = {**parameters}
    inputs = [Tensor("x", "FP32", array.shape, memoryview(array.tobytes()))]
    if step:
        inputs.append(Tensor("step", "BYTES", (1,), join_bytes([step.encode()])))
    return InferRequest(tuple(inputs), parameters=given)


class Tensors:
    """A bench whose model takes tensors."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def create(self, asked: InferRequest) -> Prediction:
        """Admit a request."""
        prediction = inference.create(self.bench.deployment, asked)
        self.bench.admitted.append(prediction)
        return prediction

    async def infer(self, asked: InferRequest) -> InferResponse:
        """Run a request to its end."""
        return await self.answer(self.create(asked), asked)

    async def answer(self, prediction: Prediction, asked: InferRequest) -> InferResponse:
        """Return what a client gets of a prediction when it has ended, and keep nothing else of it."""
        response = inference.response(self.bench.deployment, await self.bench.ended(prediction), asked)
        self.bench.admitted.remove(prediction)
        outputs = [replace(tensor, data=bytes(tensor.data)) for tensor in response.outputs]
        return replace(response, outputs=outputs)


@asynccontextmanager
async def opened(bench: OpenBench, *, streams: bool = False, slots: int = 1) -> AsyncIterator[Tensors]:
    options = {} if slots == 1 else {"slots": slots}
    async with bench(streams=streams, module=models, **options) as b:
        yield Tensors(b)
    assert not shared_memory(os.getpid()), "a slot's memory is still open"


_left: set[int] = set()  # inodes of memory that tests of other modules have left open in this process


@pytest.fixture(autouse=True)
def left() -> None:
    """Leave out what was open before the test."""
    _left.clear()
    _left.update(shared_memory(os.getpid()))


def shared_memory(pid: int) -> list[int]:
    """The inodes of the memory that a process has open or mapped, one for each descriptor."""
    found = []
    with contextlib.suppress(FileNotFoundError):  # it is gone, and all that it had
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # that of this listing
                if "geartrain-slot" in os.readlink(link):  # noqa: PTH115 - a text, not a path
                    found.append(link.stat().st_ino)
    return [inode for inode in found if inode not in _left]


def kept_in_slots() -> int:
    """Return the bytes of the memory of this process's slots."""
    stats = [os.stat(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd") if _is_of_slot(each)]  # noqa: PTH208, PTH116 - of links
    return sum({stat.st_ino: stat.st_blocks * 512 for stat in stats}.values())  # a mapping has a descriptor, too


def _is_of_slot(number: str) -> bool:
    with contextlib.suppress(FileNotFoundError):  # that of the listing
        return "geartrain-slot" in os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115 - a text, not a path
    return False


def array_of(tensor: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.frombuffer(tensor.data, np.float32).reshape(tensor.shape)


@pytest.mark.parametrize("count", SIZES)
async def test_tensor_of_any_size(bench: OpenBench, count: int) -> None:
    async with opened(bench) as b:
        for _ in range(2):
            answer = await b.infer(request(ramp(count), seed=7))
            y, label = answer.outputs
            np.testing.assert_array_equal(array_of(y), ramp(count) * 2)
            assert label.data == join_bytes([f"({count},) {{'seed': 7}}".encode()])


async def test_same_model_through_json(bench: OpenBench) -> None:
    async with opened(bench) as b:
        prediction = b.bench.deployment.create(NewPrediction(b'{"x":[[1,2.5]]}'))
        b.bench.admitted.append(prediction)
        await b.bench.ended(prediction)
        assert prediction.error is None
        assert b'"y":[[2.0,5.0]]' in (prediction.output or b"")
        assert b'"label":"(1, 2) {}"' in (prediction.output or b"")


async def test_small_ones_after_large_ones_and_back(bench: OpenBench) -> None:
    async with opened(bench) as b:
        for count in (150_000, 3, 400_000, 5000, 0, 150_000):
            y, _ = (await b.infer(request(ramp(count)))).outputs
            np.testing.assert_array_equal(array_of(y), ramp(count) * 2)


@pytest.mark.parametrize(("count", "times"), [(10, 300), (20_000, 50), (INLINE_LIMIT // 4 + 1, 3)])
async def test_stream_gives_every_tensor_as_it_was(bench: OpenBench, count: int, times: int) -> None:
    async with opened(bench, streams=True) as b:
        asked = request(ramp(count), str(times))
        prediction = await b.bench.ended(b.create(asked))
        assert prediction.error is None
        assert len(prediction.chunks) == times
        for number, chunk in enumerate(prediction.chunks):
            (y,) = inference.response_of(b.bench.deployment, chunk, asked).outputs
            np.testing.assert_array_equal(array_of(y), ramp(count) + number)


async def test_failures_leave_the_slot_as_it_was(bench: OpenBench) -> None:
    async with opened(bench) as b:
        for step, text in (("raise", "as asked"), ("wrong", "output.y is an array of text, and FP32 is declared")):
            with pytest.raises(GeartrainError, match=text) as raised:
                await b.infer(request(ramp(150_000), step))
            assert raised.value.code is Code.RUN_FAILED
            y, _ = (await b.infer(request(ramp(150_000)))).outputs
            assert array_of(y)[-1] == 2 * 149_999


async def test_cancel_leaves_the_slot_as_it_was(bench: OpenBench) -> None:
    async with opened(bench) as b:
        for _ in range(3):
            prediction = b.create(request(ramp(150_000), f"wait {b.bench.gate()}"))
            assert b.bench.predictions.cancel(prediction.id, ANYONE)
            assert (await b.bench.ended(prediction)).status is Status.CANCELED
            await b.bench.idle(1)
            y, _ = (await b.infer(request(ramp(100_000)))).outputs
            np.testing.assert_array_equal(array_of(y), ramp(100_000) * 2)


async def test_cancel_in_the_midst_of_a_stream(bench: OpenBench) -> None:
    async with opened(bench, streams=True) as b:
        for _ in range(3):
            prediction = b.create(request(ramp(20_000), "1000000"))
            await b.bench.given(prediction, 6)
            assert b.bench.predictions.cancel(prediction.id, ANYONE)
            assert (await b.bench.ended(prediction)).status is Status.CANCELED
            await b.bench.idle(1)
        asked = request(ramp(20_000), "2")
        whole = (await b.infer(asked)).outputs[0]
        np.testing.assert_array_equal(array_of(whole), np.concatenate([ramp(20_000), ramp(20_000) + 1]))


async def test_worker_that_dies_leaves_nothing(bench: OpenBench) -> None:
    async with opened(bench) as b:
        await b.infer(request(ramp(150_000)))
        prediction = b.create(request(ramp(150_000), f"wait {b.bench.gate()}"))
        b.bench.kill_worker()
        assert (await b.bench.ended(prediction)).status is Status.FAILED
        await b.bench.lost()
        assert not shared_memory(os.getpid())


async def test_slots_have_memory_of_their_own(async_bench: OpenBench) -> None:
    async with opened(async_bench, slots=8) as b:
        gate = b.bench.gate()
        asked = [request(ramp(20_000 + number), f"wait {gate}") for number in range(8)]
        predictions = [b.create(one) for one in asked]
        b.bench.gates["gate"].open()
        for one in asked:
            y, _ = (await b.answer(predictions.pop(0), one)).outputs
            np.testing.assert_array_equal(array_of(y), ramp(y.shape[0]) * 2)


async def test_slots_keep_little_memory_between_calls(async_bench: OpenBench) -> None:
    """Of 8 times 16 MB of inputs, and as much of outputs twice, what is kept; `opened` sees that it goes in the end."""
    async with opened(async_bench, slots=8) as b:
        for name in ("one", "two"):
            gate = b.bench.gate(name)
            asked = [request(ramp(4_000_000), f"wait {gate}") for _ in range(8)]
            predictions = [b.create(one) for one in asked]
            b.bench.gates[name].open()
            for one in asked:
                await b.answer(predictions.pop(0), one)
        await b.bench.idle(8)
        assert 0 < kept_in_slots() <= 2 * MAX_KEPT or not shared_memory(os.getpid())  # a fake worker has none


# what only a real worker has


@pytest.fixture(params=["async child", "sync child"])
def child_bench(request: pytest.FixtureRequest, folder: Path) -> OpenBench:
    return lambda **options: _bench(request.param, folder, **options)


async def test_file_beside_a_large_tensor(child_bench: OpenBench) -> None:
    async with opened(child_bench) as b:
        for count in (3, 150_000, LARGEST // 4 + 1):
            path = b.bench.folder / f"made-{count}.txt"
            y, label, file = (await b.infer(request(ramp(count), f"file {path}"))).outputs
            np.testing.assert_array_equal(array_of(y), ramp(count) * 2)
            assert (label.name, file.data) == ("label", join_bytes([b"file:content"]))


async def test_tensors_come_through_without_shared_memory(
    child_bench: OpenBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("geartrain.bridge.slots.new_probe", lambda: None)
    async with opened(child_bench) as b:
        for count in (10, 150_000, INLINE_LIMIT // 4 + 1):
            y, _ = (await b.infer(request(ramp(count)))).outputs
            np.testing.assert_array_equal(array_of(y), ramp(count) * 2)
        assert not shared_memory(os.getpid())


async def test_large_tensors_travel_in_shared_memory(child_bench: OpenBench) -> None:
    async with opened(child_bench) as b:
        assert isinstance(b.bench.worker, ChildWorker)
        pid = b.bench.worker._process.pid
        await b.infer(request(ramp(10)))
        assert not shared_memory(pid)
        await b.infer(request(ramp(150_000)))
        open_by_worker = len(shared_memory(pid))
        assert open_by_worker
        for _ in range(20):
            await b.infer(request(ramp(150_000)))
        assert len(shared_memory(pid)) == open_by_worker  # mapped once
        os.kill(pid, signal.SIGKILL)
        await b.bench.lost()


SCRIPT = """
import asyncio, sys
from pathlib import Path
from geartrain.bridge.child import ChildWorker, Launch
from geartrain.domain.tensors.tensor import Tensor
from geartrain.domain.predictions.calls import CallInput, ItemInput

async def main():
    names = ("on_setup_log", "on_loaded", "on_own_metrics", "on_model_call", "on_lost")
    observer = type("Observer", (), dict.fromkeys(names, lambda *a: None))()
    path, gate = Path(sys.argv[1]), sys.argv[2]
    worker = ChildWorker(Launch(f"{path.name}:SyncValue", path.parent, {"PYTHONPATH": sys.argv[3]}), observer)
    await worker.start()
    tensors = (Tensor("x", "FP32", (150_000,), bytes(600_000)),)
    listener = type("Listener", (), dict.fromkeys(("on_begin", "on_end", "on_event"), lambda *a, **k: None))()
    item = ItemInput("id", b'{"step":"wait %s"}' % gate.encode(), tensors=tensors)
    worker.run(0, CallInput("id", (item,)), listener)
    print(worker._process.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_t18_death_of_the_server_leaves_no_memory(folder: Path) -> None:
    gates = Gates(folder / "gates")
    server = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SCRIPT,
        str(models.__file__),
        str(gates["gate"].path),
        str(ROOT),
        stdout=asyncio.subprocess.PIPE,
    )
    assert server.stdout is not None
    async with asyncio.timeout(LIMIT):
        pid = int(await server.stdout.readline())
        worker = os.pidfd_open(pid)
        ended = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(worker, ended.cancel)
        server.kill()
        await server.wait()
        with contextlib.suppress(asyncio.CancelledError):
            await ended  # and with the last process that has it open, the kernel takes the memory back
    asyncio.get_running_loop().remove_reader(worker)
    os.close(worker)
    gates.remove()
    assert not shared_memory(pid)
