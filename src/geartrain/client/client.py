"""The client that blocks. Made by `tools/make_client.py` of `async_client`: change that one."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from geartrain.client.asks import Asks, Policy, is_ready, list_models, new_id
from geartrain.client.errors import ClientError
from geartrain.client.inputs import with_files
from geartrain.client.predictions import Event, EventQueue, Prediction

if TYPE_CHECKING:
    import httpx
    from numpy.typing import NDArray

    from geartrain.client.wires import Wire
    from geartrain.domain.signature.types import Signature

T = TypeVar("T")


class Client:
    """A server of geartrain, over HTTP: `Client("http://127.0.0.1:5000").predict(text="hello")`.

    It may be used by several threads. Close it, or use it in a `with` block.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        verify: bool | str | ssl.SSLContext = True,
        timeout: float | None = None,
        connect_timeout: float = 10.0,
        retries: int = 2,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Create a client. `key`: of `serve --keys`, or a token of an issuer.

        `verify`: the file of the certificates to trust, False for none at all; by default those of the system.
        `timeout`: seconds that a prediction may take, waiting included; None for any. `retries`: how often a request is
        sent again when the connection breaks or the server is busy; a prediction is not run twice by that. `headers` go
        with every request.
        """
        from geartrain.client.wires import Options, Wire  # late: it imports httpx

        options = Options(
            url=url, key=key, verify=verify, timeout=timeout, connect_timeout=connect_timeout, headers=headers or {}
        )
        self._wire = Wire(options)
        self._policy = Policy(timeout, retries)
        self._only: Model[Any] = Model(self._wire, Asks(None, None, Any, policy=self._policy))

    @overload
    def model(self, name: str | None = None, *, version: str | None = None) -> Model[Any]: ...
    @overload
    def model(self, name: str | None = None, *, version: str | None = None, output: type[T]) -> Model[T]: ...
    def model(self, name: str | None = None, *, version: str | None = None, output: Any = Any) -> Model[Any]:
        """Return a model of the server; without a name, its only one.

        `output`: the type of what it gives, such as `str`, `list[int]` or a dataclass; outputs are checked against it
        and converted to it. By default they are JSON as it is.
        """
        return Model(self._wire, Asks(name, version, output, policy=self._policy))

    def models(self) -> list[str]:
        """Return the names of the server's models."""
        return self._wire.run(list_models())

    def is_ready(self) -> bool:
        """Tell whether the server can be reached, and all its models are ready."""
        return self._wire.run(is_ready())

    def predict(self, /, **inputs: Any) -> Any:
        """Run the server's only model; see `Model.predict`."""
        return self._only.predict(**inputs)

    def run(self, inputs: Mapping[str, Any], /) -> Prediction[Any]:
        """Run the server's only model; see `Model.run`."""
        return self._only.run(inputs)

    def stream(self, /, **inputs: Any) -> Stream:
        """Run the server's only model; see `Model.stream`."""
        return self._only.stream(**inputs)

    def submit(
        self,
        inputs: Mapping[str, Any] | None = None,
        /,
        *,
        id: str | None = None,  # noqa: A002 - as in the API
        webhook: str | None = None,
        webhook_events: Sequence[str] = (),
    ) -> Handle[Any]:
        """Run the server's only model; see `Model.submit`."""
        return self._only.submit(inputs, id=id, webhook=webhook, webhook_events=webhook_events)

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        outputs: Sequence[str] | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Run a model with arrays; see `Model.infer`."""
        return self.model(model).infer(inputs, outputs=outputs, parameters=parameters)

    def close(self) -> None:
        """Close the connections."""
        self._wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Model(Generic[T]):
    """One model of a server, which gives `T`."""

    def __init__(self, wire: Wire, asks: Asks[T]) -> None:
        self._wire = wire
        self._asks = asks

    def predict(self, /, **inputs: Any) -> T:
        """Run the model and return its output; of a model that streams, the list of its values.

        A file is given as a `pathlib.Path`, as bytes, as an open file or as a URL, and comes as an `OutputFile`. Raises
        `InvalidInputError`, `PredictionFailedError`, and the other errors of a client.
        """
        prediction = self._wire.run(self._asks.predict(inputs))
        return prediction.result()

    def run(self, inputs: Mapping[str, Any], /) -> Prediction[T]:
        """Run the model and return the whole prediction, with its logs and metrics, however it has ended."""
        return self._wire.run(self._asks.predict(inputs))

    def stream(self, /, **inputs: Any) -> Stream:
        """Run a model with `@streaming`, and iterate over its values as they come."""
        return Stream(self._wire, self._asks, inputs)

    def submit(
        self,
        inputs: Mapping[str, Any] | None = None,
        /,
        *,
        id: str | None = None,  # noqa: A002 - as in the API
        webhook: str | None = None,
        webhook_events: Sequence[str] = (),
    ) -> Handle[T]:
        """Begin a prediction and return at once; it goes on without the client.

        `webhook`: a URL that the server tells how it goes on (docs/webhooks.md).
        """
        own = id or new_id()
        self._wire.run(self._asks.submit(inputs or {}, own, webhook=webhook, events=webhook_events))
        return Handle(self._wire, self._asks, own)

    def handle(self, id: str) -> Handle[T]:  # noqa: A002 - as in the API
        """Return a prediction that was submitted before, perhaps by another process."""
        return Handle(self._wire, self._asks, id)

    def infer(
        self,
        inputs: Mapping[str, Any],
        *,
        outputs: Sequence[str] | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Run the model over the Open Inference Protocol: arrays of numpy in and out, as bytes.

        A text or a number is an array of one element. Texts come as bytes. `outputs` names those that are wanted.
        """
        return self._wire.run(self._asks.infer(inputs, outputs=outputs, parameters=parameters or {}))

    def signature(self) -> Signature:
        """Return the inputs and the output of the model."""
        return self._wire.run(self._asks.signature())

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document of the model."""
        return self._wire.run(self._asks.document())


class Handle(Generic[T]):
    """A prediction that was submitted, by its `id`."""

    def __init__(self, wire: Wire, asks: Asks[T], id: str) -> None:  # noqa: A002 - as in the API
        self.id = id
        self._wire = wire
        self._asks = asks

    def poll(self) -> Prediction[T]:
        """Ask how it stands."""
        return self._wire.run(self._asks.poll(self.id))

    def wait(self, timeout: float | None = None) -> Prediction[T]:
        """Wait for its end, at most so many seconds. Raises `TimedOutError`, and it goes on."""
        return self._wire.run(self._asks.wait(self.id, timeout))

    def result(self, timeout: float | None = None) -> T:
        """Wait for its end and return its output. Raises `PredictionFailedError` and `PredictionCanceledError`."""
        prediction = self.wait(timeout)
        return prediction.result()

    def cancel(self) -> None:
        """Cancel it, if it is not over."""
        self._wire.run(self._asks.cancel(self.id))

    def __iter__(self) -> Iterator[Any]:
        """Yield the values of a model that streams, also those from before, until the end. The server is polled."""
        seen = 0
        while True:
            values, prediction = self._wire.run(self._asks.more(self.id, seen))
            for value in values:
                yield value
            seen += len(values)
            if prediction.is_over:
                prediction.result()
                return


class Stream(Iterator[Any]):
    """The values of a run, as they come. The run is canceled when the stream is closed before its end.

    `id` is that of its prediction; `prediction` the whole of it, once the stream is over.
    """

    def __init__(self, wire: Wire, asks: Asks[Any], inputs: Mapping[str, Any]) -> None:
        self.id = new_id()
        self.prediction: Prediction[Any] | None = None
        self._wire = wire
        self._asks = asks
        self._inputs = inputs
        self._response: httpx.Response | None = None  # once something has been read
        self._queue = EventQueue()
        self._opened()

    def events(self) -> Iterator[Event]:
        """Yield all events, also logs and metrics, until the end."""
        while (event := self._next_event()) is not None:
            yield event

    def __next__(self) -> Any:
        while (event := self._next_event()) is not None:
            if event.name == "output":
                return with_files(event.data["chunk"])
        if self.prediction is not None:
            self.prediction.result()
        raise StopIteration

    def cancel(self) -> None:
        """Cancel the run; what has come is still to be read, and then the stream ends with an error."""
        self._wire.run(self._asks.cancel(self.id))

    def close(self) -> None:
        """Close the connection, and cancel the run if it is not over."""
        if self._response is not None:
            if self.prediction is None and not self._response.is_closed:
                with contextlib.suppress(ClientError):
                    self._wire.run(self._asks.leave(self.id))
            self._response.close()

    def _opened(self) -> Iterator[bytes]:
        if self._response is None:
            response: httpx.Response = self._wire.run(self._asks.stream(self._inputs, self.id))
            self._response, self._pieces = response, response.iter_bytes()
        return self._pieces

    def _next_event(self) -> Event | None:
        queue = self._queue
        while queue.needs_more:
            queue.feed(self._wire.read(self._opened()))
        event = queue.pop()
        if queue.completed is not None and self.prediction is None:
            self.prediction = self._asks.reader.convert(queue.completed)
            self.close()
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
