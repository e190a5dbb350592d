"""Examples of inputs in the files of models of other servers, as inputs of Cog's API: bodies of requests.

An example that cannot be read is passed over, with a sentence for the operator: the model needs none.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from geartrain.project.foreign.config_files import TRUSS_CONFIG, decode_yaml, read_small

_MLMODEL: Final = "MLmodel"
_MLFLOW_INFO: Final = "saved_input_example_info"
_TRUSS_EXAMPLES: Final = "examples.yaml"
_CARD: Final = "README.md"
_FENCE: Final = "---"
_MOST: Final = 10
"""Examples of a model: a page has them in a row."""

_encode: Final = msgspec.json.Encoder().encode


class OwnExamples(NamedTuple):
    """Examples of a model, each a JSON object in UTF-8, and sentences about those that are passed over."""

    inputs: tuple[bytes, ...] = ()
    remarks: tuple[str, ...] = ()


class _PassedOverError(Exception):
    """An example cannot be shown; the message names it and says why."""


def examples_of(path: pathlib.Path, backend: str) -> OwnExamples:
    """Read the examples of a model at a path: a folder, or a file in it."""
    reader = _READERS.get(backend)
    if reader is None:
        return OwnExamples()
    found: list[bytes] = []
    folder = path if path.is_dir() else path.parent
    try:
        for body in reader(folder):
            found.append(_input_of(body))
            if len(found) == _MOST:
                break
    except _PassedOverError as error:
        return OwnExamples(tuple(found), (f"{error}; it is not shown",))
    return OwnExamples(tuple(found))


def _input_of(body: Any) -> bytes:
    """Return the input with a body: a text would stand for itself, and so it is sent as JSON."""
    if isinstance(body, str):
        return _encode({"body": _encode(body).decode(), "content_type": "application/json"})
    return _encode({"body": body})


def _mlflow(folder: pathlib.Path) -> Iterator[Any]:
    """Yield the body that MLflow has saved for its server, or that of the example beside it."""
    try:
        text = read_small(folder / _MLMODEL)
        info = decode_yaml(text)[_MLFLOW_INFO] if _MLFLOW_INFO.encode() in text else None
    except (OSError, ValueError, TypeError, KeyError):  # the worker says what is wrong with the file
        return
    if not isinstance(info, dict):
        return
    serving = info.get("serving_input_path")
    if serving is not None:
        yield _json_of(folder, serving)
        return
    name, kind = info.get("artifact_path"), str(info.get("type"))
    data: Any = _json_of(folder, name)
    params: Any = None
    if kind not in {"dataframe", "ndarray", "json_object"}:
        raise _PassedOverError(f"{name}: an example of the type {kind} has no body")
    if info.get("params"):
        if not isinstance(data, dict):
            raise _PassedOverError(f"{name}: it has no `inputs` and `params`")
        data, params = data.get("inputs"), data.get("params")
    if kind == "dataframe":
        body = {"dataframe_split": data}
    elif isinstance(data, dict) and ("messages" in data or "inputs" in data):
        body = data  # a chat, or in the form of TensorFlow Serving, which older versions wrote
    else:
        body = {"inputs": data}
    yield body if params is None else {**body, "params": params}


def _json_of(folder: pathlib.Path, name: object) -> Any:
    """Decode a file in the folder of a model. Raises `_PassedOverError`."""
    try:
        return msgspec.json.decode(read_small(folder / str(name)))
    except (OSError, ValueError, RecursionError) as error:
        raise _PassedOverError(f"{name}: the example cannot be read: {_reason(error)}") from None


def _truss(folder: pathlib.Path) -> Iterator[Any]:
    """Yield the input of the metadata, and those of the file of examples."""
    try:
        config = decode_yaml(read_small(folder / TRUSS_CONFIG))
    except (OSError, ValueError):  # the worker says what is wrong with the file
        return
    metadata = config.get("model_metadata") if isinstance(config, dict) else None
    if isinstance(metadata, dict) and "example_model_input" in metadata:
        yield _plain(metadata["example_model_input"], f"{TRUSS_CONFIG}: example_model_input")
    name = str(config.get("examples_filename", _TRUSS_EXAMPLES)) if isinstance(config, dict) else _TRUSS_EXAMPLES
    if not (folder / name).is_file():
        return
    try:
        listed = decode_yaml(read_small(folder / name))
    except (OSError, ValueError) as error:
        raise _PassedOverError(f"{name}: it cannot be read: {_reason(error)}") from None
    for index, each in enumerate(listed if isinstance(listed, list) else [listed]):
        if not isinstance(each, dict) or "input" not in each:
            raise _PassedOverError(f"{name}: example {index + 1} has no `input`")
        yield _plain(each["input"], f"{name}: example {index + 1}")


def _hugging_face(folder: pathlib.Path) -> Iterator[Any]:
    """Yield the texts of the widget in the model card, in the body that the Hub would send."""
    try:
        head, fence, _ = read_small(folder / _CARD).decode().removeprefix(f"{_FENCE}\n").partition(f"\n{_FENCE}\n")
        card = decode_yaml(head.encode()) if fence and "widget" in head else None
    except (OSError, ValueError):  # a page for people, which need not be there
        return
    listed = card.get("widget") if isinstance(card, dict) else None
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict) and isinstance(each.get("text"), str) and "context" not in each:
            yield {"inputs": each["text"]}


def _plain(value: Any, place: str) -> Any:
    """Return a value of YAML as it is in JSON, where dates are texts. Raises `_PassedOverError`."""
    try:
        return msgspec.json.decode(_encode(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise _PassedOverError(f"{place}: it is no JSON: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


_READERS: Final[Mapping[str, Callable[[pathlib.Path], Iterator[Any]]]] = {
    "mlflow": _mlflow,
    "truss": _truss,
    "huggingface": _hugging_face,
}
