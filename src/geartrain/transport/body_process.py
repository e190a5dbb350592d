"""The process that reads large bodies, and writes large answers: whatever they hold, the server's loop goes on.

To parse a hundred megabytes is one call of a library that does not give up the interpreter, in whatever thread; so it
is done by another interpreter. It reads one body at a time, knows no model but its signature, and ends with the server.

    python -m geartrain.transport.body_process <descriptor of a socket>
"""

from __future__ import annotations

import importlib
import mmap
import resource
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np

from geartrain.apis import cog, generate, json_limits, open_inference, tensor_json
from geartrain.apis.infer_json import InputJson
from geartrain.domain.errors import Code, FieldError, GeartrainError
from geartrain.domain.signature.tensor_view import view_of
from geartrain.domain.signature.types import Signature
from geartrain.domain.signature.validation import InputValidator
from geartrain.domain.tensors.tensor import Buffer, Tensor, count_of, tensor_error
from geartrain.outbound.inputs import field_errors
from geartrain.outbound.references import FileReferences
from geartrain.service.models.admission import without_secrets
from geartrain.transport.body_messages import MARK, Job, Result, SentTensor, as_text, receive, send

_GRPC_MESSAGES: Final = "geartrain.transport.grpc.translate"
_SHAPE_TIME: Final = 2.0  # seconds
_SHAPE_MEMORY: Final = 1 << 30  # bytes
LONG: Final = 65_536  # characters of a text that travels beside the message

_read_jobs = msgspec.msgpack.Decoder(Job).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode
_Parts = Sequence[Buffer | str | None]
_Found = tuple[Result, _Parts]


class _Model:
    """Derivatives of a signature."""

    def __init__(self, text: bytes) -> None:
        self.signature = signature = msgspec.json.decode(text, type=Signature)
        self.validator = InputValidator(signature)
        plain = tuple(field for field in signature.inputs if field.type.kind != "tensor")
        self.plain_validator = InputValidator(msgspec.structs.replace(signature, inputs=plain))
        self.tensors = frozenset(
            field.name for field in signature.inputs if field.type.kind == "tensor" and not field.type.form
        )
        self.view = view_of(signature)
        self.files = FileReferences(signature)


_model = lru_cache(maxsize=32)(_Model)


def _read_cog(job: Job, body: Buffer) -> _Found:
    text = as_text(body)
    request = cog.bounded(cog.read_request(text))
    raw = cog.input_of(request)
    head = msgspec.structs.replace(request, input=msgspec.Raw(b"null"))
    model = _model(job.signature)
    place = _place(text, request.input) if len(raw) > LONG else (0, 0)
    result, parts = _check(job, model.validator, raw)
    return msgspec.structs.replace(result, head=_encode(head), place=place), [raw, *parts]


def _read_generate(job: Job, body: Buffer) -> _Found:
    model = _model(job.signature)
    asked = generate.read_request(as_text(body), model.signature, model.view)
    validator = model.validator if asked.tensors is None else model.plain_validator
    result, parts = _check(job, validator, asked.values)
    sent = None if asked.tensors is None else [_sent(tensor) for tensor in asked.tensors]
    contents = [tensor.data for tensor in asked.tensors or ()]
    return msgspec.structs.replace(result, head=_encode((asked.request.id, asked.request.parameters, sent))), [
        *contents,
        asked.values,
        *parts,
    ]


def _check_members(_: Job, body: Buffer) -> _Found:
    """Check the counts of a body before it is read."""
    generate.read_members(as_text(body))
    return Result(), ()


def _read_infer(job: Job, body: Buffer) -> _Found:
    request, contents = open_inference.read_contents(as_text(body))
    _check_lists(job, request.inputs)
    inputs = [msgspec.structs.replace(one, data=msgspec.UNSET) for one in request.inputs]
    return Result(head=_encode(msgspec.structs.replace(request, inputs=inputs))), contents


