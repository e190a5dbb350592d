"""The steps of every endpoint of OpenAI's API: the body, the model that it names, and the runs of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar

import msgspec

from geartrain.apis import generate
from geartrain.apis.openai.embeddings import EmbeddingRequest
from geartrain.apis.openai.errors import invalid, rename, unknown_model, unsupported
from geartrain.apis.openai.parameters import Members, decoded
from geartrain.apis.openai.text_requests import TextRequest
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.prediction import NO_PREDICTION, Prediction
from geartrain.domain.signature.openai_view import OpenAIView
from geartrain.domain.signature.types import Signature
from geartrain.service.models.admission import CheckedInput, NewPrediction, without_secrets
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.models.deployment import Deployment
from geartrain.service.models.waking import when_loaded
from geartrain.service.scheduling.files import Attachments
from geartrain.transport.held_texts import HeldBody
from geartrain.transport.large_bodies import GenerateBody, LargeBodies, read_aside
from geartrain.transport.records import RequestRecord
from geartrain.transport.runs import DIRECT_LIMIT
from geartrain.transport.wire.exchange import Body, Head

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Members).decode

T = TypeVar("T")
RequestT = TypeVar("RequestT", bound=TextRequest | EmbeddingRequest)
Given = Members | GenerateBody  # an input, or a large one that has been checked


class Asked(msgspec.Struct, frozen=True):
    """A body, and the model that it names."""

    deployment: Deployment
    members: Members
    model: str  # the client's name for it
    is_large: bool = False  # its inputs take long to read
    held: HeldBody | None = None  # the body of members without long texts
    is_again: bool = False  # another choice for an input, which a kept answer would make equal to the first

    def for_choice(self, number: int) -> Asked:
        """Return the request for one of several choices for the same input; `number` is from 0 on."""
        return msgspec.structs.replace(self, is_again=True) if number else self

    @property
    def view(self) -> OpenAIView:
        """The endpoints of the model."""
        return self.deployment.openai.view

    @property
    def signature(self) -> Signature:
        """The model's signature, whose inputs have the names of parameters."""
        return self.deployment.openai.signature


async def read_asked(
    catalogue: Catalogue, head: Head, body: Body, *, bodies: LargeBodies | None = None, may_hold: bool = False
) -> Asked:
    """Read a body and find its model, which is loaded first if it rests. Raises `GeartrainError`.

    `may_hold`: long texts of a large body may be left out of its members, for `read_inputs`.
    """
    is_large = len(body) > DIRECT_LIMIT
    held = await bodies.hold_texts(body) if is_large and may_hold and bodies is not None else None
    if held is not None:
        members = held.members
    elif is_large and bodies is not None:
        members = await bodies.read_members(body)
    else:
        members = await read_aside(generate.read_members, body) if is_large else generate.read_members(body)
    name = read_model(members)
    deployment = await find_ready(catalogue, head, name)
    return Asked(deployment, members, name, is_large, held)


async def read_inputs(
    asked: Asked, read: Callable[[Members, Signature, OpenAIView], RequestT], *, bodies: LargeBodies
) -> tuple[RequestT, Sequence[Given]]:
    """Read the members of a body, and check the inputs of a large one, without holding the loop.

    Raises `GeartrainError`.
    """
    if asked.held is not None:
        found = await read_aside(_read_held, asked, asked.held, read)
        if found is not None:
            return found
        members = await bodies.read_members(asked.held.body)
        del members["model"]
        asked = msgspec.structs.replace(asked, members=members, held=None)
    request = await read_request(asked, read)
    if not asked.is_large:
        return request, request.inputs
    chat = request.chat if isinstance(request, TextRequest) else {}
    beside = sum(map(len, chat.values()))
    prepared = [await prepare(asked, one, names=request.names, bodies=bodies, beside=beside) for one in request.inputs]
    return request, [await read_aside(_with_chat, asked, one, chat) for one in prepared] if chat else prepared


