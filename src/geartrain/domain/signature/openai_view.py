"""The endpoints of OpenAI's API that a signature fits, and its inputs as these endpoints name them.

A model need not know of OpenAI: its endpoints follow from the names and types of its inputs and of its output.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec

from geartrain.domain.signature.openai_media import MediaEndpoint, MediaView, media_view
from geartrain.domain.signature.text_values import takes_file, takes_files
from geartrain.domain.signature.types import InputField, Signature, TypeSpec

TextEndpoint = Literal["chat", "responses", "messages", "completions", "embeddings", "rerank"]
Endpoint = TextEndpoint | MediaEndpoint

_MESSAGES: Final = "messages"
_PROMPTS: Final = ("prompt", "text_input")
_EMBEDDED: Final = frozenset({"text", "texts", "input", "inputs", "sentence", "sentences"})
_IMAGE_INPUTS: Final = ("images", "image")
_SOUND_INPUTS: Final = ("audios", "audio")
COUNT: Final = "count_tokens"  # the input of a model that counts them
_QUERY, _DOCUMENTS = "query", "documents"
_NUMBERS: Final = frozenset({"FP16", "FP32", "FP64"})


class PartInput(msgspec.Struct, frozen=True):
    """An input that takes the files of one kind in a chat: one file, or several where `is_list`."""

    name: str
    is_list: bool = False


class OpenAIView(msgspec.Struct, frozen=True):
    """The inputs of a model that endpoints fill; empty where the model has none of the kind.

    Attributes:
        messages: takes the messages of a chat as they come.
        prompt: takes a text that the model goes on with.
        image: takes the pictures of a chat as files; `sound`: its recordings.
        texts: takes what is to be embedded: a list of texts, or one text where `is_single`.
        reranks: whether it takes a query and documents, and scores them.
        counts: whether it counts the tokens of a chat without an answer, where it is told to by an input.
        media: the inputs of a model of sound, pictures or moderations.
        off: the endpoints that are not served, though it has them.
    """

    messages: str = ""
    prompt: str = ""
    image: PartInput | None = None
    sound: PartInput | None = None
    texts: str = ""
    is_single: bool = False
    reranks: bool = False
    counts: bool = False
    media: MediaView = MediaView()
    off: frozenset[str] = frozenset()

    @property
    def keeps_parts(self) -> bool:
        """True if content of chats may have parts other than text."""
        return bool(self.messages or self.image or self.sound)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Those that the model has."""
        chats = bool(self.messages or self.prompt)
        has: dict[Endpoint, bool] = {
            "chat": chats,
            "responses": chats,
            "messages": chats,
            "completions": bool(self.prompt),
            "embeddings": bool(self.texts),
            "rerank": self.reranks,
        }
        found: tuple[Endpoint, ...] = (
            *(name for name, is_there in has.items() if is_there),
            *self.media.endpoints,
        )
        return tuple(name for name in found if name not in self.off) if self.off else found


def openai_view(signature: Signature) -> OpenAIView:
    """Find what a signature can be asked for."""
    if signature.contract:
        return OpenAIView()
    media = media_view(signature)
    if media.endpoints:
        return OpenAIView(media=media)
    fields = {field.name: field for field in signature.inputs}
    if _is_rerank(fields, signature):
        return OpenAIView(reranks=True)
    texts = _embedded(signature)
    if texts is not None:
        return OpenAIView(texts=texts.name, is_single=_is_text(texts.type))
    if not _gives_text(signature.output.type):
        return OpenAIView()
    count = fields.get(COUNT)
    counts = count is not None and count.type.kind == "boolean"
    image, sound = _part_input(signature, _IMAGE_INPUTS, "image/"), _part_input(signature, _SOUND_INPUTS, "audio/")
    messages = fields.get(_MESSAGES)
    if messages is not None and _is_list_of(messages.type, ("object", "record", "opaque")):
        return OpenAIView(messages=_MESSAGES, image=image, sound=sound, counts=counts)
    prompt = _prompt_of(signature.inputs)
    return OpenAIView(prompt=prompt, image=image, sound=sound, counts=counts) if prompt else OpenAIView(counts=counts)


