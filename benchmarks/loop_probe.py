"""How long bodies that are made to take long hold the event loop, measured by a coroutine beside them.

    python benchmarks/loop_probe.py                    # 64 KiB, 5 MB and 100 MiB, the last ones from gzip
    python benchmarks/loop_probe.py --direct --sizes 64KiB 5MB    # read on the loop, as small bodies are

Nothing is served: each body goes through the functions that a server reads it with, in a loop that does nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from geartrain.apis import cog, generate, open_inference, tensor_json
from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.calls import WorkerInfo
from geartrain.domain.signature.types import InputField, OutputSpec, Signature, TypeSpec
from geartrain.service.models.admission import Interface
from geartrain.transport.compression import inflate

SIZES: Final = {"64KiB": 65_536, "1MiB": 1 << 20, "5MB": 5_000_000, "100MiB": 100 << 20}
INFLATED: Final = SIZES["100MiB"]
STEP: Final = 0.001

_NUMBER, _TEXT = TypeSpec(kind="number"), TypeSpec(kind="string")
_TENSOR = TypeSpec(kind="tensor", datatype="FP32", shape=(-1,))
COG: Final = Signature(
    inputs=(
        InputField(name="s", type=_TEXT, required=False),
        InputField(name="n", type=TypeSpec(kind="array", items=_NUMBER), required=False),
        InputField(name="f", type=TypeSpec(kind="path"), required=False),
        InputField(name="o", type=TypeSpec(kind="opaque"), required=False),
    ),
    output=OutputSpec(type=_TEXT),
)
INFER: Final = Signature(
    inputs=(
        InputField(name="x", type=_TENSOR, required=False),
        InputField(name="t", type=TypeSpec(kind="tensor", datatype="BYTES", shape=(-1,)), required=False),
        InputField(name="n", type=TypeSpec(kind="array", items=TypeSpec(kind="integer")), required=False),
    ),
    output=OutputSpec(type=_TENSOR),
)
GENERATE: Final = Signature(inputs=(InputField(name="prompt", type=_TEXT),), output=OutputSpec(type=_TEXT))


def fill(size: int, begin: bytes, item: bytes | Callable[[int], bytes], end: bytes) -> bytes:
    """Return `begin`, as many items with commas as there is room for, and `end`."""
    room = size - len(begin) - len(end)
    if isinstance(item, bytes):
        return begin + (item + b",") * ((room - len(item)) // (len(item) + 1)) + item + end
    items = []
    number = 0
    while room > 0:
        items.append(item(number))
        room -= len(items[-1]) + 1
        number += 1
    return begin + b",".join(items) + end


def tensor(size: int, name: bytes, datatype: bytes, *, item: bytes, per_item: int = 1) -> bytes:
    """Return an infer request with a tensor whose shape is right."""
    head = b'{"inputs":[{"name":"%b","datatype":"%b","shape":[%d],"data":['
    count = (size - len(head) - 20) // (len(item) + 1)
    return head % (name, datatype, count * per_item) + (item + b",") * (count - 1) + item + b"]}]}"


_ONE: Final = b'{"name":"x","shape":[1],"datatype":"FP32","data":[1]}'
_KEY: Final = b'"k%d":1'


def attacks(size: int) -> dict[str, bytes]:
    """Return the bodies by name; the first word is the protocol."""
    value = b'"data:;base64,%b"' % (b"QUJD" * ((size - 64) // 4))
    deep = (size - 64) // 2
    inputs = b'{"inputs":[%b],' % _ONE
    long_shape = b'{"inputs":[{"name":"x","datatype":"FP32","data":[1],"shape":['
    return {
        "cog a data: URL": b'{"input":{"f":%b}}' % value,
        "cog a percent-encoded data: URL": b'{"input":{"f":"data:,%b"}}' % (b"%41" * ((size - 64) // 3)),
        "cog a text": b'{"input":{"s":%b}}' % value,
        "cog a text of escapes": b'{"input":{"s":"%b"}}' % (b"\\u0041" * ((size - 64) // 6)),
        "cog repeated keys beside [{},{},…]": fill(size, b'{"input":{},"input":{},"zz":[', b"{}", b"]}"),
        "cog [{},{},…]": fill(size, b'{"input":{"o":[', b"{}", b"]}}"),
        "cog numbers": fill(size, b'{"input":{"n":[', b"1.5", b"]}}"),
        "cog texts where numbers belong": fill(size, b'{"input":{"n":[', b'"a"', b"]}}"),
        "cog unknown keys": fill(size - 16, b'{"input":{', lambda n: _KEY % n, b"}}"),
        "cog deep": b'{"input":{"o":%b%b}}' % (b"[" * deep, b"]" * deep),
        "infer repeated keys beside [{},{},…]": fill(size, inputs + b'"id":"","id":"","zz":[', b"{}", b"]}"),
        'infer BYTES ["a","a",…]': tensor(size, b"t", b"BYTES", item=b'"a"'),
        'infer BYTES [["a"],["a"],…]': tensor(size, b"t", b"BYTES", item=b'["a"]'),
        "infer BOOL [[true],…]": tensor(size, b"x", b"BOOL", item=b"[true]"),
        "infer [[],[],…]": tensor(size, b"x", b"FP32", item=b"[]", per_item=0),
        "infer numbers": tensor(size, b"x", b"FP32", item=b"1.5"),
        "infer many inputs": fill(size, b'{"inputs":[', _ONE, b"]}"),
        "infer unknown keys": fill(size - 16, inputs, lambda n: _KEY % n, b"}"),
        "infer parameters": fill(size - 16, inputs + b'"parameters":{', lambda n: _KEY % n, b"}}"),
        "infer a long shape": fill(size, long_shape, b"1", b"]}]}"),
        "infer list of integers": tensor(size, b"n", b"INT64", item=b"12"),
        "generate repeated keys beside [{},{},…]": fill(size, b'{"prompt":"a","prompt":"b","zz":[', b"{}", b"]}"),
        "generate a text": b'{"prompt":%b}' % value,
    }


async def longest_gap(work: Callable[[], Awaitable[Any]]) -> tuple[float, float, str]:
    """Return the longest time between two steps of a coroutine beside `work`, the time of `work`, and its outcome."""
    longest = 0.0
    is_over = False

    async def probe() -> None:
        nonlocal longest
        last = time.perf_counter()
        while not is_over:
            await asyncio.sleep(STEP)
            now = time.perf_counter()
            longest = max(longest, now - last - STEP)
            last = now

    task = asyncio.ensure_future(probe())
    await asyncio.sleep(0.02)
    longest, begin = 0.0, time.perf_counter()
    try:
        outcome = await work()
    except GeartrainError as error:
        outcome = error.message
    took = time.perf_counter() - begin
    await asyncio.sleep(0.02)
    is_over = True
    await task
    return longest, took, str(outcome)[:70]


def no_region(*_: object) -> bytes:
    """Stand for shared memory, of which there is none."""
    return b""


def interface_of(signature: Signature) -> Interface:
    """Return the interface of a model of this signature."""
    return Interface(WorkerInfo(signature, slots=1, is_async=False, has_healthcheck=False))


INTERFACES: Final = {"cog": COG, "infer": INFER, "generate": GENERATE}


async def read_directly(protocol: str, body: bytes, interface: Interface) -> str:
    """Read a body on the loop."""
    if protocol == "cog":
        errors = interface.validator.check(cog.input_of(cog.read_request(body)))
        return errors[0].msg if errors else "accepted"
    if protocol == "generate":
        generate.read_request(body, interface.signature, interface.view)
        return "accepted"
    request, _ = open_inference.read_request(body, None, interface.view, fetch=no_region)
    interface.view.bind(request.inputs)
    return "accepted"


async def read_large(bodies: Any, protocol: str, body: bytes, interface: Interface) -> str:
    """Read a body as a server reads a large one."""
    if protocol == "cog":
        checked = (await bodies.read_cog(body, interface)).checked
    elif protocol == "generate":
        checked = (await bodies.read_generate(body, interface)).checked
    else:
        checked = (await bodies.read_infer(body, None, interface, fetch=no_region)).checked
    return checked.errors[0].msg if checked is not None and checked.errors else "accepted"


async def measure(sizes: list[str], *, direct: bool, only: str) -> None:
    """Print a row for each body."""
    tensor_json.load_arrays()
    interfaces = {protocol: interface_of(signature) for protocol, signature in INTERFACES.items()}
    bodies: Any = None
    if not direct:
        from geartrain.transport.large_bodies import LargeBodies

        bodies = LargeBodies()
        warm = b'{"input":{"s":"%b"}}' % (b"a" * (2 << 20))
        await asyncio.gather(*(bodies.read_cog(warm, interfaces["cog"]) for _ in range(2)))
    print(f"{'body':44}{'size':>8}{'longest hold':>15}{'answered in':>14}  answer")
    for size in sizes:
        for name, body in attacks(SIZES[size]).items():
            if only not in name:
                continue
            protocol = name.partition(" ")[0]
            is_packed = SIZES[size] >= INFLATED and not direct
            packed = gzip.compress(body, 1) if is_packed else body
            del body

            async def work(packed: bytes, protocol: str, *, is_packed: bool) -> str:
                interface = interfaces[protocol]
                body = await inflate(packed, "gzip", INFLATED) if is_packed else packed
                if direct or len(body) <= SIZES["64KiB"]:
                    return await read_directly(protocol, body, interface)
                return await read_large(bodies, protocol, body, interface)

            longest, took, outcome = await longest_gap(partial(work, packed, protocol, is_packed=is_packed))
            print(f"{name:44}{size:>8}{longest * 1e3:12.1f} ms{took * 1e3:11.0f} ms  {outcome}", flush=True)
    if bodies is not None:
        bodies.close()


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["64KiB", "5MB", "100MiB"])
    parser.add_argument("--direct", action="store_true", help="read every body on the loop")
    parser.add_argument("--only", default="", help="a part of the name of a body")
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.sizes, direct=arguments.direct, only=arguments.only))


if __name__ == "__main__":
    main()
