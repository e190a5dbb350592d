"""Tensors, requests, responses and errors as a model of Triton's Python backend has them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from geartrain.authoring.requests import Tensors
from geartrain.authoring.scope import Scope, current_scope
from geartrain.domain.errors import Code
from geartrain.worker import arrays
from geartrain.worker.errors import AnswerError

MAX_UNREAD: Final = 256  # responses of one request that wait for their way to the server; then `send()` waits
REQUEST_START: Final = 1  # flags of a request
REQUEST_END: Final = 2
RESPONSE_FINAL: Final = 1
_DEVICE_CPU: Final = (1, 0)  # of DLPack
_CPU_KINDS: Final = (1, 3)  # of DLPack: plain memory, and memory that CUDA has pinned
_SEQUENCE: Final = frozenset({"sequence_id", "sequence_start", "sequence_end"})


class TritonModelException(Exception):  # noqa: N818 - the name is Triton's
    """An error that a model raises, or that a wrong call of this module raises."""


class TritonError:
    """An error of one response: a message for the client, and a code."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        self._message = str(message)
        self._code = code

    def message(self) -> str:
        """Return the message."""
        return self._message

    def code(self) -> int:
        """Return the code."""
        return self._code

    def __str__(self) -> str:
        return self._message

    def __repr__(self) -> str:
        return f"TritonError({self._message!r}, {self._code})"


_CODES: Final = {
    TritonError.NOT_FOUND: Code.NOT_FOUND,
    TritonError.INVALID_ARG: Code.INVALID_INPUT,
    TritonError.UNAVAILABLE: Code.NOT_READY,
    TritonError.UNSUPPORTED: Code.UNSUPPORTED,
    TritonError.ALREADY_EXISTS: Code.CONFLICT,
    TritonError.CANCELLED: Code.RUN_CANCELED,
}
"""The codes of this server; a failed run for any other code."""

_CODES_BACK: Final[dict[str, int]] = {
    **{ours: theirs for theirs, ours in _CODES.items()},
    Code.INVALID_TENSOR: TritonError.INVALID_ARG,
}


def error_of(error: Any) -> AnswerError:
    """Return the exception for an error in a response."""
    if not isinstance(error, TritonError):
        return AnswerError(str(error))
    return AnswerError(error.message(), _CODES.get(error.code()))


def error_from(code: str, message: str) -> TritonError:
    """Return the error of a response from another model of this server."""
    return TritonError(message, _CODES_BACK.get(code, TritonError.INTERNAL))


def text_of(value: Any, what: str) -> str:
    """Return a text, also of bytes, which elements of tensors are. Raises `TritonModelException`."""
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, str):
        raise TritonModelException(f"{what} is a text, not {type(value).__name__}")
    return str(value)


class _Capsule:
    """An object of the DLPack protocol around a bare capsule."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _DEVICE_CPU


class Tensor:
    """A tensor with a name. Its contents are an array of numpy, or a tensor of torch that has no such array."""

    __slots__ = ("_name", "contents")

    def __init__(self, name: str, numpy_array: Any) -> None:
        """Make a tensor of an array. Raises `TritonModelException` for anything else."""
        if not isinstance(numpy_array, np.ndarray) and not arrays.is_torch(numpy_array):
            msg = f"Tensor {name!r} is made of an array of numpy, not of {type(numpy_array).__name__}"
            raise TritonModelException(msg)
        self._name = name if type(name) is str else text_of(name, "the name of a Tensor")
        self.contents = numpy_array

    def name(self) -> str:
        """Return the name."""
        return self._name

    def as_numpy(self) -> Any:
        """Return the array of numpy; BYTES hold `bytes`. Raises `TritonModelException` if it has none."""
        if not isinstance(self.contents, np.ndarray):
            msg = f"Tensor {self._name!r} has no array of numpy: it is on a GPU, or BF16"
            raise TritonModelException(msg)
        return self.contents

    def shape(self) -> list[int]:
        """Return the sizes of the dimensions."""
        return list(self.contents.shape)

    def triton_dtype(self) -> int:
        """Return the number of the datatype in Triton's C API."""
        return DATATYPES.index(self.datatype)

    @property
    def datatype(self) -> str:
        """The datatype of the protocol, such as FP32."""
        return arrays.datatype_of(self.contents.dtype)

    def is_cpu(self) -> bool:
        """Return True if the contents are in the memory of the processor."""
        return isinstance(self.contents, np.ndarray) or not self.contents.is_cuda

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> Tensor:
        """Make a tensor of an object with `__dlpack__`, or of a capsule. Memory of a processor is shared.

        Raises `TritonModelException` for anything else.
        """
        if not hasattr(tensor, "__dlpack__"):
            if type(tensor).__name__ != "PyCapsule":
                raise TritonModelException(f"Tensor {name!r}: {type(tensor).__name__} has no DLPack")
            tensor = _Capsule(tensor)
        kind = str(getattr(tensor, "dtype", ""))
        if tensor.__dlpack_device__()[0] not in _CPU_KINDS or kind == "torch.bfloat16":
            import torch  # which has made it, most likely

            return Tensor(name, tensor if arrays.is_torch(tensor) else torch.from_dlpack(tensor))
        try:
            return Tensor(name, np.from_dlpack(tensor))
        except (BufferError, RuntimeError, TypeError) as error:
            raise TritonModelException(f"Tensor {name!r}: {error}") from None

    def to_dlpack(self) -> Any:
        """Return a capsule of the contents."""
        return self.__dlpack__()

    def __dlpack__(self, **options: Any) -> Any:
        array = self.contents
        if isinstance(array, np.ndarray) and not array.flags.writeable:  # such arrays have no capsule
            array = array.copy()
        return array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.contents.__dlpack_device__()