def _with_chat(asked: Asked, given: Given, chat: Members) -> Given:
    """Put messages in the place of their plain text in a large input that has been checked with it."""
    if not isinstance(given, GenerateBody):
        return given
    chat = _by_inputs(asked, chat)
    request, checked = given.request, given.checked
    values = _encode({**_decode(request.values), **chat})
    secrets = checked.interface.validator.secret_fields
    checked = msgspec.structs.replace(
        checked,
        values=None if checked.values is None else {**checked.values, **chat},
        echo=without_secrets(values, secrets) if secrets else None,
    )
    return GenerateBody(msgspec.structs.replace(request, values=values), checked)


def _read_held(
    asked: Asked, held: HeldBody, read: Callable[[Members, Signature, OpenAIView], RequestT]
) -> tuple[RequestT, Sequence[Given]] | None:
    """Read a body without its long texts, and put these into the inputs; None if it has to be read whole."""
    interface = asked.deployment.interface
    chat: Members = {}
    inputs = []
    try:
        request = read(asked.members, asked.signature, asked.view)
        if isinstance(request, TextRequest):
            if request.count > 1 or any(request.echoes):  # texts are counted, or are in the answer
                return None
            chat = _by_inputs(asked, request.chat)
        for one in request.inputs:
            made = held.input(_by_inputs(asked, one), chat, interface)
            if made is None:
                return None
            inputs.append(GenerateBody(*made))
    except GeartrainError:
        return None  # the whole body has the same fault
    return request, inputs


async def read_request(asked: Asked, read: Callable[[Members, Signature, OpenAIView], T]) -> T:
    """Read the members of a body; those of a large one in a thread. Raises `GeartrainError`."""
    if asked.is_large:
        return await read_aside(read, asked.members, asked.signature, asked.view)
    return read(asked.members, asked.signature, asked.view)


def check_served(deployment: Deployment, endpoint: str) -> None:
    """Raise `OpenAIError` for an endpoint that is switched off for a model."""
    if endpoint in deployment.openai.view.off:
        raise invalid(f"The model has no {endpoint}: this endpoint is switched off.", "model", "unsupported_model")


def check_ignored(deployment: Deployment, ignored: Sequence[str]) -> None:
    """Raise `OpenAIError` for parameters that would be passed over, if the model's settings refuse them."""
    if ignored and deployment.settings.openai.refuses:
        raise unsupported(ignored[0], "the model has no input of this name")


async def prepare(
    asked: Asked, given: Members, *, names: dict[str, str], bodies: LargeBodies, beside: int = 0
) -> Given:
    """Check a large input without holding the loop; `begin` checks any other. Raises `GeartrainError`.

    `beside`: the bytes of what takes the place of a member when it has been checked.
    """
    if not asked.is_large or sum(map(len, given.values())) + beside <= DIRECT_LIMIT:
        return given
    body = await read_aside(_encode, {"parameters": _by_inputs(asked, given)})
    try:
        return await bodies.read_generate(body, asked.deployment.interface)
    except GeartrainError as error:
        raise rename(error, _names_by_inputs(asked, names)) from None


def _by_inputs(asked: Asked, given: Members) -> Members:
    """Return members with the names of the model's inputs in place of those of parameters."""
    inputs = asked.deployment.openai.inputs
    return {inputs.get(name, name): value for name, value in given.items()} if inputs else given


def _names_by_inputs(asked: Asked, names: dict[str, str]) -> dict[str, str]:
    """Return the names of parameters by the model's own names of the inputs that they fill."""
    inputs = asked.deployment.openai.inputs
    return {inputs.get(name, name): names.get(name, name) for name in (*names, *inputs)} if inputs else names


async def find_ready(catalogue: Catalogue, head: Head, name: str) -> Deployment:
    """Find a model, which is loaded first if it rests. Raises `GeartrainError` unless it is ready."""
    deployment = await when_loaded(lambda: find(catalogue, head, name))
    deployment.workers.check_ready()
    return deployment


def read_model(members: Members) -> str:
    """Take the name of the model out of a body. Raises `OpenAIError`."""
    raw = members.pop("model", None)
    name = None if raw is None else decoded("model", raw, Any)
    if not isinstance(name, str) or not name:
        raise invalid("'model' is missing: name a model of GET /v1/models", "model")
    return name


