"""Chats with a server of OpenAI's API, whose answers are read as they come. For `geartrain chat`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Self

import httpx
import msgspec

from geartrain.client.errors import ClientError
from geartrain.client.wires import Options, error_of

_BAD: Final = 400
_CONNECT: Final = 10.0  # seconds
_DONE: Final = "[DONE]"
_CUT: Final = "the answer has broken off before its end"

Message = dict[str, Any]


class CallPart(msgspec.Struct, frozen=True):
    """A part of a call of a tool; parts with one `index` belong together. `arguments` is a piece of JSON text."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


class ChatPiece(msgspec.Struct, frozen=True):
    """A piece of an answer. `usage` is the server's count of tokens, which comes at the end."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[CallPart, ...] = ()
    finish_reason: str = ""
    usage: Mapping[str, Any] = {}


class Answering:
    """An answer that comes. `ignored` are the names of parameters that the server has passed over."""

    def __init__(self, response: httpx.Response, url: str) -> None:
        self._response = response
        self._url = url
        names = response.headers.get("x-geartrain-ignored", "")
        self.ignored = tuple(name.strip() for name in names.split(",") if name.strip())

    def pieces(self) -> Iterator[ChatPiece]:
        """Yield the pieces as they come. Raises `ClientError`, also for an answer that breaks off."""
        has_ended = False
        try:
            for line in self._response.iter_lines():
                field, _, value = line.partition(":")
                data = value.strip()
                if field != "data" or not data:
                    continue
                if data == _DONE:
                    return
                piece = _piece(data)
                has_ended = has_ended or bool(piece.finish_reason)
                yield piece
        except httpx.HTTPError as error:
            raise error_of(error, self._url) from error
        if not has_ended:
            raise ClientError(_CUT)


class ChatClient:
    """A client that blocks. `url` is that of the server, with or without `/v1` at its end."""

    def __init__(self, url: str, *, key: str | None, verify: bool | str) -> None:
        self._url = f"{url.rstrip('/').removesuffix('/v1')}/v1"
        options = Options(url=self._url, key=key, verify=verify, timeout=None, connect_timeout=_CONNECT, headers={})
        self._http = httpx.Client(**options.of_httpx())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def models(self) -> list[str]:
        """Return the names of the models that chat. Raises `ClientError`."""
        try:
            response = self._http.get(f"{self._url}/models", timeout=_CONNECT)
        except httpx.HTTPError as error:
            raise error_of(error, self._url) from error
        _check(response)
        listed = _decoded(response.content).get("data")
        models = [model for model in listed if isinstance(model, dict)] if isinstance(listed, list) else []
        return [str(model["id"]) for model in models if "chat" in model.get("endpoints", ("chat",))]

    @contextmanager
    def ask(self, model: str, messages: Sequence[Message], parameters: Mapping[str, Any]) -> Iterator[Answering]:
        """Ask for the next message of a chat. The end of the block before that of the answer cancels it.

        Raises `ClientError`.
        """
        body = {
            **parameters,
            "model": model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        request = self._http.build_request("POST", f"{self._url}/chat/completions", json=body)
        try:
            response = self._http.send(request, stream=True)
        except httpx.HTTPError as error:
            raise error_of(error, self._url) from error
        try:
            if response.status_code >= _BAD:
                response.read()
            _check(response)
            yield Answering(response, self._url)
        finally:
            response.close()


def _check(response: httpx.Response) -> None:
    """Raise `ClientError` for an error, with the sentence of the server."""
    if response.status_code < _BAD:
        return
    try:
        message = _message(_decoded(response.content))
    except ClientError:
        message = response.text[:300]
    raise ClientError(message or f"the server answers {response.status_code}")


def _message(body: dict[str, Any]) -> str:
    error = body.get("error")
    return str(error.get("message")) if isinstance(error, dict) else str(error or body.get("detail") or "")


def _piece(data: str) -> ChatPiece:
    chunk = _decoded(data.encode())
    if chunk.get("error"):
        raise ClientError(_message(chunk))
    choices = chunk.get("choices") or [{}]
    choice = choices[0]
    delta = choice.get("delta") or {}
    calls = tuple(_call(call, at) for at, call in enumerate(delta.get("tool_calls") or ()))
    return ChatPiece(
        delta.get("content") or "",
        delta.get("reasoning_content") or delta.get("reasoning") or "",
        calls,
        choice.get("finish_reason") or "",
        chunk.get("usage") or {},
    )


def _call(call: dict[str, Any], at: int) -> CallPart:
    function = call.get("function") or {}
    return CallPart(
        call.get("index", at), call.get("id") or "", function.get("name") or "", function.get("arguments") or ""
    )


def _decoded(content: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ClientError(f"the server does not speak OpenAI's API: {error}") from error