DATATYPES: Final = (
    "",
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
    "BYTES",
    "BF16",
)
"""The datatypes by their numbers in Triton's C API."""


class InferenceTrace:
    """The trace of a request: its context, if the request is traced."""

    def __init__(self, context: str | None = None) -> None:
        self._context = context

    def get_context(self) -> str | None:
        """Return the context as JSON, such as `{"traceparent": "…"}`; None without a trace."""
        return self._context


class PreferredMemory:
    """The place where outputs of another model are wanted: accepted, and without effect."""

    def __init__(self, preferred_memory_type: int = 0, preferred_device_id: int = 0) -> None:
        self.type = preferred_memory_type
        self.device_id = preferred_device_id


class InferenceRequest:
    """A request: one that has come, or one for another model (see `nested.NestedRequest`, which has `exec`)."""

    __slots__ = (
        "_inputs",
        "_is_decoupled",
        "_names",
        "_scope",
        "_tensors",
        "canceled",
        "has_given_sender",
        "responses",
    )

    def __init__(
        self, tensors: Tensors, names: Sequence[str], scope: Scope | None = None, *, is_decoupled: bool = False
    ) -> None:
        """`names`: of the model's outputs. `scope`: of its prediction, None for the current one.

        `is_decoupled`: any number of responses may be sent.
        """
        self._tensors = tensors
        self._names = names
        self._scope = scope
        self._inputs: list[Tensor] | None = None
        self._is_decoupled = is_decoupled
        self.responses: Responses | None = None
        self.has_given_sender = False
        self.canceled = False

    def inputs(self) -> list[Tensor]:
        """Return the inputs. Those that are optional may be missing."""
        if self._inputs is None:
            self._inputs = [Tensor(name, array) for name, array in self._tensors.items()]
        return self._inputs

    def input(self, name: str) -> Tensor | None:
        """Return an input by its name; None if it is missing."""
        if self._inputs is None:
            array = self._tensors.get(name)
            return None if array is None else Tensor(name, array)
        return next((each for each in self._inputs if each.name() == name), None)

    def request_id(self) -> str:
        """Return the id that the client gave; empty without one."""
        return self._tensors.id

    def correlation_id(self) -> Any:
        """Return the id of the sequence, 0 without one."""
        return self._tensors.parameters.get("sequence_id", 0)

    def flags(self) -> int:
        """Return the flags of the sequence: 1 at its start, 2 at its end."""
        own = self._tensors.parameters
        return REQUEST_START * bool(own.get("sequence_start")) | REQUEST_END * bool(own.get("sequence_end"))

    def set_flags(self, flags: int) -> None:
        """Set the flags of the sequence."""
        self._tensors.parameters["sequence_start"] = bool(flags & REQUEST_START)
        self._tensors.parameters["sequence_end"] = bool(flags & REQUEST_END)

    def parameters(self) -> str:
        """Return the parameters that the client gave, as JSON."""
        return json.dumps({name: value for name, value in self._tensors.parameters.items() if name not in _SEQUENCE})

    def requested_output_names(self) -> list[str]:
        """Return the names of the outputs that the client asks for; all of the model's where it names none."""
        requested = self._tensors.requested
        return list(self._names if requested is None else requested)

    def model_name(self) -> str:
        """Return the empty name of the model that is called: this one."""
        return ""

    def timeout(self) -> int:
        """Return 0: the time limit of a request is the server's."""
        return 0

    def priority(self) -> int:
        """Return 0: the priority of a request is the server's."""
        return 0

    def preferred_memory(self) -> PreferredMemory:
        """Return the memory of the processor."""
        return PreferredMemory()

    def trace(self) -> InferenceTrace:
        """Return the trace of the request."""
        scope = self._scope or current_scope()
        if not scope.traceparent:
            return InferenceTrace()
        context = {"traceparent": scope.traceparent}
        if scope.tracestate:
            context["tracestate"] = scope.tracestate
        return InferenceTrace(json.dumps(context))

    def is_cancelled(self) -> bool:
        """Return True if the client has left, or its time is up."""
        return self.canceled

    def set_release_flags(self, flags: int) -> None:
        """Do nothing: requests are not scheduled again."""

    def get_response_sender(self) -> ResponseSender:
        """Return the sender of responses, for any thread. Raises `TritonModelException` the second time."""
        if self.has_given_sender:
            raise TritonModelException("get_response_sender(): this request has given its sender away")
        self.has_given_sender = True
        if self.responses is None:
            self.responses = Responses()
        return ResponseSender(self, self.responses, is_single=not self._is_decoupled)


