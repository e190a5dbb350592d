"""A handler of TorchServe: `initialize(context)` and `handle(data, context)`, in a `.mar` or in a folder.

The real package is used where it is installed, but for its context and for what sends a piece of a stream.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import importlib.util
import inspect
import io
import itertools
import json
import os
import queue
import shutil
import sys
import tempfile
import threading
import time
import traceback
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import copy_context
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import orjson

from geartrain.authoring.devices import own_device
from geartrain.authoring.requests import BINARY_TYPE, JSON_TYPE, TEXT_TYPE, Request, Response, is_json
from geartrain.worker.errors import ClientError
from geartrain.worker.loading.scripts import torchserve_names as names
from geartrain.worker.loading.scripts.answers import plain
from geartrain.worker.loading.scripts.finder import after_import, stand_in
from geartrain.worker.loading.scripts.script import FormFile, Place, Script, leaves, read_fields, read_form, tell

_HANDLERS: Final = "ts.torch_handler"
MANIFEST: Final = "MAR-INF/MANIFEST.json"
_CONFIG: Final = "model-config.yaml"
_MOST_FILES: Final = 20_000
_MOST_BYTES: Final = 1024**3  # of an archive of any size; a larger one unpacks to 50 times its own
_RATIO: Final = 50
_UNPACKED: Final = "geartrain-mar-"  # names of the folders
_NEW: Final = 60.0  # seconds in which a folder may not have its lock yet
_DEFAULTS: Final = {
    "base_handler": "BaseHandler",
    "vision_handler": "VisionHandler",
    "image_classifier": "ImageClassifier",
    "image_segmenter": "ImageSegmenter",
    "object_detector": "ObjectDetector",
}
_WEIGHTS: Final = (".pt", ".pth", ".onnx", ".bin", ".safetensors")
_MOST_PIECES: Final = 256  # of a stream that wait for their way to the client; then the handler waits
_EMPTY: Final = "handler.py"
_OUT_OF_MEMORY: Final = "OutOfMemoryError"  # of torch
_NO_ROOM: Final = 507
_PREDICTIONS: Final = "/predictions/"
_LEAVING: Final = 10.0  # seconds for a handler whose client has left
_SENDS: Final = "send_intermediate_predict_response"
_CRITERIA: Final = "stopping_criteria"


class _Archive(NamedTuple):
    """Contents of an archive, or of a folder that could become one.

    Attributes:
        folder: with its files.
        handler: as the manifest calls it: a file, `file:function`, or the name of one of TorchServe's.
        manifest: as handlers read it.
        config: that of the model.
    """

    folder: Path
    handler: str
    manifest: dict[str, Any]
    config: dict[str, Any]


class TorchServeHandler(Script):
    """A handler and its model."""

    @classmethod
    def find(cls, path: Path) -> Place:
        """Find the handler in an archive, which is unpacked, or in a folder. Raises `ValueError`."""
        if path.is_file() and path.suffix == ".mar":
            path = _unpacked(path)
        if path.is_file():
            return Place(path, path.parent)
        archive = _read(path)
        name = Path(archive.handler.partition(":")[0]).name.removesuffix(".py")
        file = path / f"{name}.py"
        if not file.is_file() and name not in _DEFAULTS and not _is_installed(f"{_HANDLERS}.{name}"):
            raise ValueError(
                f"the handler {name!r} of the manifest is not in it, and is none of {', '.join(_DEFAULTS)}: install"
                " the package `torchserve` for its other handlers, or add a file that is derived from BaseHandler"
            )
        return Place(file, path)

    @classmethod
    def prepare(cls, _place: Place) -> None:
        """Put `ts` in place where it is not installed."""
        own = names.__name__
        torch = "geartrain.worker.loading.scripts.torch_handlers"
        plain_modules = ("ts", "ts.context", "ts.utils.util", "ts.handler_utils.timer", "ts.handler_utils.utils")
        more = ("ts.protocol.otf_message_handler", "ts.metrics.metric_type_enum", "ts.metrics.dimension", "ts.service")
        is_missing = stand_in({**dict.fromkeys((*plain_modules, *more), own)})
        if is_missing:
            stand_in({f"{_HANDLERS}.{name}": torch for name in _DEFAULTS})
            return
        for module in ("ts.handler_utils.utils", "ts.protocol.otf_message_handler"):
            after_import(module, _send_here)

    @classmethod
    def reference(cls, place: Place) -> tuple[str, Path]:
        """Return the file of the handler, or the module of one of TorchServe's own."""
        if place.file.is_file():
            return super().reference(place)
        return f"{_HANDLERS}.{place.file.stem}", place.folder

    def __init__(self, module: ModuleType, place: Place, options: Mapping[str, Any]) -> None:
        """Raises `ValueError` for a module without a handler."""
        super().__init__(module, place, options)
        self._archive = _read(place.folder, place.file)
        config = self._archive.config
        size = _whole(config, "batchSize", 1)
        device = own_device()
        self._context = names.Context(
            str(self._archive.manifest["model"].get("modelName") or place.folder.name),
            str(place.folder),
            self._archive.manifest,
            batch_size=size,
            gpu=int(device.partition(":")[2] or 0) if device.startswith("cuda") else None,
            model_yaml_config=config,
        )
        function = self._archive.handler.partition(":")[2] or "handle"
        self._initialize, self._handle = _entry(module, function, place)
        if _sends(module):
            self.run = self._run_stream
            if size > 1:
                tell(f"batchSize={size} has no effect: a handler that sends pieces gets one request at a time")
        elif size > 1:
            self.run = self._call
            self.batching = {"max_size": size, "max_delay": _whole(config, "maxBatchDelay", 100) / 1e3}
        else:
            self.run = self._run_one

    def setup(self) -> None:
        """Call `initialize(context)`."""
        self._initialize(self._context)

    def _run_one(self, request: Request) -> Response:
        try:
            (answer,) = self._call([request])
        except Exception as error:
            if not _is_out_of_memory(error):
                raise
            return _no_room(error)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _call(self, requests: list[Request]) -> list[Response | Exception]:
        """Answer requests with one call of the handler."""
        answers: list[Response | Exception] = [Response()] * len(requests)
        taken: list[int] = []
        data: list[dict[str, Any]] = []
        for place, request in enumerate(requests):
            try:
                data.append(_data(request))
                taken.append(place)
            except ClientError as error:
                answers[place] = error
        if not taken:
            return answers
        context = self._begin([requests[place] for place in taken])
        try:
            outputs = self.outputs(data, context)
        except names.PredictionException as error:
            refused = _fault(error.error_code, error.message)
            for place in taken:
                answers[place] = refused
            return answers
        for number, place in enumerate(taken):
            try:
                answers[place] = _answer(outputs[number], context, number)
            except (TypeError, ValueError) as error:
                answers[place] = error
        return answers

    def _begin(self, requests: list[Request]) -> names.Context:
        """Have the context be about these requests."""
        context = self._context
        context.request_ids = {number: os.urandom(16).hex() for number in range(len(requests))}
        context.request_processor = [
            names.RequestProcessor({**each.headers, "content-type": each.content_type, "accept": each.accept})
            for each in requests
        ]
        return context

    def outputs(self, data: list[dict[str, Any]], context: names.Context) -> list[Any]:
        """Call the handler. Raises what it raises, and `ValueError` for something other than a list of as many."""
        try:
            outputs = self._handle(data, context)
        except Exception as error:
            code, message = getattr(error, "error_code", None), getattr(error, "message", None)
            if isinstance(error, names.PredictionException) or not isinstance(code, int):
                raise
            raise names.PredictionException(str(message), code) from error  # that of the real package
        if not isinstance(outputs, list):
            raise ValueError(f"handle() has returned {type(outputs).__name__}; it returns a list")  # noqa: TRY004
        if len(outputs) != len(data):
            raise ValueError(f"handle() has returned {len(outputs)} outputs for {len(data)} requests")
        return outputs

    def _run_stream(self, request: Request) -> Response:
        context = self._begin([request])
        context.stopping_criteria = None
        pieces = _Pieces(self, context, _data(request)).read()
        try:
            first = next(pieces, b"")  # by then the handler has set the head
        except names.PredictionException as error:
            return _fault(error.error_code, error.message)
        except Exception as error:
            if not _is_out_of_memory(error):
                raise
            return _no_room(error)
        kind, headers = _head(context, 0)
        content = itertools.chain((first,), pieces)
        return Response(content, kind or TEXT_TYPE, status=context.request_processor[0].status, headers=headers)


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or type(error).__name__ == _OUT_OF_MEMORY


