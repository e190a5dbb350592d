"""Makes the Python code of the gRPC protocols, and of the files of others, from their descriptions: `make proto`.

It needs grpcio-tools, and no network.

What protoc writes registers its messages in the one pool that a process has by default. A client's package that brings
messages of the same names, such as tritonclient or kserve, could then not be imported beside ours: so ours get a pool
of their own, each file one.
"""

from __future__ import annotations

import importlib.resources
import pathlib
import re
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[1] / "src"
FOLDER = pathlib.Path("geartrain/transport/grpc")
PROTOS = (
    *(FOLDER / f"{name}.proto" for name in ("health", "open_inference", "reflection", "torchserve")),
    pathlib.Path("geartrain/project/foreign/model_config.proto"),
)
MODULES = tuple(path.with_name(f"{path.stem}_pb2.py") for path in PROTOS)

_DEFAULT_POOL = "_descriptor_pool.Default()"
_OWN_POOL = "_descriptor_pool.DescriptorPool()"
# protoc writes of a mapping no more than that it is one, and has `**kwargs` where a field is called as a keyword is.
_LENIENT = '# mypy: disable-error-code="type-arg,no-untyped-def"'


def render() -> dict[pathlib.Path, str]:
    """Return the text of each file to be made, by its path below `SOURCE`."""
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as made:
        bundled = importlib.resources.files("grpc_tools") / "_proto"
        words = ["protoc", f"-I{SOURCE}", f"-I{bundled}", f"--python_out={made}", f"--pyi_out={made}"]
        if protoc.main([*words, *map(str, PROTOS)]):
            raise SystemExit("protoc failed; it has said why")
        paths = [path.with_suffix(suffix) for path in MODULES for suffix in (".py", ".pyi")]
        texts = {path: (pathlib.Path(made) / path).read_text() for path in paths}
    return {path: _stub(text) if path.suffix == ".pyi" else _code(text) for path, text in texts.items()}


def _code(text: str) -> str:
    if text.count(_DEFAULT_POOL) != 1:
        raise SystemExit(f"protoc no longer writes {_DEFAULT_POOL} once: look at how it registers messages now")
    # Which release of protoc made it is of no use to a reader; what it needs at run time is checked by the code itself.
    return re.sub(r"\n{3,}", "\n\n", text.replace(_DEFAULT_POOL, _OWN_POOL))


def _stub(text: str) -> str:
    return f"{_LENIENT}\n{text}"


def main() -> None:
    """Write what `render` returns."""
    for path, text in render().items():
        (SOURCE / path).write_text(text)
        print(f"made {path}")


if __name__ == "__main__":
    main()