def _check_lists(job: Job, inputs: Sequence[InputJson | SentTensor]) -> None:
    """Refuse an input that is no tensor to the model, and has too many elements for JSON."""
    view = _model(job.signature).view
    for one in inputs:
        if view.is_converted(one.name) and count_of(one.shape) > job.max_elements:
            msg = f"input '{one.name}' has more than {job.max_elements} elements, the limit max_json_elements"
            raise tensor_error(msg)


def _bind(job: Job, contents: Buffer) -> _Found:
    _check_lists(job, job.tensors)
    model = _model(job.signature)
    tensors = []
    body = memoryview(contents)
    for sent in job.tensors:
        if sent.is_there:
            data, body = body[: sent.size], body[sent.size :]
        else:  # only its size matters, and untouched memory takes none
            data = memoryview(mmap.mmap(-1, sent.size) if sent.size else b"")
        tensors.append(Tensor(sent.name, sent.datatype, sent.shape, data))
    bound = model.view.bind(tensors)
    validator = model.plain_validator if model.view.has_tensors else model.validator
    result, parts = _check(job, validator, bound.json)
    return msgspec.structs.replace(result, head=_encode([one.name for one in bound.tensors])), [bound.json, *parts]


def _read_grpc(_: Job, body: Buffer) -> _Found:
    # By its name: most of these processes need no protobuf, and gRPC's package knows the module that starts them.
    head, contents = importlib.import_module(_GRPC_MESSAGES).detach(body)
    return Result(head=head), contents


def _outputs(job: Job, body: Buffer) -> _Found:
    """Make the outputs of a run that is over."""
    view = _model(job.signature).view
    pieces = _pieces(job, body)
    return _tensors(view.whole(b"null" if view.streams or not pieces else pieces[0], pieces))


def _yielded(job: Job, body: Buffer) -> _Found:
    """Make the outputs of one yield."""
    return _tensors(_model(job.signature).view.one(body))


def _tensors(tensors: Sequence[Tensor]) -> _Found:
    return Result(head=_encode([_sent(tensor) for tensor in tensors])), [tensor.data for tensor in tensors]


def _text(job: Job, body: Buffer) -> _Found:
    """Write the contents of an output as JSON."""
    (sent,) = job.tensors
    return Result(), [tensor_json.encode(Tensor(sent.name, sent.datatype, sent.shape, body))]


def _generated(job: Job, body: Buffer) -> _Found:
    """Write the answer to a generate request whose run is over."""
    pieces = _pieces(job, body)
    return _answer(job, _generate_view(job.signature).whole(pieces[0] if pieces else None, pieces))


def _generated_event(job: Job, body: Buffer) -> _Found:
    """Write what one yield is to a generate request."""
    return _answer(job, _generate_view(job.signature).one(body))


def _answer(job: Job, members: dict[str, msgspec.Raw]) -> _Found:
    name, version, own_id = job.asked
    return Result(), [generate.encode_response((name, version), own_id, members)]


def _embeddings(job: Job, body: Buffer) -> _Found:
    """Write the answer to a request for embeddings whose runs are over."""
    from geartrain.apis.openai import embeddings  # few servers are asked for them

    wanted = msgspec.json.decode(job.asked[0], type=embeddings.Embeddings)
    return Result(), [embeddings.encode_embeddings(wanted, _pieces(job, body), _model(job.signature).view)]


def _shape(job: Job, body: Buffer) -> _Found:
    """Hold a text, or none, against a shape. This process ends if that takes too long, or too much memory."""
    from geartrain.apis.openai.errors import OpenAIError  # few servers are asked for texts
    from geartrain.apis.openai.shapes import Shape

    name, what, _ = job.asked
    shape = Shape(name, job.signature)
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_SHAPE_MEMORY, most))
    signal.setitimer(signal.ITIMER_PROF, _SHAPE_TIME)  # the time of a processor, at whose end the signal kills
    try:
        if what:
            shape.check(bytes(body).decode())
        else:
            shape.check_schema()
    except OpenAIError as error:
        return Result(head=(error.kind or "").encode(), error=(error.code, error.message, error.fields)), ()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return Result(), ()


