"""Answers that are streams: their requests, the times of their tokens, and the results of a level."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, get_args
from urllib.parse import quote

import msgspec

from geartrain.bench.connection import Target
from geartrain.bench.latencies import Latencies
from geartrain.bench.work import (
    JSON,
    MOST_BYTES,
    Fault,
    InputsError,
    ModelPath,
    StreamForm,
    Work,
    clip,
    encode,
    message_of,
)
from geartrain.domain.signature.openai_view import OpenAIView, openai_view
from geartrain.domain.signature.types import Signature

StreamProtocol = Literal["sse", "generate", "openai"]
STREAM_PROTOCOLS: Final[tuple[str, ...]] = get_args(StreamProtocol)

_OK: Final = 200
_DONE: Final = b"data: [DONE]"
_ERROR: Final = b'data: {"error":'
_COMPLETED: Final = b"event: completed\ndata: "


class StreamLatency(msgspec.Struct, frozen=True):
    """Distribution of a time, in seconds. `curve` has percentiles: pairs of a percentage and a time."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float
    curve: tuple[tuple[float, float], ...] = ()


class StreamFigures(msgspec.Struct, frozen=True):
    """Figures of the streams of a level that ended well.

    Attributes:
        first: from the moment a request was due to its first token.
        per_token: between two tokens of a stream, on average over the stream.
        tokens: their number, of all streams.
        token_rate: how many of them came in a second.
        are_counted: whether the model has counted them; otherwise each piece of a stream stands for one.
    """

    first: StreamLatency
    per_token: StreamLatency
    tokens: int
    token_rate: float
    are_counted: bool


class StreamMeter:
    """Counts the streams of a level."""

    def __init__(self) -> None:
        self.first = Latencies()
        self.per_token = Latencies()
        self.tokens = 0
        self.are_counted = True

    def add(self, count: int, *, is_counted: bool, due: float, first: float, ended: float) -> None:
        """Count a stream of `count` tokens. Moments as of `time.perf_counter()`; `first` is 0 without a token."""
        self.tokens += count
        self.are_counted = self.are_counted and is_counted
        if first:
            self.first.add(first - due)
            if count > 1:
                self.per_token.add((ended - first) / (count - 1))

    def figures(self, seconds: float, curve: Sequence[float]) -> StreamFigures | None:
        """Return the figures of a level that took so many seconds; None without a token."""
        if not self.tokens:
            return None
        return StreamFigures(
            _latency(self.first, curve),
            _latency(self.per_token, curve),
            self.tokens,
            self.tokens / seconds if seconds else 0.0,
            self.are_counted,
        )


def make_stream_work(
    target: Target, model: ModelPath, inputs: Sequence[dict[str, Any]], *, protocol: str, signature: Signature
) -> Work:
    """Create the sender of these inputs, for a protocol of `STREAM_PROTOCOLS`. Raises `InputsError`."""
    name = quote(model.name, safe="")
    headers: Mapping[str, str] = JSON
    form = FORMS[protocol]
    if protocol == "sse":
        if not signature.streaming:
            raise InputsError("the model gives no stream: it needs an iterator as output, and @streaming")
        path = "/predictions" if model.is_only else f"/models/{name}/predictions"
        bodies = [{"input": document} for document in inputs]
        headers = {**JSON, "Accept": "text/event-stream"}
    elif protocol == "generate":
        path = f"/v2/models/{name}/generate_stream"
        bodies = list(inputs)
    else:
        path = "/v1/chat/completions"
        view = openai_view(signature)
        bodies = [_chat(model.name, document, view) for document in inputs]
    requests = [target.request("POST", path, headers={**headers}, content=encode(body)) for body in bodies]
    if sum(map(len, requests)) > MOST_BYTES:
        raise InputsError(f"the inputs are more than {MOST_BYTES // 10**6} MB as requests; give fewer of them")
    return Work(tuple(requests), form.judge, form.stream)


