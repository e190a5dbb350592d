"""Bodies that take long to read, read where they do not hold up the event loop.

What is at most `runs.DIRECT_LIMIT` bytes is read on the loop by the functions of `apis`: no such body takes long. Up to
`IN_A_THREAD` bytes a thread does it, in which no single call of a library takes long either. With tensors of numbers
that holds up to `NUMBERS_IN_A_THREAD` bytes, and with few values up to `FEW_IN_A_THREAD`. Anything larger is read by
another process, see `body_process`. What comes of it is the same in each case.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import mmap
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

import msgspec

from geartrain.apis import cog, generate, json_limits, open_inference
from geartrain.apis.generate import GenerateRequest
from geartrain.apis.infer_json import RequestJson
from geartrain.apis.open_inference import Fetch, OutputForms
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.inference import InferRequest
from geartrain.domain.signature.tensor_view import Bound, TensorView
from geartrain.domain.tensors.tensor import Buffer, Tensor
from geartrain.outbound.references import FileReferences
from geartrain.service.models.admission import BoundInput, CheckedInput, Interface, without_secrets
from geartrain.transport import body_messages
from geartrain.transport.body_messages import MARK, PIECE, Job, Result, SentTensor, as_text
from geartrain.transport.runs import DIRECT_LIMIT

if TYPE_CHECKING:
    from geartrain.apis.openai.embeddings import Embeddings
    from geartrain.apis.openai.shapes import Shape
    from geartrain.transport.held_texts import HeldBody
    from geartrain.transport.held_urls import HeldBodies

IN_A_THREAD: Final = 262_144
NUMBERS_IN_A_THREAD: Final = 2_097_152  # bytes of tensors that are numbers: a native parser reads them
FEW_ON_THE_LOOP: Final = 1_048_576  # bytes of a body that has few values: a text, or a file as a data: URL
FEW_IN_A_THREAD: Final = 12_582_912
_SIGNS: Final = b'",[{'
_FEW: Final = 20_000  # of these signs; a body of many values has more
_COUNTED: Final = frozenset({"cog", "generate"})  # of these kinds of bodies
PROCESSES: Final = 2
_PATIENCE: Final = 60.0  # seconds for one body

P = ParamSpec("P")
T = TypeVar("T")
_Parts = list[Any]  # of buffers, texts and None; emptied where they are used up: to give memory back takes time, too

_decode_result = msgspec.msgpack.Decoder(Result).decode
_decode_head = msgspec.json.Decoder(cog.PredictionRequest).decode
_decode_request = msgspec.json.Decoder(RequestJson).decode
_decode_asked = msgspec.json.Decoder(tuple[str, dict[str, str | int | float | bool], list[SentTensor] | None]).decode
_decode_tensors = msgspec.json.Decoder(list[SentTensor]).decode
_decode_names = msgspec.json.Decoder(frozenset[str]).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class CogBody(msgspec.Struct, frozen=True):
    """A request of Cog's API: its input is as in the body, and has been checked. `request.input` stands for nothing."""

    request: cog.PredictionRequest
    input: bytes
    checked: CheckedInput


class InferBody(msgspec.Struct, frozen=True):
    """An infer request with the model's input. `checked` is None if its input is short enough to be checked later."""

    request: InferRequest
    forms: OutputForms
    bound: Bound
    checked: CheckedInput | None


class GenerateBody(msgspec.Struct, frozen=True):
    """A generate request, whose input has been checked."""

    request: GenerateRequest
    checked: CheckedInput