def find(catalogue: Catalogue, head: Head, name: str) -> Deployment:
    """Return the model of a name, or of `name@version`. One that the client's key is not for is not there for it.

    Raises `GeartrainError`.
    """
    base, _, version = name.rpartition("@")
    candidates = [(name, ""), (base, version)] if base and version else [(name, "")]
    for model, number in chain(candidates, _by_alias(catalogue, name)):
        try:
            head.notes.check_model(model)
            return catalogue.find(model, number)
        except GeartrainError as error:
            if error.code not in {Code.FORBIDDEN, Code.NOT_FOUND}:
                raise
    raise unknown_model(name)


def _by_alias(catalogue: Catalogue, name: str) -> Iterator[tuple[str, str]]:
    """Yield the models with an alias, each with no version."""
    for model in catalogue.names():
        entry = catalogue.entry(model)
        if entry.has_default and name in entry.deployment().settings.openai.aliases:
            yield model, ""


def begin_all(
    asked: Asked,
    inputs: Sequence[Given],
    *,
    names: dict[str, str],
    record: RequestRecord,
    chat: Members | None = None,
    count: int = 1,
) -> list[Prediction]:
    """Start a prediction for each input: all of them or none. Raises `GeartrainError`.

    `names` and `chat` as for `begin`. `count`: so many inputs, one behind the other, are choices for the same one.
    """
    predictions: list[Prediction] = []
    try:
        for at, one in enumerate(inputs):
            choice = asked.for_choice(at % count)
            predictions.append(begin(choice, one, names=names, record=record, chat=chat))
    except BaseException:
        forsake_all(asked.deployment, predictions)  # those before the one that could not begin
        raise
    return predictions


def begin(
    asked: Asked,
    given: Given,
    *,
    names: dict[str, str],
    record: RequestRecord,
    chat: Members | None = None,
    attachments: Attachments | None = None,
    inline: bool = False,
) -> Prediction:
    """Start a prediction. Raises `GeartrainError`; `attachments` are then still the caller's.

    `names`: the parameters that have filled inputs of another name, by these inputs. `record` is that of the request,
    which tells of its first prediction. `chat`: see `TextRequest`. `inline`: output files become `data:` URLs, whatever
    the server is told.
    """
    deployment = asked.deployment
    interface = deployment.interface
    try:
        checked: CheckedInput | None = None
        if isinstance(given, GenerateBody):
            request, checked = given.request, given.checked
        else:
            given = _by_inputs(asked, given)
            members = {"parameters": msgspec.Raw(_encode(given))}  # its values come from a body that has been read
            request = generate.make_request(members, interface.signature, interface.view)
        values = request.values
        if chat and checked is None:
            chat = _by_inputs(asked, chat)
            values = _encode({**_decode(values), **chat})
            checked = _check(deployment, request, sent=values, chat=chat)
        new = NewPrediction(
            input=values,
            tensors=request.tensors,
            parameters=request.request.parameters or None,
            queue=deployment.settings.inference_queue,
            request=msgspec.structs.replace(record.context, cache="no-store") if asked.is_again else record.context,
            attachments=attachments,
            inline=inline,
            checked=checked,
        )
        prediction = deployment.create(new)
    except GeartrainError as error:
        raise rename(error, _names_by_inputs(asked, names)) from None
    if record.prediction is NO_PREDICTION:
        record.prediction = prediction.record
    return prediction


def _check(deployment: Deployment, request: generate.GenerateRequest, *, sent: bytes, chat: Members) -> CheckedInput:
    """Check an input whose prompt is the plain text of a chat, for one that is `sent` with the messages in its place.

    Raises `GeartrainError`.
    """
    admission = deployment.admission
    values = admission.check(NewPrediction(input=request.values, tensors=request.tensors))
    if values is not None:
        values |= {name: decoded(name, raw, Any) for name, raw in chat.items()}
    echo = without_secrets(sent, admission.secrets) if admission.secrets else None
    return CheckedInput(admission.interface, values=values, echo=echo)


def forsake_all(deployment: Deployment, predictions: Iterable[Prediction]) -> None:
    """Cancel those that still run: they have no reader any more."""
    for prediction in predictions:
        if not prediction.is_terminal:
            deployment.predictions.abandon(prediction)