class InferenceResponse:
    """A response: tensors, or an error."""

    __slots__ = ("fault", "own_parameters", "tensors")

    def __init__(
        self,
        output_tensors: Iterable[Tensor] = (),
        error: TritonError | str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self.tensors = list(output_tensors)
        self.fault = TritonError(error) if isinstance(error, str) else error
        self.own_parameters = parameters

    def output_tensors(self) -> list[Tensor]:
        """Return the tensors."""
        return self.tensors

    def has_error(self) -> bool:
        """Return True if it is an error."""
        return self.fault is not None

    def error(self) -> Any:
        """Return the error; None without one."""
        return self.fault

    def parameters(self) -> str:
        """Return the parameters as JSON."""
        return json.dumps(dict(self.own_parameters or {}))


class Responses:
    """The responses to one request, from the threads of the model to the reader."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._found: deque[InferenceResponse | BaseException] = deque()
        self._is_over = False
        self._is_dropped = False
        self._reader: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    @property
    def is_over(self) -> bool:
        """True after the last response."""
        return self._is_over

    @property
    def is_dropped(self) -> bool:
        """True if nothing more is read."""
        return self._is_dropped

    def put(self, response: InferenceResponse | BaseException | None, *, is_last: bool) -> None:
        """Add a response. Blocks while many wait. One that has no reader any more is dropped."""
        with self._changed:
            if response is not None:
                self._changed.wait_for(lambda: len(self._found) < MAX_UNREAD or self._is_dropped)
                if not self._is_dropped:
                    self._found.append(response)
            self._is_over = self._is_over or is_last
            self._notify()

    def fail(self, error: BaseException) -> None:
        """End with an exception, unless the last response has been sent."""
        if not self._is_over:
            self.put(error, is_last=True)

    def drop(self) -> None:
        """Read nothing more."""
        with self._changed:
            self._is_dropped = True
            self._found.clear()
            self._notify()

    def get(self) -> InferenceResponse | BaseException | None:
        """Return the next response, None after the last one. Blocks."""
        with self._changed:
            self._changed.wait_for(lambda: self._found or self._is_over)
            return self._take()

    async def aget(self) -> InferenceResponse | BaseException | None:
        """Return the next response, None after the last one."""
        while True:
            with self._changed:
                if self._found or self._is_over:
                    return self._take()
                loop = asyncio.get_running_loop()
                waiter = loop.create_future()
                self._reader = loop, waiter
            await waiter

    def _take(self) -> InferenceResponse | BaseException | None:
        if not self._found:
            return None
        found = self._found.popleft()
        self._changed.notify_all()
        return found

    def _notify(self) -> None:
        self._changed.notify_all()
        if self._reader is not None:
            (loop, waiter), self._reader = self._reader, None
            if not loop.is_closed():
                loop.call_soon_threadsafe(_wake, waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class ResponseSender:
    """Sends the responses of one request."""

    def __init__(self, request: InferenceRequest, responses: Responses, *, is_single: bool) -> None:
        """`is_single`: one response is expected, as of a model that is not decoupled."""
        self._request = request
        self._responses = responses
        self._is_single = is_single
        self._count = 0

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response, or the flag that no more will come. Waits while many have not been read.

        Raises `TritonModelException` after the last one, and for wrong arguments.
        """
        if self._responses.is_over:
            raise TritonModelException("Unable to send response. Response sender has been closed.")
        if response is not None and not isinstance(response, InferenceResponse):
            raise TritonModelException(f"send() takes an InferenceResponse, not {type(response).__name__}")
        if flags not in (0, RESPONSE_FINAL):
            raise TritonModelException(f"Unable to send response. Unsupported flag {flags}.")
        if response is None and not flags:
            raise TritonModelException(
                "Unable to send response. Without a response, the flag of the last one is needed."
            )
        if response is not None:
            self._count += 1
            if self._is_single and self._count > 1:
                raise TritonModelException("Unable to send response. A model that is not decoupled sends one.")
        self._responses.put(response, is_last=bool(flags))

    def is_cancelled(self) -> bool:
        """Return True if the client has left, or its time is up."""
        return self._request.is_cancelled()

    def __del__(self) -> None:
        """End the responses: no more can come."""
        if not self._responses.is_over:
            self._responses.put(None, is_last=True)
