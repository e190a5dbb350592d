"""The methods of MCP: what a client asks of the models, whatever its transport is."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from geartrain.apis.mcp import messages, tools
from geartrain.apis.mcp.messages import JsonObject, Message, MessageId
from geartrain.apis.mcp.tools import CallResult, call_result, chunk_text, error_result, has_files
from geartrain.authoring import __version__
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.events import LAST, Event, Log, Output
from geartrain.domain.predictions.lifecycle import DORMANT, Health
from geartrain.domain.predictions.prediction import Prediction, PredictionRecord
from geartrain.domain.predictions.request_context import NO_REQUEST, RequestContext
from geartrain.domain.principal import ANYONE, Principal
from geartrain.domain.printed.text import PrintedLines
from geartrain.domain.signature.types import Signature
from geartrain.service.models import inference
from geartrain.service.models.admission import CheckedInput, NewPrediction
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.models.deployment import Deployment
from geartrain.service.models.waking import when_loaded
from geartrain.service.readers import EventReader, LaggedError, completion
from geartrain.transport.errors import BUG
from geartrain.transport.large_bodies import LargeBodies, is_light, read_aside
from geartrain.transport.mcp.kept import TEMPLATE, KeptFiles, read_file
from geartrain.transport.wire.exchange import ClientGoneError

logger = logging.getLogger(__name__)

T = TypeVar("T")
Notify = Callable[[str, JsonObject], Awaitable[None]]
"""Sends a notification that belongs to a request: its method and its parameters. May wait for a slow client."""

_SERVER: Final = {"name": "geartrain", "version": __version__}
_CAPABILITIES: Final[JsonObject] = {"tools": {}, "resources": {}, "logging": {}}
_INSTRUCTIONS: Final = (
    "Each tool runs one machine-learning model. Files are given as https: or data: URLs. "
    "The files of results can be read again as resources for some minutes."
)
_LARGE_OUTPUT: Final = 262_144  # bytes, from which on a thread makes the result
_LONGEST_URI: Final = 1024  # characters that an error repeats
_LEVELS: Final = {"stdout": "info", "stderr": "notice"}


class Caller(msgspec.Struct, frozen=True):
    """The sender of one request.

    Attributes:
        version: the revision of the protocol.
        level: the least severe log messages that it wants, None for none at all.
        can_be_notified: whether its answer can have notifications before it.
        check_model: raises `GeartrainError` for the name of a model that its key is not for.
        principal: the owner of its predictions.
        context: the ids of its request.
        on_admitted: is called with the record of its prediction.
    """

    version: str
    level: str | None = "info"
    can_be_notified: bool = True
    check_model: Callable[[str], None] = lambda _name: None
    principal: Principal = ANYONE
    context: RequestContext = NO_REQUEST
    on_admitted: Callable[[PredictionRecord], None] = lambda _record: None

    @property
    def is_stateless(self) -> bool:
        """True if the protocol has no handshake."""
        return self.version == messages.STATELESS


class Methods:
    """Answers the requests of clients for the models of some catalogues, whose names differ."""

    def __init__(self, catalogues: Sequence[Catalogue], bodies: LargeBodies) -> None:
        """`bodies` reads large arguments."""
        self._catalogues = tuple(catalogues)
        self._bodies = bodies
        self.kept = KeptFiles()

    async def answer(self, message: Message, caller: Caller, notify: Notify) -> JsonObject:
        """Return the result of a request. Raises `Fault`. The call of a tool ends when this is canceled."""
        try:
            return self._complete(await self._result(message, caller, notify), caller)
        except (messages.Fault, ClientGoneError):
            raise
        except Exception as error:  # whatever it is, it is logged and answered
            logger.exception("a method of MCP failed", exc_info=error)
            raise messages.Fault(messages.INTERNAL_ERROR, BUG.message) from None

    async def _result(self, message: Message, caller: Caller, notify: Notify) -> JsonObject:
        if message.method == "tools/call":
            return await self._call(message, caller, notify)
        if message.method == "tools/list":
            return self._list(message, caller)
        if message.method.startswith("resources/"):
            return await self._resources(message, caller)
        if message.method == "server/discover" and caller.is_stateless:
            versions = {"supportedVersions": list(messages.VERSIONS)}
            return {**versions, "capabilities": _CAPABILITIES, "instructions": _INSTRUCTIONS, **_cache("public")}
        if message.method == "ping" and not caller.is_stateless:
            return {}
        raise messages.unknown_method(message.method)

    def _complete(self, result: JsonObject, caller: Caller) -> JsonObject:
        """Add what each result has in the protocol without a handshake."""
        if not caller.is_stateless:
            return result
        meta = {**result.get("_meta", {}), messages.SERVER_KEY: _SERVER}
        return {**result, "resultType": "complete", "_meta": meta}

    # the list

    def _list(self, message: Message, caller: Caller) -> JsonObject:
        """Return a page of the models that are ready or rest, of those that the caller's key is for."""
        cursor = message.optional_text("cursor")
        signatures = self._signatures(caller)
        names = sorted(signatures)
        begin = 0 if cursor is None else bisect_right(names, tools.decode_cursor(cursor))
        page = names[begin : begin + tools.PAGE]
        result: JsonObject = {"tools": [tools.describe_tool(name, signatures[name]) for name in page]}
        if begin + tools.PAGE < len(names):
            result["nextCursor"] = tools.encode_cursor(page[-1])
        return {**result, **_cache("private")} if caller.is_stateless else result

    def _signatures(self, caller: Caller) -> dict[str, Signature | None]:
        """Return the signatures of the models that can be called, by name; None for one that rests."""
        found: dict[str, Signature | None] = {}
        for catalogue in self._catalogues:
            for name in catalogue.names():
                entry = catalogue.entry(name)
                if not _may_see(caller, name):
                    continue
                if entry.has_default:
                    deployment = entry.deployment()
                    if deployment.workers.health is Health.READY:
                        found[name] = deployment.interface.signature
                elif any(version.state in DORMANT for version in entry.versions.values()):
                    found[name] = None
        return found

    # files

    async def _resources(self, message: Message, caller: Caller) -> JsonObject:
        """Return a page of the files that are kept, one of them, or the form of their URIs."""
        may_see = partial(_may_see, caller)
        if message.method == "resources/list":
            result = self.kept.page(message.optional_text("cursor"), caller.principal, may_see)
        elif message.method == "resources/templates/list":
            result = {"resourceTemplates": [TEMPLATE]}
        elif message.method == "resources/read":
            uri = message.text("uri")
            try:
                prediction, signature = self.kept.find(uri, caller.principal, may_see)
            except LookupError as error:
                number = messages.INVALID_PARAMS if caller.is_stateless else messages.NO_RESOURCE
                raise messages.Fault(number, str(error), data={"uri": uri[:_LONGEST_URI]}) from None
            result = await _beside(
                read_file, prediction, signature, uri, version=caller.version, size=_size_of(prediction)
            )
        else:
            raise messages.unknown_method(message.method)
        return {**result, **_cache("private")} if caller.is_stateless else result

    # a call

    async def _call(self, message: Message, caller: Caller, notify: Notify) -> JsonObject:
        name, token = message.text("name"), message.progress_token
        arguments = bytes(message.object("arguments"))
        try:
            deployment, prediction = await self._begin(name, arguments, caller)
        except GeartrainError as error:
            if error.code is Code.INTERNAL:
                raise
            return error_result(error)
        caller.on_admitted(prediction.record)
        try:
            await _Follower(deployment, prediction, caller, token=token, notify=notify).follow()
            return await self._result_of(deployment, prediction, caller)
        finally:
            if not prediction.is_terminal:
                deployment.predictions.abandon(prediction)

    async def _begin(self, name: str, arguments: bytes, caller: Caller) -> tuple[Deployment, Prediction]:
        """Start the prediction of a call, when its model is loaded. Raises `GeartrainError`, and `Fault`."""
        checked: CheckedInput | None = None
        if not is_light(arguments):
            deployment = await when_loaded(lambda: self._find(name, caller))
            deployment.workers.check_ready()
            body = await self._bodies.read_cog(bytearray(b'{"input":%b}' % arguments), deployment.interface)
            arguments, checked = body.input, body.checked

        def begin() -> tuple[Deployment, Prediction]:
            deployment = self._find(name, caller)
            new = NewPrediction(
                input=arguments,
                queue=deployment.settings.inference_queue,
                keep=has_files(deployment.interface.signature),
                request=caller.context,
                principal=caller.principal,
                checked=checked,
            )
            return deployment, deployment.create(new)

        return await when_loaded(begin)

    async def _result_of(self, deployment: Deployment, prediction: Prediction, caller: Caller) -> JsonObject:
        """Return the result of a prediction that is over; its files become resources."""
        try:
            inference.check_success(deployment, prediction)
        except GeartrainError as error:
            return error_result(error, prediction.id)
        output, signature = prediction.output, deployment.interface.signature
        size = 0 if output is None else len(output)
        made: CallResult = await _beside(
            call_result, output, signature, prediction.id, version=caller.version, size=size
        )
        self.kept.add(deployment, prediction, made.files)
        return made.answer

    def _find(self, name: str, caller: Caller) -> Deployment:
        """Return the model of a name, or of `name@version`. Raises `GeartrainError`, and `Fault` for an unknown one.

        To a caller whose key is not for a model, its name is unknown.
        """
        base, _, version = name.rpartition("@")
        for model, number in [(name, ""), *([(base, version)] if base and version else [])]:
            if not _may_see(caller, model):
                continue
            for catalogue in self._catalogues:
                try:
                    return catalogue.find(model, number) if number else catalogue.entry(model).deployment()
                except GeartrainError as error:
                    if error.code is not Code.NOT_FOUND:
                        raise
        raise messages.Fault(
            messages.INVALID_PARAMS, f"Unknown tool: '{name[:200]}'. tools/list names those there are."
        )