async def read_aside(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call what takes long in a thread. No single step of it may be long that keeps the interpreter for itself."""
    return await asyncio.to_thread(function, *args, **kwargs)


class LargeBodies:
    """Reads large bodies. Its processes start with the first ones, and end with `close`."""

    def __init__(self, *, max_elements: int = json_limits.MAX_ELEMENTS, max_file_bytes: int = 100 * 1024**2) -> None:
        """`max_elements`: the values that a JSON input may hold, beside those of tensors: `max_json_elements`.

        `max_file_bytes`: of a file that an input holds as a `data:` URL: `max_download_size`.
        """
        self._max_elements = max_elements
        self._max_file_bytes = max_file_bytes
        self._processes = _Processes("geartrain-body")
        self._shapes = _Processes("geartrain-shape")  # apart: the check of a shape may use up its whole time limit

    def close(self) -> None:
        """End the processes. Bodies that are being read are given up."""
        self._processes.close()
        self._shapes.close()

    async def read_cog(self, body: bytes | bytearray, interface: Interface) -> CogBody:
        """Read a body of Cog's API, and empty it. Raises `GeartrainError`; an input's faults are in `checked`."""
        if may_hold(interface):
            read = await read_aside(lambda: self._held(interface).read_cog(body))
            if read is not None:
                return CogBody(*read)
        result, parts = await self._read("cog", interface, (body,))
        return await read_aside(_cog_body, result, parts, body, interface=interface)

    def is_large(self, json: bytes) -> bool:
        """Return True if the input of a call by a model takes too long for the loop."""
        return not is_light(json)

    async def bind_nested(self, json: bytes, tensors: Sequence[Tensor] | None, interface: Interface) -> BoundInput:
        """Bind and check the input of a call by a model. Raises `GeartrainError`; other faults are in `checked`.

        It may have any number of values: it comes from the author's code, which has made them.
        """
        if tensors is not None or interface.view.has_tensors or interface.validator.file_fields:
            return await read_aside(_bind_nested, json, tensors, interface)
        body = b"".join((b'{"input":', json, b"}"))
        result, parts = await self._read("cog", interface, (body,), is_bounded=False)
        found = await read_aside(_cog_body, result, parts, body, interface=interface)
        return BoundInput(interface, found.input, None, found.checked)

    async def read_generate(self, body: bytes | bytearray, interface: Interface) -> GenerateBody:
        """Read a generate request. Raises `GeartrainError`; what is wrong with the input is in `checked`."""
        if may_hold(interface):
            read = await read_aside(lambda: self._held(interface).read_generate(body))
            if read is not None:
                return GenerateBody(*read)
        result, parts = await self._read("generate", interface, (body,))
        return await read_aside(_generate_body, result, parts, interface)

    def _held(self, interface: Interface) -> HeldBodies:
        from geartrain.transport.held_urls import HeldBodies  # late: few servers need it

        return HeldBodies(interface, max_elements=self._max_elements, max_file=self._max_file_bytes)

    async def read_infer(self, body: Buffer, json_size: int | None, interface: Interface, *, fetch: Fetch) -> InferBody:
        """Read an infer request, and make the model's input of it. See `open_inference.read_request`."""
        request, forms = await self._read_infer(body, json_size, interface, fetch=fetch)
        bound, checked = await self.bind(request, interface)
        return InferBody(request, forms, bound, checked)

    async def read_message(self, message: Buffer) -> tuple[bytes, list[Buffer]]:
        """Return a `ModelInferRequest` of gRPC without the contents of its tensors, and these. Raises `GeartrainError`.

        They are as raw contents: in the order of the inputs, of those that are not in shared memory.
        """
        job = Job("grpc", b"", self._max_elements, len(message))
        result, parts = _sound(await self._run_there(job, (message,)))
        return result.head, parts

    async def outputs(
        self, interface: Interface, pieces: Sequence[Buffer], *, is_whole: bool = True
    ) -> list[Tensor] | None:
        """Make the outputs of a run that is over of its pieces, or of one yield; None if it takes no time to make them.

        Raises `GeartrainError`.
        """
        if not interface.view.makes_outputs or sum(map(len, pieces)) <= DIRECT_LIMIT:
            return None
        result, parts = await self._write("outputs" if is_whole else "yielded", interface, pieces)
        sent = _decode_tensors(result.head)
        return [Tensor(one.name, one.datatype, one.shape, data) for one, data in zip(sent, parts, strict=True)]

    async def texts(self, outputs: Sequence[Tensor]) -> dict[str, Buffer]:
        """Write the contents of large outputs that are texts as JSON, by the names of the outputs.

        Raises `GeartrainError`.
        """
        texts: dict[str, Buffer] = {}
        for one in outputs:
            if one.datatype == "BYTES" and len(one.data) > IN_A_THREAD:
                sent = (SentTensor(one.name, one.datatype, one.shape, len(one.data)),)
                _, parts = _sound(await self._run_there(Job("text", b"", 0, len(one.data), sent), (one.data,)))
                texts[one.name] = parts[0]
        return texts

    async def generated(
        self, interface: Interface, pieces: Sequence[Buffer], asked: tuple[str, str, str], *, is_whole: bool = True
    ) -> Buffer:
        """Write the answer to a generate request, or one event of it.

        `asked`: name and version of the model, and id. Raises `GeartrainError`.
        """
        kind = "generated" if is_whole else "generated event"
        _, parts = await self._write(kind, interface, pieces, asked=asked)
        answer: Buffer = parts[0]
        return answer

    async def read_members(self, body: bytes | bytearray) -> dict[str, msgspec.Raw]:
        """Read the members of an unchecked body. Raises `GeartrainError`."""
        if len(body) <= IN_A_THREAD:
            return await read_aside(generate.read_members, body)
        _sound(await self._run_there(Job("members", b"", self._max_elements, len(body)), (body,)))
        return await read_aside(_decode_members, body)  # of a body without too many of them

    async def hold_texts(self, body: bytes | bytearray) -> HeldBody | None:
        """Read the members of an unchecked body, but for its long texts; None if it has to be read whole."""
        from geartrain.transport.held_texts import hold_texts  # late: few servers need it

        return await read_aside(hold_texts, body, self._max_elements)

    async def embeddings(self, interface: Interface, outputs: Sequence[Buffer], wanted: Embeddings) -> Buffer:
        """Write the answer to a request for embeddings. Raises `GeartrainError`."""
        asked = (msgspec.json.encode(wanted).decode(), "", "")
        _, parts = await self._write("embeddings", interface, outputs, asked=asked)
        answer: Buffer = parts[0]
        return answer

    async def _write(
        self, kind: str, interface: Interface, pieces: Sequence[Buffer], *, asked: tuple[str, str, str] = ("", "", "")
    ) -> tuple[Result, _Parts]:
        sizes = tuple(map(len, pieces))
        size = sum(sizes)
        job = Job(kind, msgspec.json.encode(interface.signature), 0, size, sizes=sizes, asked=asked)
        if size <= IN_A_THREAD:
            return _sound(await read_aside(_read_here, job, pieces))
        return _sound(await self._run_there(job, pieces))

    async def bind(self, request: InferRequest, interface: Interface) -> tuple[Bound, CheckedInput | None]:
        """Make the model's input of a request. Raises `GeartrainError`; what is wrong with the input is in the second.

        That is None if the input is short enough to be checked later.
        """
        view = interface.view
        tensors = request.inputs
        is_read = [_is_read(tensor, view) for tensor in tensors]
        size = sum(len(tensor.data) for tensor, each in zip(tensors, is_read, strict=True) if each)
        if size <= DIRECT_LIMIT:
            return view.bind(tensors), None
        sent = tuple(
            SentTensor(one.name, one.datatype, one.shape, len(one.data), each)
            for one, each in zip(tensors, is_read, strict=True)
        )
        contents = [tensor.data for tensor, each in zip(tensors, is_read, strict=True) if each]
        result, parts = await self._read("bind", interface, contents, tensors=sent)
        names = _decode_names(result.head)
        json, checked = await read_aside(_bound_json, result, parts, interface)
        return Bound(json, tuple(one for one in tensors if one.name in names)), checked

    async def _read_infer(
        self, body: Buffer, json_size: int | None, interface: Interface, *, fetch: Fetch
    ) -> tuple[InferRequest, OutputForms]:
        view = interface.view
        if json_size == 0:
            return await read_aside(open_inference.read_request, body, json_size, view, fetch=fetch)
        text, tail = open_inference.split_body(body, json_size)
        if len(text) <= DIRECT_LIMIT:
            return open_inference.read_request(body, json_size, view, fetch=fetch)
        result, parts = await self._read("infer", interface, (text,))
        data = [msgspec.UNSET if part is None else memoryview(part) for part in parts]
        return open_inference.assemble(_decode_request(result.head), data, tail, fetch=fetch)

    async def _read(
        self,
        kind: str,
        interface: Interface,
        parts: Sequence[Buffer],
        *,
        tensors: tuple[SentTensor, ...] = (),
        is_bounded: bool = True,
    ) -> tuple[Result, _Parts]:
        size = sum(map(len, parts))
        is_quick = _is_quick(kind, parts, size)
        is_counted = is_quick and kind in _COUNTED and self._max_elements > _FEW
        signature = msgspec.json.encode(interface.signature)
        max_elements = 0 if is_counted or not is_bounded else self._max_elements
        job = Job(kind, signature, max_elements, size, tensors, self._max_file_bytes)
        if size <= IN_A_THREAD or is_quick:
            return _sound(await read_aside(_read_here, job, parts))
        return _sound(await self._run_there(job, parts))

    async def _run_there(self, job: Job, parts: Sequence[Buffer]) -> tuple[Result, _Parts]:
        found = await self._processes.read(job, parts)
        if found is None:
            raise GeartrainError(Code.INTERNAL, "The process that reads large request bodies has ended.")
        return found

    async def check_shape(self, shape: Shape, text: str | None = None) -> None:
        """Hold a text against a shape that is heavy, or its schema alone against the rules of schemas.

        Raises `GeartrainError`, also if it takes more than a short time.
        """
        given = b"" if text is None else text.encode()
        what = "" if text is None else "text"
        job = Job("shape", shape.schema, 0, len(given), asked=(shape.name, what, ""))
        found = await self._shapes.read(job, (given,))
        if found is None:
            raise shape.too_heavy()
        if found[0].error is not None:
            from geartrain.apis.openai.errors import OpenAIError  # few servers need it

            code, message, _ = found[0].error
            raise OpenAIError(code, message, param=shape.name, kind=found[0].head.decode() or None)


class _Processes:
    """Processes that read bodies side by side. They start with the first ones, and end with `close`."""

    def __init__(self, name: str) -> None:
        self._threads = ThreadPoolExecutor(PROCESSES, thread_name_prefix=name)
        self._local = threading.local()
        self._all: set[_Process] = set()

    def close(self) -> None:
        """End the processes. Bodies that are being read are given up."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in tuple(self._all):
            process.stop()

    async def read(self, job: Job, parts: Sequence[Buffer]) -> tuple[Result, _Parts] | None:
        """Have a body read by the next process that is free; None if that ends meanwhile."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._read, job, parts)

    def _read(self, job: Job, parts: Sequence[Buffer]) -> tuple[Result, _Parts] | None:
        process: _Process | None = getattr(self._local, "process", None)
        if process is None:
            process = self._local.process = _Process()
            self._all.add(process)
        return process.read(job, parts)


def _sound(found: tuple[Result, _Parts]) -> tuple[Result, _Parts]:
    """Return the body that was read; raise the `GeartrainError` of one that is refused."""
    if found[0].error is not None:
        code, message, fields = found[0].error
        raise GeartrainError(code, message, fields=fields)
    return found


def may_hold(interface: Interface) -> bool:
    """True if a model's files may have URLs of any form, so that no payload has a part in the check of the input."""
    files = interface.validator.file_fields
    return bool(files) and all(
        field.choices is None and field.regex is None and field.min_length is None and field.max_length is None
        for field in interface.signature.inputs
        if field.name in files
    )


def is_light(body: bytes | bytearray) -> bool:
    """True if a body of Cog's API is read on the loop: a short one, or one of few values, such as a file."""
    return len(body) <= DIRECT_LIMIT or (len(body) <= FEW_ON_THE_LOOP and _has_few(body, _SIGNS))


def _is_quick(kind: str, parts: Sequence[Buffer], size: int) -> bool:
    """True if no step of reading takes long, though the bodies are large."""
    if kind == "infer":
        return size <= NUMBERS_IN_A_THREAD and all(_has_few(part, b'"') for part in parts)
    return kind != "bind" and size <= FEW_IN_A_THREAD and all(_has_few(part, _SIGNS) for part in parts)


def _has_few(body: Buffer, signs: bytes) -> bool:
    return json_limits.count_some(as_text(body), signs, _FEW) <= _FEW


def _read_here(job: Job, parts: Sequence[Buffer]) -> tuple[Result, _Parts]:
    from geartrain.apis import tensor_json
    from geartrain.transport import body_process  # late: it imports numpy

    if tensor_json.arrays() is None:
        tensor_json.load_arrays()
    result, found = body_process.read(job, parts[0] if len(parts) == 1 else b"".join(parts))
    return result, list(found)


class _Process:
    """A process that reads bodies, one at a time. Used by one thread; another one may stop it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    def read(self, job: Job, parts: Sequence[Buffer]) -> tuple[Result, _Parts] | None:
        """Have a body read; None if the process ends meanwhile: the next body finds another one."""
        try:
            received = self._exchange(job, parts)
        except OSError:
            received = None
        if received is None:
            self.stop()
            return None
        result: Result = _decode_result(received[0])
        return result, _cut(received[1], result.sizes)

    def stop(self) -> None:
        """End the process. Repeating it is harmless."""
        process, self._process = self._process, None
        channel, self._channel = self._channel, None
        if channel is not None:
            with contextlib.suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits
            channel.close()
        if process is not None:
            process.kill()
            process.wait()

    def _exchange(self, job: Job, parts: Sequence[Buffer]) -> tuple[bytes, memoryview] | None:
        if self._process is None or self._process.poll() is not None:
            self.stop()
            self._start()
        channel = self._channel
        if channel is None:
            return None
        body_messages.send(channel, job, parts)
        return body_messages.receive(channel)

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(_PATIENCE)
        with theirs:
            number = theirs.fileno()
            command = [sys.executable, "-P", "-m", "geartrain.transport.body_process", str(number)]
            self._process = subprocess.Popen(command, pass_fds=(number,), stdin=subprocess.DEVNULL)  # noqa: S603 - ours
        self._channel = ours


def _cut(memory: memoryview, sizes: Sequence[int]) -> _Parts:
    parts: _Parts = []
    for size in sizes:
        if size < 0:
            parts.append(None)
        else:
            parts.append(memory[:size])
            memory = memory[size:]
    return parts


def _is_read(tensor: Tensor, view: TensorView) -> bool:
    """True if the contents of a tensor are looked at, and not only counted."""
    return tensor.datatype == "BYTES" or view.is_converted(tensor.name)


# from results to requests, in a thread


def _cog_body(result: Result, parts: _Parts, body: Buffer, *, interface: Interface) -> CogBody:
    request = _decode_head(result.head)
    if parts[0] is None:
        begin, size = result.place
        raw = _bytes(memoryview(body)[begin : begin + size])
    else:
        raw = _bytes(parts[0])
    del parts[0]
    if isinstance(body, bytearray):
        body.clear()  # its callers keep it until this is done, and what follows takes memory, too
    return CogBody(request, raw, _checked(result, parts, interface))


def _bind_nested(json: bytes, tensors: Sequence[Tensor] | None, interface: Interface) -> BoundInput:
    """Bind an input in a thread. That of a model with files is checked later: they may be of this machine."""
    bound, passed = interface.view.bind_nested(json, tensors)
    if interface.validator.file_fields:
        return BoundInput(interface, bound, passed)
    validator = interface.validator if passed is None else interface.plain_validator
    errors = validator.check(bound)
    secrets = interface.validator.secret_fields
    echo = without_secrets(bound, secrets) if secrets and not errors else None
    return BoundInput(interface, bound, passed, CheckedInput(interface, errors, echo=echo))


def _generate_body(result: Result, parts: _Parts, interface: Interface) -> GenerateBody:
    own_id, parameters, sent = _decode_asked(result.head)
    request = InferRequest((), own_id, parameters)
    tensors = None
    count = len(sent or ())
    if sent is not None:
        tensors = tuple(Tensor(one.name, one.datatype, one.shape, parts[at] or b"") for at, one in enumerate(sent))
    values = _bytes(parts[count] or b"")
    del parts[: count + 1]
    return GenerateBody(GenerateRequest(values, tensors, request), _checked(result, parts, interface))


def _bound_json(result: Result, parts: _Parts, interface: Interface) -> tuple[bytes, CheckedInput]:
    json = _bytes(parts[0] or b"")
    del parts[0]
    return json, _checked(result, parts, interface)


def _checked(result: Result, parts: _Parts, interface: Interface) -> CheckedInput:
    """`parts`: the echo, and the long texts of the input."""
    if result.errors:
        return CheckedInput(interface, result.errors)
    echo = None if parts[0] is None else _bytes(parts[0])
    if result.values is None:
        return CheckedInput(interface, echo=echo)
    files = FileReferences(interface.signature)
    members: dict[str, Any] = dict(_decode_members(result.values))
    for name in interface.validator.file_fields:
        if name in members:
            members[name] = msgspec.json.decode(members[name])
    values, places = files.find(members)
    for place in places:
        if place.url.startswith(MARK):
            place.put(_text(parts[1 + int(place.url[len(MARK) :])] or b""))
    parts.clear()
    return CheckedInput(interface, values={name: values[name] for name in members}, echo=echo)


def _bytes(data: Buffer) -> bytes:
    """Return a view as an object of its own; a copy is made in pieces."""
    if isinstance(data, bytes):
        return data
    copy = BytesIO()
    view = memoryview(data)
    for begin in range(0, len(view), PIECE):
        copy.write(view[begin : begin + PIECE])
    return copy.getvalue()


def _text(data: Buffer | str) -> str:
    """Return the text that is encoded in `data`, decoded in pieces."""
    if isinstance(data, str):  # it comes from a thread of this process
        return data
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(data)
    text = ""
    for begin in range(0, len(view), PIECE):
        text += decoder.decode(view[begin : begin + PIECE])  # grows in place
        _let_go(view)
    return text


def _let_go(view: memoryview) -> None:
    """Let the system have the memory of a mapped file back as far as it has been read."""
    if isinstance(view.obj, mmap.mmap):
        view.obj.madvise(mmap.MADV_DONTNEED)
