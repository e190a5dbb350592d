"""Predictions and their events as a client sees them."""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast

import msgspec

from geartrain.client.errors import ClientError
from geartrain.client.inputs import with_files

T = TypeVar("T")

Status = Literal["starting", "processing", "succeeded", "failed", "canceled"]


class Prediction(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """State of a prediction, final or not.

    Of a model that streams, `output` is the list of what it has yielded so far. `metrics` has `predict_time`, in
    seconds.
    """

    id: str = ""
    status: Status
    output: T | None = None
    error: str | None = None
    logs: str = ""
    metrics: dict[str, Any] = {}
    input: dict[str, Any] = {}
    created_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None

    @property
    def is_over(self) -> bool:
        """True if it has ended, in whatever way."""
        return self.status in {"succeeded", "failed", "canceled"}

    def result(self) -> T:
        """Return the output. Raises `PredictionFailedError` and `PredictionCanceledError`."""
        if self.status == "failed":
            raise PredictionFailedError(self)
        if self.status == "canceled":
            raise PredictionCanceledError(self)
        return cast("T", self.output)


class PredictionFailedError(ClientError):
    """The run has failed; the text is that of its exception. The `prediction` has its logs."""

    def __init__(self, prediction: Prediction[Any]) -> None:
        super().__init__(prediction.error or "the prediction failed")
        self.prediction = prediction


class PredictionCanceledError(ClientError):
    """The `prediction` was canceled."""

    def __init__(self, prediction: Prediction[Any]) -> None:
        super().__init__("the prediction was canceled")
        self.prediction = prediction


class Reader(Generic[T]):
    """Reads answers of one model; `output` is the type of what it gives, `Any` for JSON as it is."""

    def __init__(self, output: Any) -> None:
        self._output = output
        self._decode = msgspec.json.Decoder(Prediction[Any]).decode

    def read(self, content: bytes) -> Prediction[T]:
        """Read a whole prediction. Raises `ClientError`."""
        try:
            prediction = self._decode(content)
        except msgspec.DecodeError as error:
            raise ClientError(f"the answer is no prediction: {error}") from error
        return self._whole(prediction) if self._output is not Any or b'"data:' in content else prediction

    def convert(self, plain: Any) -> Prediction[T]:
        """Read a prediction from decoded JSON."""
        try:
            return self._whole(msgspec.convert(plain, Prediction[Any]))
        except msgspec.ValidationError as error:
            raise ClientError(f"the stream ends with no prediction: {error}") from error

    def _whole(self, prediction: Prediction[Any]) -> Prediction[T]:
        if prediction.output is None or not prediction.is_over:  # a stream so far
            return prediction
        return msgspec.structs.replace(prediction, output=self._value(prediction.output))

    def _value(self, plain: Any) -> T:
        if self._output is Any:
            return cast("T", with_files(plain))
        try:
            return cast("T", msgspec.convert(plain, self._output))
        except msgspec.ValidationError as error:
            raise ClientError(f"the output is not of type {self._output}: {error}") from error


class Event(NamedTuple):
    """One event: `start`, `log`, `metric`, `output`, `completed` or `error`, with its data (docs/predictions.md)."""

    name: str
    data: dict[str, Any]


class EventParser:
    """Cuts a stream into its events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Event]:
        """Take some bytes; return the events that are whole. Raises `ClientError`."""
        *whole, self._rest = (self._rest + data).split(b"\n\n")
        return [event for block in whole if (event := _event(block)) is not None]


class EventQueue:
    """The events of one stream that have come and are not read yet."""

    def __init__(self) -> None:
        self._parser = EventParser()
        self._ready: deque[Event] = deque()
        self.completed: dict[str, Any] | None = None  # the data of the last event, once it has been read

    def feed(self, data: bytes) -> None:
        """Take some bytes. Raises `ClientError`."""
        self._ready += self._parser.feed(data)

    @property
    def needs_more(self) -> bool:
        """True if there is nothing to read, and something still to come."""
        return not self._ready and self.completed is None

    def pop(self) -> Event | None:
        """Return the next event, None after the last one. Raises `ClientError` for one that ends the stream early."""
        if not self._ready:
            return None
        event = self._ready.popleft()
        if event.name == "completed":
            self.completed = event.data
        elif event.name == "error":
            raise ClientError(str(event.data.get("error")))
        return event


def _event(block: bytes) -> Event | None:
    name, data = "message", []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"event":
            name = value.strip().decode()
        elif field == b"data":
            data.append(value.removeprefix(b" "))
    if not data:
        return None  # a comment keeps the connection alive
    try:
        return Event(name, msgspec.json.decode(b"\n".join(data), type=dict[str, Any]))
    except msgspec.DecodeError as error:
        raise ClientError(f"the stream has an event that cannot be read: {error}") from error