def _part_input(signature: Signature, names: tuple[str, ...], accepted: str) -> PartInput | None:
    """Return the input for the files of a chat, found by its name or by what it accepts."""
    found = {
        field.name: PartInput(field.name, takes_files(field.type))
        for field in signature.inputs
        if (takes_file(field.type) or takes_files(field.type))
        and (field.name in names or (field.accept or "").startswith(accepted))
    }
    return next((found[name] for name in names if name in found), next(iter(found.values()), None))


def plain_prompt(messages: list[dict[str, Any]]) -> str:
    """Return messages as plain text: the text of a single turn, or a line for each message."""
    texts = [(message["role"], _text_of(message["content"])) for message in messages]
    roles = [role for role, _ in texts]
    if roles in (["user"], ["system", "user"]):
        return "\n\n".join(text for _, text in texts)
    lines = [text if role == "system" else f"{role.capitalize()}: {text}" for role, text in texts]
    return "\n".join([*lines, "Assistant:"])


def _text_of(content: Any) -> str:
    """Return the text of a message, without its other parts."""
    if isinstance(content, list):
        return "".join(part["text"] for part in content if part.get("type") == "text")
    return content or ""


def _is_rerank(fields: dict[str, InputField], signature: Signature) -> bool:
    query, documents = fields.get(_QUERY), fields.get(_DOCUMENTS)
    return (
        query is not None
        and documents is not None
        and _is_text(query.type)
        and _is_list_of(documents.type, ("string",))
        and _is_floats(signature.output.type, dimensions=1)
        and _only_required(signature, {_QUERY, _DOCUMENTS})
    )


def _embedded(signature: Signature) -> InputField | None:
    """Return the one input that is required, if its name says that it is what is embedded: a classifier looks alike."""
    for field in signature.inputs:
        if field.name not in _EMBEDDED or not _only_required(signature, {field.name}):
            continue
        is_text = _is_text(field.type)
        takes_many = _is_list_of(field.type, ("string",)) or _is_tensor_of_texts(field.type)
        if (is_text or takes_many) and _is_floats(signature.output.type, dimensions=1 if is_text else 2):
            return field
    return None


def _prompt_of(inputs: Iterable[InputField]) -> str:
    texts = [field for field in inputs if _is_text(field.type)]
    for wanted in _PROMPTS:
        if any(field.name == wanted for field in texts):
            return wanted
    required = [field.name for field in inputs if field.required]
    return next((field.name for field in texts if required == [field.name]), "")


def _only_required(signature: Signature, names: set[str]) -> bool:
    return all(field.name in names for field in signature.inputs if field.required)


def _gives_text(output: TypeSpec) -> bool:
    if output.kind == "union":
        return any(member.kind == "string" for member in output.members)
    return output.kind == "string" or _is_delta(output) or (output.kind == "tensor" and output.datatype == "BYTES")


def _is_delta(output: TypeSpec) -> bool:
    return output.kind == "record" and any(field.name == "content" for field in output.fields)


def _is_text(kind: TypeSpec) -> bool:
    return kind.kind == "string"


def _is_tensor_of_texts(kind: TypeSpec) -> bool:
    return kind.kind == "tensor" and kind.datatype == "BYTES" and len(kind.shape) == 1


def _is_list_of(kind: TypeSpec, kinds: tuple[str, ...]) -> bool:
    return kind.kind == "array" and kind.items is not None and kind.items.kind in kinds


def _is_floats(kind: TypeSpec, *, dimensions: int) -> bool:
    """Tell a vector of floats, or a matrix with a row for each text, from other outputs."""
    if kind.kind == "record" and len(kind.fields) == 1:  # of a model file, whose outputs have names
        kind = kind.fields[0].type
        if kind.kind != "tensor":
            return False
    if kind.kind == "tensor":
        return kind.datatype in _NUMBERS and len(kind.shape) + kind.variadic == dimensions
    for _ in range(dimensions):
        if kind.kind != "array" or kind.items is None:
            return False
        kind = kind.items
    return kind.kind == "number"
