"""A batch that requests join and leave while it runs: what a `run()` with `@joint` is given."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import Context, ContextVar, Token
from time import sleep
from typing import Any, Final, Generic, TypeVar

In = TypeVar("In")
Out = TypeVar("Out")

MOST_PIECES: Final = 1000  # of a stream that wait for its client; then the author's loop waits too
_LOOK: Final = 0.05  # seconds until a loop that waits for a client looks whether it has gone


class Outlet:
    """The way of one request's answer to its client. The author's thread writes, the worker's loop reads and closes."""

    __slots__ = ("_failure", "_has_ended", "_is_gone", "_pieces", "_room", "_streams", "_tell", "_value", "ready")

    def __init__(self, tell: Callable[[Outlet], None], ready: Any, *, streams: bool) -> None:
        """`tell` has `ready`, an event of the worker's loop, set there."""
        self.ready = ready
        self._tell = tell
        self._streams = streams
        self._pieces: deque[Any] = deque()
        self._value: Any = None
        self._failure: str | BaseException | None = None
        self._has_ended = self._is_gone = False
        self._room = threading.Event()

    # the author's thread

    @property
    def is_open(self) -> bool:
        """False when the request has ended, was canceled, or its client or its time has gone."""
        return not (self._has_ended or self._is_gone)

    def send(self, piece: Any) -> None:
        """Give a piece of a stream. Raises `TypeError` if the model gives single values."""
        if not self._streams:
            raise TypeError("request.send() is for streams, and this model gives one value: call request.end(value)")
        self._check_open("send")
        while len(self._pieces) >= MOST_PIECES and not self._is_gone:
            self._room.wait(_LOOK)
            self._room.clear()
        if not self._is_gone:
            self._pieces.append(piece)
            self._tell(self)

    def end(self, value: Any) -> None:
        """End the request. Raises `TypeError` for a value of a model that streams."""
        if self._streams and value is not None:
            raise TypeError("request.end() takes no value in a model that streams: send() it before")
        self._check_open("end")
        self._finish(value, None)

    def fail(self, reason: str | BaseException) -> None:
        """End the request with an error."""
        self._check_open("fail")
        self._finish(None, reason)

    def _finish(self, value: Any, failure: str | BaseException | None) -> None:
        if not self._is_gone:
            self._value, self._failure, self._has_ended = value, failure, True
            self._tell(self)

    def _check_open(self, what: str) -> None:
        if self._has_ended:
            raise RuntimeError(f"request.{what}() after its end: leave the request out once it has ended")

    # the worker's loop

    def take(self) -> list[Any]:
        """Return the pieces that are there, which are no longer kept."""
        pieces = []
        while self._pieces:
            pieces.append(self._pieces.popleft())
        self._room.set()
        return pieces

    @property
    def has_ended(self) -> bool:
        """True if nothing follows."""
        return self._has_ended and not self._pieces

    def result(self) -> tuple[Any, str | BaseException | None]:
        """Return the value at the end, and what has failed the request instead; neither is kept."""
        found = self._value, self._failure
        self._value = self._failure = None
        return found

    def close(self) -> None:
        """Let the author's loop leave the request out from now on."""
        self._is_gone = True
        self._pieces.clear()
        self._room.set()


class LiveRequest(Generic[In, Out]):
    """One request in a batch that it may leave at any turn.

    Attributes:
        inputs: its inputs, an object of the author's class.
        state: anything that the author keeps for it, None at first.
        is_new: True in the first turn that it is there.
    """

    __slots__ = ("_context", "_outlet", "_tokens", "inputs", "is_new", "state")

    def __init__(self, inputs: In, outlet: Outlet, context: Context) -> None:
        """`context` has the variables of the prediction: where its prints and its metrics go."""
        self.inputs = inputs
        self.state: Any = None
        self.is_new = True
        self._outlet = outlet
        self._context = context
        self._tokens: list[list[tuple[ContextVar[Any], Token[Any]]]] = []

    @property
    def is_live(self) -> bool:
        """False when it has ended, was canceled, or its client or its time has gone: it leaves with the next turn."""
        return self._outlet.is_open

    def send(self, piece: Any) -> None:
        """Give the client a piece of the stream. Nothing happens for a request that is gone."""
        self._outlet.send(piece)

    def end(self, value: Any = None) -> None:
        """End the request: with its output, or after the last piece of its stream."""
        self._outlet.end(value)

    def fail(self, reason: str | BaseException) -> None:
        """End the request with an error: a text for the client, or an exception as if its run had raised it."""
        self._outlet.fail(reason)

    def __enter__(self) -> LiveRequest[In, Out]:
        """Let prints, metrics and `current_scope()` in the block be those of this request."""
        self._tokens.append([(variable, variable.set(value)) for variable, value in self._context.items()])
        return self

    def __exit__(self, *_: object) -> None:
        for variable, token in self._tokens.pop():
            variable.reset(token)

    def __repr__(self) -> str:
        return f"LiveRequest({self.inputs!r}, is_live={self.is_live})"


class Arrivals(Generic[In, Out]):
    """Requests that a loop has not seen yet, in their order. The worker's loop puts, the author's thread takes."""

    def __init__(self) -> None:
        self._requests: dict[LiveRequest[In, Out], None] = {}
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._requests)

    def put(self, request: LiveRequest[In, Out]) -> None:
        """Add a request."""
        with self._changed:
            self._requests[request] = None
            self._changed.notify()

    def discard(self, request: LiveRequest[In, Out]) -> None:
        """Forget a request that is gone, if the loop has not seen it."""
        with self._changed:
            self._requests.pop(request, None)

    def take(self, *, wait: bool) -> list[LiveRequest[In, Out]]:
        """Take all of them; with `wait` there is one at least."""
        with self._changed:
            while wait and not self._requests:
                self._changed.wait()
            taken = list(self._requests)
            self._requests.clear()
        return taken


class Batch(Generic[In, Out]):
    """The requests of a loop, turn by turn: `for live in batch`.

    Each turn has a list of those that are there: the ones that have come since are among them, and those that have
    ended or are gone are no longer. Where none is left, the loop waits for the next one.
    """

    def __init__(self, arrivals: Arrivals[In, Out]) -> None:
        self._arrivals = arrivals
        self._live: list[LiveRequest[In, Out]] = []
        self._is_fresh = False  # true if `wait` has found the requests of the next turn

    @property
    def live(self) -> list[LiveRequest[In, Out]]:
        """The requests of the present turn that have not ended since."""
        return [request for request in self._live if request.is_live]

    def wait(self) -> None:
        """Wait until there is a request for the next turn."""
        for request in self._live:
            request.is_new = False
        self._live = self.live
        is_first = True
        while is_first or not self._live:
            self._live += [request for request in self._arrivals.take(wait=not self._live) if request.is_live]
            is_first = False
        self._is_fresh = True

    def __iter__(self) -> Iterator[list[LiveRequest[In, Out]]]:
        return self

    def __next__(self) -> list[LiveRequest[In, Out]]:
        """Return the requests of the next turn. It never ends by itself."""
        if not self._is_fresh:
            sleep(0)  # the thread that reads requests and writes answers gets its turn
            self.wait()
        self._is_fresh = False
        return list(self._live)