class _Follower:
    """Follows a prediction to its end, and notifies its client of what it gives and prints meanwhile."""

    def __init__(
        self,
        deployment: Deployment,
        prediction: Prediction,
        caller: Caller,
        *,
        token: MessageId | None,
        notify: Notify,
    ) -> None:
        self._name = deployment.name
        self._signature = deployment.interface.signature
        self._prediction = prediction
        self._token = token
        self._notify = notify
        lowest = None if caller.level is None else messages.LEVELS.index(caller.level)
        self._sources = {
            source for source, level in _LEVELS.items() if lowest is not None and messages.LEVELS.index(level) >= lowest
        }
        self._is_silent = not caller.can_be_notified or (token is None and not self._sources)
        self._lines = {"stdout": PrintedLines(), "stderr": PrintedLines()}
        self._progress = 0

    async def follow(self) -> None:
        """Return when the prediction is over."""
        if self._is_silent:
            await completion(self._prediction)
            return
        reader = EventReader(self._prediction)
        is_over = False
        try:
            while not is_over:
                try:
                    events = await reader.batch()
                except LaggedError:  # notifications may be left out; the result has everything
                    await completion(self._prediction)
                    return
                is_over = bool(events) and type(events[-1]) in LAST
                await self._tell(events, is_over=is_over)
        finally:
            reader.close()

    async def _tell(self, events: Sequence[Event], *, is_over: bool) -> None:
        """Notify the client of events: of those that came together, once."""
        texts: list[str] = []
        count = 0
        for event in events:
            if type(event) is Output and self._signature.output.mode != "value":
                count += 1
                texts.append(chunk_text(self._signature, event.chunk))
            elif type(event) is Log:
                lines = self._lines[event.source].add(event.data)
                count += len(lines)
                texts += [f"{line}\n" for line in lines]
                bar = event.data.rpartition("\r")[2].strip() if "\r" in event.data else ""
                if bar and not lines:  # a progress bar, which completes no line before its end
                    count += 1
                    texts.append(f"{bar}\n")
                await self._log(event.source, lines)
        if is_over:
            for source, printed in self._lines.items():
                await self._log(source, printed.end())
        if count and self._token is not None:
            self._progress += count
            progress = {"progressToken": self._token, "progress": self._progress}
            text = "".join(texts).removesuffix("\n")
            await self._notify("notifications/progress", {**progress, **({"message": text} if text else {})})

    async def _log(self, source: str, lines: Sequence[str]) -> None:
        if source in self._sources:
            for line in lines:
                data = {"level": _LEVELS[source], "logger": self._name, "data": line}
                await self._notify("notifications/message", data)


async def _beside(function: Callable[..., T], *args: Any, size: int, **kwargs: Any) -> T:
    """Call a function, on a thread where it reads an output that is large."""
    return await read_aside(function, *args, **kwargs) if size > _LARGE_OUTPUT else function(*args, **kwargs)


def _size_of(prediction: Prediction) -> int:
    """Return the bytes of an output."""
    return 0 if prediction.output is None else len(prediction.output)


def handshake(version: str) -> JsonObject:
    """Return the result of `initialize` for a client that asks for this revision."""
    return {
        "protocolVersion": version if version in messages.HANDSHAKE_VERSIONS else messages.HANDSHAKE_VERSIONS[0],
        "capabilities": _CAPABILITIES,
        "serverInfo": _SERVER,
        "instructions": _INSTRUCTIONS,
    }


def _may_see(caller: Caller, model: str) -> bool:
    try:
        caller.check_model(model)
    except GeartrainError:
        return False
    return True


def _cache(scope: str) -> JsonObject:
    """Return the seconds that clients may keep a list: none, as models come and go."""
    return {"ttlMs": 0, "cacheScope": scope}
