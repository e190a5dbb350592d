"""Requests of a client and their results, without a socket.

A question is a generator. It yields what has to be sent, or how long to wait, gets the answer, and returns the result;
`Client` and `AsyncClient` only carry that out.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast
from urllib.parse import quote

import msgspec

from geartrain.client.errors import (
    AccessError,
    BusyError,
    ClientError,
    InvalidInputError,
    NotFoundError,
    RefusedError,
    TimedOutError,
    UnreachableError,
)
from geartrain.client.inputs import Form, encode, form_of, large_files, plain_inputs, with_uploads
from geartrain.client.predictions import Prediction, Reader
from geartrain.client.schema import signature_of
from geartrain.domain.signature.types import Signature

T = TypeVar("T")
R = TypeVar("R")

_JSON: Final = {"content-type": "application/json"}
_ASYNC: Final = {"prefer": "respond-async"}
_STREAM: Final = {"accept": "text/event-stream"}
_NOTHING: Final[Mapping[str, str]] = {}

_FIRST_POLL: Final = 0.02  # seconds; each next one is half as long again
_LONGEST_POLL: Final = 1.0  # seconds
_FIRST_RETRY: Final = 0.1  # seconds; doubled with each further one
_LONGEST_RETRY: Final = 10.0  # seconds
_OK, _BAD, _UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND = 200, 400, 401, 403, 404
_BUSY: Final = frozenset({409, 429, 503})


class Send(NamedTuple):
    """A request; `path` begins with a slash. With `streams` the answer is read as it comes."""

    method: str
    path: str
    content: bytes | None = None
    headers: Mapping[str, str] = _NOTHING
    form: Form | None = None
    streams: bool = False


class Wait(NamedTuple):
    """A pause."""

    seconds: float


class Reply(NamedTuple):
    """An answer; names of headers are in lower case or of any case, as the mapping has it."""

    status: int
    headers: Mapping[str, str]
    content: bytes


Steps = Generator[Send | Wait, Any, R]
"""Gets a `Reply` for a `Send`, and for one that streams what the wire reads it by."""


@dataclass(frozen=True)
class Policy:
    """`timeout`: seconds that a prediction may take, None for any; `retries`: how often a request is sent again."""

    timeout: float | None
    retries: int

    def until(self) -> float | None:
        """Return when a prediction that begins now has to be over, by `time.monotonic()`."""
        return None if self.timeout is None else time.monotonic() + self.timeout


class Asks(Generic[T]):
    """The questions to one model."""

    def __init__(self, name: str | None, version: str | None, output: Any, *, policy: Policy) -> None:
        """`name` None: the only model of the server."""
        self.name = name
        at = "" if version is None else f"/versions/{quote(version, safe='')}"
        self._prefix = "" if name is None else f"/models/{quote(name, safe='')}{at}"
        self._infer_at = at
        self._path = f"{self._prefix}/predictions"
        self._policy = policy
        self.reader: Reader[T] = Reader(output)
        self._signature: Signature | None = None

    def predict(self, inputs: Mapping[str, Any]) -> Steps[Prediction[T]]:
        """Run the model and wait for its end. A request that is sent again makes no second run beside the first."""
        send = yield from self._request(inputs)
        until = self._policy.until()
        if self._policy.retries:
            send = send._replace(method="PUT", path=f"{self._path}/{new_id()}")
        else:
            send = send._replace(method="POST", path=self._path)  # which is somewhat faster
        reply = yield from _sent(send, self._policy)
        return (yield from self._until_over(self.reader.read(reply.content), until))

    def submit(self, inputs: Mapping[str, Any], own: str, *, webhook: str | None, events: Sequence[str]) -> Steps[None]:
        """Begin a prediction that goes on without the client."""
        body: dict[str, Any] = {"input": plain_inputs(with_uploads(inputs))}
        if webhook is not None:
            body["webhook"] = webhook
        if events:
            body["webhook_events_filter"] = list(events)
        send = Send("PUT", f"{self._path}/{_quoted(own)}", encode(body), {**_JSON, **_ASYNC})
        yield from _sent(send, self._policy)

    def poll(self, id: str) -> Steps[Prediction[T]]:  # noqa: A002
        """Ask how a prediction stands."""
        reply = yield from _sent(Send("GET", f"{self._path}/{_quoted(id)}"), self._policy)
        return self.reader.read(reply.content)

    def wait(self, id: str, timeout: float | None) -> Steps[Prediction[T]]:  # noqa: A002
        """Wait for the end of a prediction. Raises `TimedOutError`, and the prediction goes on."""
        until = None if timeout is None else time.monotonic() + timeout
        return (yield from self._until_over((yield from self.poll(id)), until))

    def more(self, id: str, seen: int) -> Steps[tuple[list[Any], Prediction[T]]]:  # noqa: A002
        """Wait for values of a stream beyond those that have been `seen`, or for its end; return them."""
        pause = _FIRST_POLL
        while True:
            prediction = yield from self.poll(id)
            values: Any = prediction.output
            if not isinstance(values, list):
                values = [values] if prediction.is_over and values is not None else []
            if len(values) > seen or prediction.is_over:
                return values[seen:], prediction
            yield Wait(pause)
            pause = min(1.5 * pause, _LONGEST_POLL)

    def cancel(self, id: str) -> Steps[None]:  # noqa: A002
        """Cancel a prediction; one that is over stays as it is."""
        with suppress(NotFoundError):
            yield from _sent(Send("POST", f"{self._path}/{_quoted(id)}/cancel"), self._policy)

    def leave(self, id: str) -> Steps[None]:  # noqa: A002
        """Cancel a run whose stream is closed, in one attempt."""
        yield Send("POST", f"{self._path}/{_quoted(id)}/cancel")

    def stream(self, inputs: Mapping[str, Any], own: str) -> Steps[Any]:
        """Run the model and return what its events are read from."""
        send = yield from self._request(inputs)
        send = send._replace(
            method="PUT", path=f"{self._path}/{own}", headers={**send.headers, **_STREAM}, streams=True
        )
        return (yield from _sent(send, self._policy))

    def infer(
        self, inputs: Mapping[str, Any], *, outputs: Sequence[str] | None, parameters: Mapping[str, Any]
    ) -> Steps[dict[str, Any]]:
        """Run the model over the Open Inference Protocol, with arrays as bytes."""
        from geartrain.client.tensors import HEADER_LENGTH, decode_response, encode_request  # they import numpy

        if self.name is None:
            self.name = yield from _only_name()
        body, length = encode_request(inputs, outputs=outputs, parameters=parameters)
        headers = {"content-type": "application/octet-stream", HEADER_LENGTH: str(length)}
        path = f"/v2/models/{quote(self.name, safe='')}{self._infer_at}/infer"
        reply = yield from _sent(Send("POST", path, body, headers), self._policy, is_repeatable=False)
        given = reply.headers.get(HEADER_LENGTH)
        return decode_response(reply.content, None if given is None else int(given))

    def document(self) -> Steps[dict[str, Any]]:
        """Return the OpenAPI document."""
        reply = yield from _sent(Send("GET", f"{self._prefix}/openapi.json"), self._policy)
        return msgspec.json.decode(reply.content, type=dict[str, Any])

    def signature(self) -> Steps[Signature]:
        """Return the signature of the model; it is fetched once."""
        if self._signature is None:
            self._signature = signature_of((yield from self.document()))
        if self._signature is None:
            raise BusyError("the model has not been loaded yet", 503, 1.0)
        return self._signature

    def _request(self, inputs: Mapping[str, Any]) -> Steps[Send]:
        """Return a request with the inputs, whose method and path are still to be said."""
        inputs = with_uploads(inputs)
        files = large_files(inputs)
        if files:
            form = form_of(inputs, files, (yield from self.signature()))
            if form is not None:
                return Send("", "", form=form)
        return Send("", "", encode({"input": plain_inputs(inputs)}), _JSON)

    def _until_over(self, prediction: Prediction[T], until: float | None) -> Steps[Prediction[T]]:
        pause = _FIRST_POLL
        while not prediction.is_over:
            if until is not None and time.monotonic() + pause > until:
                raise TimedOutError(f"the prediction {prediction.id} is not over in time: it is {prediction.status}")
            yield Wait(pause)
            pause = min(1.5 * pause, _LONGEST_POLL)
            prediction = yield from self.poll(prediction.id)
        return prediction


def _sent(send: Send, policy: Policy, *, is_repeatable: bool = True) -> Steps[Any]:
    """Send a request and return its answer; again, if the connection breaks or the server has no place for it.

    `is_repeatable`: it may be sent again although the server may have had it. Of a prediction with an id of the
    client's it is found out first. Raises what the answer says, if it is none.
    """
    attempt = 0
    while True:
        try:
            reply = yield send
            return _check(reply) if isinstance(reply, Reply) else reply
        except (UnreachableError, BusyError) as error:
            attempt += 1
            is_unknown = isinstance(error, UnreachableError)
            if attempt > policy.retries or (is_unknown and not is_repeatable):
                raise
            yield Wait(_pause(error, attempt))
            if is_unknown and send.method == "PUT" and not send.streams:
                found = yield from _found(send.path)
                if found is not None:
                    return found


def _found(path: str) -> Steps[Reply | None]:
    """Return the state of a prediction, if the server answers, knows it, and has not canceled it.

    That is what a broken connection does to a prediction whose client was waiting.
    """
    try:
        reply = yield Send("GET", path)
    except UnreachableError:
        return None
    if reply.status != _OK or msgspec.json.decode(reply.content, type=_Standing).status == "canceled":
        return None
    return cast("Reply", reply)


class _Standing(msgspec.Struct):
    status: str


def _only_name() -> Steps[str]:
    names = yield from list_models()
    if len(names) != 1:
        raise ClientError(f"the server has several models; name one of them: {', '.join(names)}")
    return names[0]


def list_models() -> Steps[list[str]]:
    """Return the names of the models of a server, in its order."""
    reply = _check((yield Send("POST", "/v2/repository/index")))
    return list(dict.fromkeys(model["name"] for model in msgspec.json.decode(reply.content)))


def is_ready() -> Steps[bool]:
    """Tell whether the server and all its models are ready."""
    try:
        reply = yield Send("GET", "/readyz")
    except UnreachableError:
        return False
    return bool(reply.status == _OK)


def new_id() -> str:
    """Return a unique id for a prediction."""
    return f"c{uuid.uuid4().hex}"


def _quoted(id: str) -> str:  # noqa: A002
    return quote(id, safe="")


def _pause(error: ClientError, attempt: int) -> float:
    """Return the seconds until the next attempt: what the server has said, or longer each time."""
    if isinstance(error, BusyError):
        return min(error.retry_after, _LONGEST_RETRY)
    return float(min(_FIRST_RETRY * 2 ** (attempt - 1), _LONGEST_RETRY))


def _check(reply: Reply) -> Reply:
    """Raise what an answer says that is none."""
    status = reply.status
    if status < _BAD:
        return reply
    message, detail = _explain(reply)
    if detail:
        raise InvalidInputError(detail, status)
    if status in {_UNAUTHORIZED, _FORBIDDEN}:
        raise AccessError(message, status)
    if status == _NOT_FOUND:
        raise NotFoundError(message, status)
    if status in _BUSY:
        after = reply.headers.get("retry-after", "")
        raise BusyError(message, status, float(after) if after.isdecimal() else 1.0)
    raise RefusedError(message, status)


def _explain(reply: Reply) -> tuple[str, list[dict[str, Any]]]:
    """Return the sentence of a refusal, and its wrong fields."""
    try:
        body = msgspec.json.decode(reply.content, type=dict[str, Any])
    except msgspec.DecodeError:
        body = {}
    detail = body.get("detail")
    message = body.get("error") or (detail if isinstance(detail, str) else f"the server answers {reply.status}")
    return str(message), detail if isinstance(detail, list) else []
