"""Makes the Python code of the gRPC protocol from its description: `make proto`. Needs grpcio-tools, and no network.

What protoc writes registers its messages in the one pool that a process has by default. A client's package that brings
messages of the same names, such as tritonclient or kserve, could then not be imported beside ours: so ours get a pool
of their own.
"""

from __future__ import annotations

import importlib.resources
import pathlib
import re
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[1] / "src"
FOLDER = pathlib.Path("geartrain/transport/grpc")
PROTO = FOLDER / "open_inference.proto"
MADE = (FOLDER / "open_inference_pb2.py", FOLDER / "open_inference_pb2.pyi")

_DEFAULT_POOL = "_descriptor_pool.Default()"
_OWN_POOL = "_descriptor_pool.DescriptorPool()"
_LENIENT = '# mypy: disable-error-code="type-arg"'  # protoc writes of a mapping no more than that it is one


def render() -> dict[pathlib.Path, str]:
    """Return the text of each file to be made, by its path below `SOURCE`."""
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as made:
        bundled = importlib.resources.files("grpc_tools") / "_proto"
        words = ["protoc", f"-I{SOURCE}", f"-I{bundled}", f"--python_out={made}", f"--pyi_out={made}", str(PROTO)]
        if protoc.main(words):
            raise SystemExit("protoc failed; it has said why")
        texts = {path: (pathlib.Path(made) / path).read_text() for path in MADE}
    code = texts[MADE[0]]
    if code.count(_DEFAULT_POOL) != 1:
        raise SystemExit(f"protoc no longer writes {_DEFAULT_POOL} once: look at how it registers messages now")
    # Which release of protoc made it is of no use to a reader; what it needs at run time is checked by the code itself.
    texts[MADE[0]] = re.sub(r"\n{3,}", "\n\n", code.replace(_DEFAULT_POOL, _OWN_POOL))
    texts[MADE[1]] = f"{_LENIENT}\n{texts[MADE[1]]}"
    return texts


def main() -> None:
    """Write what `render` returns."""
    for path, text in render().items():
        (SOURCE / path).write_text(text)
        print(f"made {path}")


if __name__ == "__main__":
    main()
