"""A model of LitServe with `spec=OpenAISpec()`: its `predict` gets the messages of a chat, and yields texts."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Final

from geartrain.authoring.scope import current_scope
from geartrain.openai import Delta, Message, ToolCall

_COUNTS: Final = {"prompt_tokens": "tokens.prompt", "completion_tokens": "tokens.completion"}


class Chat:
    """Answers chats with the methods of a `LitAPI`."""

    def __init__(self, api: Any, base: Any, with_context: Callable[[Callable[..., Any]], Any]) -> None:
        """`base` is `LitAPI`, whose own methods have no effect; `with_context` is that of litserve.py."""
        self._api = api
        kind: Any = type(api)
        decodes = kind.decode_request is not base.decode_request
        encodes = kind.encode_response is not base.encode_response
        self._decode = with_context(api.decode_request) if decodes else None
        self._predict = with_context(api.predict)
        self._encode = with_context(api.encode_response) if encodes else None
        self._takes_batches = api.max_batch_size > 1

    def run(
        self,
        messages: list[Message],
        *,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
        tools: list[dict[str, Any]] | None = None,
    ) -> Iterator[Delta]:
        """Answer a chat."""
        context = _context(messages, temperature=temperature, top_p=top_p, max_tokens=max_tokens, tools=tools)
        for piece in self._output(context, self._decoded(context)):
            yield _delta(piece)

    async def run_async(
        self,
        messages: list[Message],
        *,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
        tools: list[dict[str, Any]] | None = None,
    ) -> AsyncIterator[Delta]:
        """Answer a chat with coroutines."""
        context = _context(messages, temperature=temperature, top_p=top_p, max_tokens=max_tokens, tools=tools)
        taken = self._decoded(context)
        output = self._output(context, await taken if inspect.isawaitable(taken) else taken)
        if hasattr(output, "__aiter__"):
            async for piece in output:
                yield _delta(piece)
        else:
            for piece in output:
                yield _delta(piece)

    def _decoded(self, context: dict[str, Any]) -> Any:
        """Read the input of `predict`: the messages, or what the author's `decode_request` makes of the request."""
        if self._decode is None:
            return context["messages"]
        messages = [SimpleNamespace(**message) for message in context["messages"]]
        return self._decode(context, SimpleNamespace(**{**context, "messages": messages}))

    def _output(self, context: dict[str, Any], taken: Any) -> Any:
        if self._takes_batches:  # of one: a stream has a request of its own
            made = self._api.unbatch(self._predict([context], self._api.batch([taken])))
            steps = made if self._encode is None else self._encode([context], made)
            return (step[0] for step in steps)
        made = self._predict(context, taken)
        made = [made] if isinstance(made, str) else made
        return made if self._encode is None else self._encode(context, made)


def _context(messages: list[Message], **given: Any) -> dict[str, Any]:
    return {"messages": [dict(each) for each in messages], **{k: v for k, v in given.items() if v is not None}}


def _delta(piece: Any) -> Delta:
    """Make a part of the answer of a text, of a dict, or of a message; counts of tokens become metrics."""
    if isinstance(piece, str):
        return {"content": piece}
    found = piece if isinstance(piece, dict) else piece.model_dump(exclude_none=True)
    for name, metric in _COUNTS.items():
        if name in found:
            current_scope().record_metric(metric, found[name])
    delta: Delta = {}
    if found.get("content"):
        delta["content"] = str(found["content"])
    if found.get("tool_calls"):
        delta["tool_calls"] = [_call(place, call) for place, call in enumerate(found["tool_calls"])]
    return delta


def _call(place: int, call: Mapping[str, Any]) -> ToolCall:
    """Make a call of a tool of one in OpenAI's form."""
    function = call.get("function") or {}
    made: ToolCall = {"index": call.get("index", place)}
    for name, value in (
        ("id", call.get("id")),
        ("name", function.get("name")),
        ("arguments", function.get("arguments")),
    ):
        if value is not None:
            made[name] = str(value)  # type: ignore[literal-required]
    return made