def _no_room(error: Exception) -> Response:
    """Make the answer for want of memory."""
    traceback.print_exception(error)
    return _fault(_NO_ROOM, "Out of resources")


class _Pieces:
    """The pieces of an answer whose handler runs in a thread of its own."""

    def __init__(self, handler: TorchServeHandler, context: names.Context, data: dict[str, Any]) -> None:
        self._handler = handler
        self._context = context
        self._data = data
        self._pieces: queue.Queue[Any] = queue.Queue(_MOST_PIECES)
        self._has_left = False

    def read(self) -> Iterator[bytes]:
        """Start the handler, and yield its pieces; raise what it raises. It is stopped when the reader leaves."""
        thread = threading.Thread(target=copy_context().run, args=(self._work,), name="geartrain-handler", daemon=True)
        thread.start()
        try:
            while (piece := self._pieces.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            self._has_left = True
            thread.join(_LEAVING)  # it shares the context with the next request

    def _work(self) -> None:
        self._context.send = lambda ret: self._put(_content(ret[0]))
        end: tuple[Any, ...]
        try:
            (last,) = self._handler.outputs([self._data], self._context)
            while not self._is_last(last):
                self._put(_content(last))
                (last,) = self._handler.outputs([{}], self._context)  # it knows the request by its id
            end = (_content(last), None)
        except BaseException as error:  # noqa: BLE001 - it is raised where the pieces are read
            end = (error,)
        finally:
            self._context.send = None  # the context stays, and would keep this request
        with contextlib.suppress(ConnectionAbortedError):
            for each in end:
                self._put(each)

    def _is_last(self, output: Any) -> bool:
        """True if `context.stopping_criteria` does not want the handler to be called again for the request."""
        criteria = self._context.stopping_criteria
        return not criteria or criteria[0](output) is not False

    def _put(self, piece: Any) -> None:
        while not self._has_left:
            with contextlib.suppress(queue.Full):
                self._pieces.put(piece, timeout=1)
                return
        raise ConnectionAbortedError("the client has left")


def _send_here(module: ModuleType) -> None:
    """Have a module of the real package send its pieces here."""
    if hasattr(module, _SENDS):
        setattr(module, _SENDS, names.send_intermediate_predict_response)


def _sends(module: ModuleType) -> bool:
    """True if a module sends pieces of a stream, or is called again until a request has all of them."""
    try:
        text = Path(module.__dict__.get("__file__") or "").read_text(errors="replace")
    except OSError:
        return False
    return _SENDS in text or _CRITERIA in text


def _is_installed(module: str) -> bool:
    """True if there is such a module in an installed package."""
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


# archives and folders


def _unpacked(path: Path) -> Path:
    """Unpack a `.mar` into a folder that goes with the process. Raises `ValueError` for a wrong one."""
    _remove_left()
    folder = Path(tempfile.mkdtemp(prefix=_UNPACKED))
    fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX)  # until the end of the process, however it comes
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            most = max(_MOST_BYTES, _RATIO * path.stat().st_size)
            if len(members) > _MOST_FILES or sum(each.file_size for each in members) > most:
                raise ValueError(f"it unpacks to more than {_MOST_FILES} files, or {_RATIO} times its size")
            archive.extractall(folder)  # names that leave the folder lose their dots; links become plain files
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:  # the last: it is encrypted
        raise ValueError(f"it cannot be unpacked: {error}") from error
    return folder