def _chat(model: str, document: dict[str, Any], view: OpenAIView) -> dict[str, Any]:
    """Return the body of a chat completion for an input of the model. Raises `InputsError`."""
    if not (view.messages or view.prompt):
        raise InputsError("the model has no chat completions: it takes neither messages nor a prompt, or gives no text")
    rest = {name: value for name, value in document.items() if name not in (view.messages, view.prompt)}
    if view.messages:
        messages = document.get(view.messages)
        if not isinstance(messages, list):
            raise InputsError('the input "messages" has to be a list; give --json or --inputs')
    else:
        messages = [{"role": "user", "content": str(document.get(view.prompt, ""))}]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    return {**rest, "model": model, "messages": messages, **options}


# content of the events


def _judge_events(status: int, content: bytes) -> Fault | None:
    if status != _OK:
        return Fault(f"HTTP {status}", message_of(content))
    _, found, last = content.rpartition(_COMPLETED)
    if not found:
        return Fault("no end", clip(content[-300:].decode(errors="replace")))
    end = _read(_PREDICTION, last)
    if end is None:
        return Fault("no prediction", clip(last.decode(errors="replace")))
    return None if end.status == "succeeded" else Fault(end.status, clip(end.error or "no error is given"))


def _judge_generated(status: int, content: bytes) -> Fault | None:
    if status != _OK:
        return Fault(f"HTTP {status}", message_of(content))
    place = content.rfind(_ERROR)
    return None if place < 0 else Fault("failed", message_of(content[place + len(b"data: ") :]))


def _judge_chat(status: int, content: bytes) -> Fault | None:
    if status == _OK and content.rstrip().endswith(_DONE):
        return None
    place = content.rfind(_ERROR)
    said = content if status != _OK else content[place + len(b"data: ") :] if place >= 0 else b""
    kind = f"HTTP {status}" if status != _OK else "failed"
    return Fault(kind, message_of(said) if said else "the stream has no end")


def _count_events(content: bytes) -> tuple[int, bool]:
    end = _read(_PREDICTION, content.rpartition(_COMPLETED)[2])
    tokens = end.metrics.get("tokens") if end is not None else None
    counted = tokens.get("completion") if isinstance(tokens, dict) else None
    return _counted(counted, content, FORMS["sse"].stream)


def _count_generated(content: bytes) -> tuple[int, bool]:
    return _counted(None, content, FORMS["generate"].stream)


def _count_chat(content: bytes) -> tuple[int, bool]:
    for event in reversed(content.split(b"\n\n")[-4:]):
        found = _read(_USAGE, event.removeprefix(b"data: "))
        if found is not None and found.usage is not None:
            return _counted(found.usage.completion_tokens, content, FORMS["openai"].stream)
    return _counted(None, content, FORMS["openai"].stream)


def _counted(counted: Any, content: bytes, stream: StreamForm) -> tuple[int, bool]:
    """Return the number of tokens, and whether the model has counted them."""
    if isinstance(counted, int) and counted > 0:
        return counted, True
    return len(stream.token.findall(content)), False


class _Prediction(msgspec.Struct):
    status: str
    error: str | None = None
    metrics: dict[str, Any] = {}


class _Tokens(msgspec.Struct):
    completion_tokens: int = 0


class _Usage(msgspec.Struct):
    usage: _Tokens | None = None


_PREDICTION: Final = msgspec.json.Decoder(_Prediction)
_USAGE: Final = msgspec.json.Decoder(_Usage)


def _read(decoder: msgspec.json.Decoder[Any], content: bytes) -> Any:
    try:
        return decoder.decode(content)
    except msgspec.DecodeError:
        return None


class _Form(NamedTuple):
    judge: Callable[[int, bytes], Fault | None]
    stream: StreamForm


FORMS: Final[dict[str, _Form]] = {
    "sse": _Form(_judge_events, StreamForm(re.compile(rb"event: output\n"), _count_events)),
    "generate": _Form(_judge_generated, StreamForm(re.compile(rb"data: \{"), _count_generated)),
    "openai": _Form(
        _judge_chat, StreamForm(re.compile(rb'"(?:reasoning_)?content":"(?!")|"tool_calls":\['), _count_chat)
    ),
}


def _latency(latencies: Latencies, curve: Sequence[float]) -> StreamLatency:
    return StreamLatency(
        latencies.mean,
        latencies.percentile(50),
        latencies.percentile(90),
        latencies.percentile(99),
        latencies.longest,
        tuple((percent, latencies.percentile(percent)) for percent in curve),
    )