def _generate_view(signature: bytes) -> generate.GenerateView:
    model = _model(signature)
    return generate.GenerateView(model.signature, model.view)


def _pieces(job: Job, body: Buffer) -> list[Buffer]:
    pieces: list[Buffer] = []
    view = memoryview(body)
    for size in job.sizes:
        pieces.append(view[:size])
        view = view[size:]
    return pieces


_KINDS: Final[dict[str, Callable[[Job, Buffer], _Found]]] = {
    "cog": _read_cog,
    "generate": _read_generate,
    "infer": _read_infer,
    "members": _check_members,
    "bind": _bind,
    "grpc": _read_grpc,
    "outputs": _outputs,
    "yielded": _yielded,
    "text": _text,
    "generated": _generated,
    "generated event": _generated_event,
    "embeddings": _embeddings,
    "shape": _shape,
}


def _sent(tensor: Tensor) -> SentTensor:
    return SentTensor(tensor.name, tensor.datatype, tensor.shape, len(tensor.data))


def _place(text: bytes | bytearray, raw: msgspec.Raw) -> tuple[int, int]:
    """Return begin and end of a value in the text that it was decoded from: it is a view of it."""
    value = np.frombuffer(memoryview(raw), np.uint8)
    return value.ctypes.data - np.frombuffer(text, np.uint8).ctypes.data, value.size


def _check(job: Job, validator: InputValidator, raw: bytes) -> _Found:
    """Check an input as `Admission` does; beside it are its echo, if it has secrets, and its long texts."""
    model = _model(job.signature)
    try:
        if job.max_elements:
            json_limits.check_elements(raw, job.max_elements, tensors=model.tensors)
    except json_limits.JsonLimitError as error:
        return Result(errors=(FieldError(("body", "input"), str(error), "value_error"),)), ()
    errors = validator.check(raw)
    if errors:
        return Result(errors=errors), ()
    echo = without_secrets(raw, validator.secret_fields) if validator.secret_fields else None
    values: dict[str, Any] = msgspec.json.decode(raw) if validator.file_fields else {}
    if not model.files.any_in(values):
        return Result(), (echo,)
    copied, places = model.files.find(values)
    errors = field_errors(places, largest=job.max_file)
    if errors:
        return Result(errors=errors), ()
    texts: list[str] = []
    for place in places:
        if len(place.url) > LONG:
            place.put(f"{MARK}{len(texts)}")
            texts.append(place.url)
    members = {
        name: copied[name] if name in validator.file_fields else value for name, value in _decode_members(raw).items()
    }
    return Result(values=_encode(members)), (echo, *texts)


def read(job: Job, body: Buffer) -> _Found:
    """Do a job. The error of a body that is refused is in the result."""
    try:
        return _KINDS[job.kind](job, body)
    except GeartrainError as error:
        return Result(error=(error.code, error.message, error.fields)), ()
    except MemoryError:
        return Result(error=(Code.TOO_LARGE, "The request body takes more memory than there is.", ())), ()


def main(descriptor: int) -> None:
    """Read bodies until the server closes its end of the socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: it is the server that ends
    tensor_json.load_arrays()
    with socket.socket(fileno=descriptor) as channel:
        while True:
            received = receive(channel)
            if received is None:
                return
            text, body = received
            job = _read_jobs(text)
            result, parts = read(job, body[: job.size])
            if result.place[1]:
                parts = [None, *parts[1:]]  # the server has it in the body
            beside = [part.encode() if isinstance(part, str) else part for part in parts]
            sizes = tuple(-1 if part is None else len(part) for part in beside)
            send(channel, msgspec.structs.replace(result, sizes=sizes), [part for part in beside if part is not None])
            del received, text, body, result, parts, beside


if __name__ == "__main__":
    main(int(sys.argv[1]))