def _remove_left() -> None:
    """Remove the folders of processes that were killed, and could not."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_UNPACKED}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime < _NEW:
                continue
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def _read(folder: Path, file: Path | None = None) -> _Archive:
    """Read the manifest of a folder; one is made up for a folder without. Raises `ValueError`."""
    manifest: dict[str, Any] = {}
    if (folder / MANIFEST).is_file():
        try:
            manifest = dict(json.loads((folder / MANIFEST).read_bytes()))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{MANIFEST} is no JSON: {error}") from None
    model: Any = manifest.setdefault("model", {})
    if not isinstance(model, dict):
        raise ValueError(f"{MANIFEST}: `model` is an object")  # noqa: TRY004 - of a file
    if not model:
        model.update(_made_up(folder))
    handler = file.name if file is not None and "handler" not in model else str(model.get("handler", _EMPTY))
    config = folder / str(model.get("configFile") or _CONFIG)
    try:
        read = names.get_yaml_config(str(config)) if config.is_file() else {}
    except Exception as error:
        raise ValueError(f"{config.name}: {error}") from error
    return _Archive(folder, handler, manifest, read)


def _made_up(folder: Path) -> dict[str, Any]:
    """The part of a manifest about the model, for a folder that has not been made into an archive."""
    weights = sorted(each.name for each in folder.iterdir() if each.suffix in _WEIGHTS)
    found: dict[str, Any] = {"modelName": folder.name, "modelVersion": "1.0"}
    if weights:
        found["serializedFile"] = weights[0]
    if (folder / "model.py").is_file() and weights and not weights[0].endswith(".onnx"):
        found["modelFile"] = "model.py"
    return found


def _whole(config: Mapping[str, Any], name: str, default: int) -> int:
    value = config.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{_CONFIG}: `{name}` is {value!r}; it is a whole number")
    return value


def _entry(module: ModuleType, function: str, place: Place) -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]:
    """Return the functions of a module that load the model, and that answer. Raises `ValueError`."""
    found = getattr(module, function, None)
    if callable(found):
        return (lambda context: found(None, context)), found
    own = names.list_classes_from_module(module)
    if not own and not place.file.is_file():  # geartrain stands in for the module
        own = [getattr(module, _DEFAULTS[place.file.stem])]
    classes = leaves(each for each in own if callable(getattr(each, "handle", None)))
    if len(classes) != 1:
        names_of = ", ".join(each.__name__ for each in classes)
        raise ValueError(
            f"it has no function {function}(data, context), and {names_of or 'no class'} with a method handle(data,"
            " context); keep one"
        )
    handler: Any = classes[0]()
    if inspect.iscoroutinefunction(handler.handle):
        raise ValueError(f"{classes[0].__name__}.handle() is async, as TorchServe's handlers of vLLM: it is not served")
    return getattr(handler, "initialize", lambda _context: None), handler.handle


# requests and answers


def _data(request: Request) -> dict[str, Any]:
    """Return the item of `data` for a request: its fields, or its body. Raises `ClientError`.

    Bytes are a `bytearray`, which some handlers require. TorchServe passes over a query at its own paths.
    """
    found: dict[str, Any] = {}
    if request.query and not request.path.startswith(_PREDICTIONS):
        found = {name: bytearray(value.encode()) for name, value in request.parameters.items()}
    kind = request.media_type
    if kind == "multipart/form-data":
        parts = read_form(request)
        return found | {
            key: _decoded(each.body, each.content_type) if isinstance(each, FormFile) else bytearray(each)
            for key, each in parts.items()
        }
    if kind == "application/x-www-form-urlencoded":
        return found | {key: bytearray(value.encode()) for key, value in read_fields(request).items()}
    return {**found, "body": _decoded(request.body, kind)}


def _decoded(body: bytes, media_type: str) -> Any:
    """Decode JSON and text, as TorchServe does: bytes that cannot be decoded stay as they are."""
    with contextlib.suppress(ValueError, RecursionError):
        if os.environ.get("TS_DECODE_INPUT_REQUEST", "true") != "true":
            return bytearray(body)
        if is_json(media_type):
            return json.loads(body)
        if media_type.startswith("text"):
            return body.decode()
    return bytearray(body)


def _answer(value: Any, context: names.Context, number: int) -> Response:
    """Make the response of one output, with the head that the handler has set."""
    kind, headers = _head(context, number)
    is_plain = isinstance(value, (bytes, bytearray)) or _is_tensor(value)
    kind = kind or (BINARY_TYPE if is_plain else TEXT_TYPE if isinstance(value, str) else JSON_TYPE)
    return Response(_content(value), kind, status=context.request_processor[number].status, headers=headers)


def _head(context: names.Context, number: int) -> tuple[str, dict[str, str]]:
    """Return the content type that the handler has set, empty without one, and the other header fields."""
    fields = {name.lower(): str(each) for name, each in context.request_processor[number].response.items()}
    return fields.pop("content-type", ""), fields


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _content(value: Any) -> bytes:
    """Write an output: bytes and texts as they are, a tensor as torch saves it, anything else as JSON."""
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    if _is_tensor(value):
        buffer = io.BytesIO()
        sys.modules["torch"].save(value, buffer)
        return buffer.getvalue()
    found = plain(value)
    try:
        return orjson.dumps(found, option=orjson.OPT_INDENT_2)
    except TypeError:  # such as a number of more than 64 bits
        return json.dumps(found, indent=2).encode()


def _fault(code: int, message: str) -> Response:
    """Make the answer to an error as TorchServe does."""
    fault = {"code": code, "type": "InternalServerException", "message": message}
    body = f"{json.dumps(fault, indent=2, ensure_ascii=False)}\n".encode(errors="replace")
    return Response(body, JSON_TYPE, status=code if code in range(200, 600) else 500)
