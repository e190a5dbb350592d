"""The endpoints of OpenAI's API that a signature fits, and its inputs as these endpoints name them.

A model need not know of OpenAI: its endpoints follow from the names and types of its inputs and of its output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

import msgspec

from geartrain.domain.signature.openai_media import MediaEndpoint, MediaView, media_view
from geartrain.domain.signature.types import InputField, Signature, TypeSpec, takes_file, takes_files

TextEndpoint = Literal["chat", "responses", "messages", "completions", "embeddings", "rerank"]
Endpoint = TextEndpoint | MediaEndpoint

_MESSAGES: Final = "messages"
_PROMPTS: Final = ("prompt", "text_input")
_EMBEDDED: Final = frozenset({"text", "texts", "input", "inputs", "sentence", "sentences"})
_TOKEN_IDS: Final = ("prompt_token_ids", "token_ids", "input_ids")
_IMAGE_INPUTS: Final = ("images", "image")
_SOUND_INPUTS: Final = ("audios", "audio")
COUNT: Final = "count_tokens"  # the input of a model that counts them
_QUERY, _DOCUMENTS = "query", "documents"
_NUMBERS: Final = frozenset({"FP16", "FP32", "FP64"})


class PartInput(msgspec.Struct, frozen=True):
    """An input that takes the files of one kind in a chat: one file, or several where `is_list`."""

    name: str
    is_list: bool = False


class TokenInput(msgspec.Struct, frozen=True):
    """An input that takes the token ids of a text; those of several texts where `is_list`."""

    name: str
    is_list: bool = False


class OpenAIView(msgspec.Struct, frozen=True):
    """The inputs of a model that endpoints fill; empty where the model has none of the kind.

    Attributes:
        messages: takes the messages of a chat as they come.
        prompt: takes a text that the model goes on with.
        token_ids: takes the token ids of a prompt, or of what is to be embedded.
        image: takes the pictures of a chat as files; `sound`: its recordings.
        embeds: whether it embeds texts or their token ids.
        texts: takes what is to be embedded: a list of texts, or one text where `is_single`.
        width: the numbers of each vector, as far as the signature states it; otherwise 0.
        reranks: whether it takes a query and documents, and scores them.
        counts: whether it counts the tokens of a chat without an answer, where it is told to by an input.
        media: the inputs of a model of sound, pictures or moderations.
        off: the endpoints that are not served, though it has them.
    """

    messages: str = ""
    prompt: str = ""
    token_ids: TokenInput | None = None
    image: PartInput | None = None
    sound: PartInput | None = None
    embeds: bool = False
    texts: str = ""
    is_single: bool = False
    width: int = 0
    reranks: bool = False
    counts: bool = False
    media: MediaView = MediaView()
    off: frozenset[str] = frozenset()

    @property
    def takes_prompts(self) -> bool:
        """True if the model goes on with texts, or with their token ids."""
        return bool(self.prompt) or (self.token_ids is not None and not self.embeds)

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
            "completions": self.takes_prompts,
            "embeddings": self.embeds,
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
    embedding = _embedding_view(signature)
    if embedding is not None:
        return embedding
    if not _gives_text(signature.output.type):
        return OpenAIView()
    count = fields.get(COUNT)
    counts = count is not None and count.type.kind == "boolean"
    image, sound = _part_input(signature, _IMAGE_INPUTS, "image/"), _part_input(signature, _SOUND_INPUTS, "audio/")
    messages = fields.get(_MESSAGES)
    if messages is not None and _is_list_of(messages.type, ("object", "record", "opaque")):
        return OpenAIView(messages=_MESSAGES, image=image, sound=sound, counts=counts)
    prompt = _prompt_of(signature.inputs)
    token_ids = _token_ids(signature, prompt)
    if not prompt:
        return OpenAIView(token_ids=token_ids, counts=counts)
    return OpenAIView(prompt=prompt, token_ids=token_ids, image=image, sound=sound, counts=counts)


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


def _embedding_view(signature: Signature) -> OpenAIView | None:
    """Return the view of a model of embeddings; None for any other.

    The names of its inputs say that it is one: a classifier looks alike.
    """
    is_single = _is_floats(signature.output.type, dimensions=1)
    if not (is_single or _is_floats(signature.output.type, dimensions=2)):
        return None
    takes_texts = _is_text if is_single else _takes_texts
    takes_ids = _is_ids if is_single else _is_list_of_ids
    fields = [field for field in signature.inputs if _only_required(signature, {field.name})]
    texts = next((field for field in fields if field.name in _EMBEDDED and _any(field.type, takes_texts)), None)
    named = [field for field in fields if field is texts or field.name in _TOKEN_IDS]
    ids = next((field for field in named if _any(field.type, takes_ids)), None)
    if texts is None and ids is None:
        return None
    return OpenAIView(
        embeds=True,
        texts="" if texts is None else texts.name,
        token_ids=None if ids is None else TokenInput(ids.name, is_list=not is_single),
        is_single=is_single,
        width=_width(signature.output.type),
    )


def _width(output: TypeSpec) -> int:
    if output.kind == "record":  # with one field, which is the tensor
        output = output.fields[0].type
    if output.kind != "tensor" or not output.shape or (output.variadic and output.variadic_at == len(output.shape)):
        return 0
    return max(output.shape[-1], 0)


def _prompt_of(inputs: Iterable[InputField]) -> str:
    texts = [field for field in inputs if _is_prompt(field.type)]
    for wanted in _PROMPTS:
        if any(field.name == wanted for field in texts):
            return wanted
    required = [field.name for field in inputs if field.required]
    return next((field.name for field in texts if required == [field.name]), "")


def _token_ids(signature: Signature, prompt: str) -> TokenInput | None:
    """Return the input for the token ids of a prompt: that of its text, or one that can do without a text."""
    names = (prompt, *_PROMPTS, *_TOKEN_IDS)
    found = {field.name: field for field in signature.inputs if field.name in names and _any(field.type, _is_ids)}
    name = next((name for name in names if name in found), "")
    return TokenInput(name) if name and _only_required(signature, {name}) else None


def _only_required(signature: Signature, names: set[str]) -> bool:
    return all(field.name in names for field in signature.inputs if field.required)


def _gives_text(output: TypeSpec) -> bool:
    if output.kind == "union":
        return any(member.kind == "string" for member in output.members)
    return output.kind == "string" or _is_delta(output) or (output.kind == "tensor" and output.datatype == "BYTES")


def _is_delta(output: TypeSpec) -> bool:
    return output.kind == "record" and any(field.name == "content" for field in output.fields)


def _any(kind: TypeSpec, fits: Callable[[TypeSpec], bool]) -> bool:
    """True if a type, or a member of a union, fits."""
    return any(map(fits, kind.members)) if kind.kind == "union" else fits(kind)


def _is_text(kind: TypeSpec) -> bool:
    return kind.kind == "string"


def _is_prompt(kind: TypeSpec) -> bool:
    """True for a text, or a text or its token ids: other lists could be taken for a chat."""
    if kind.kind == "union":
        return _any(kind, _is_text) and all(_is_text(member) or _is_ids(member) for member in kind.members)
    return _is_text(kind)


def _takes_texts(kind: TypeSpec) -> bool:
    return _is_list_of(kind, ("string",)) or _is_tensor_of_texts(kind)


def _is_ids(kind: TypeSpec) -> bool:
    return _is_list_of(kind, ("integer",))


def _is_list_of_ids(kind: TypeSpec) -> bool:
    return kind.kind == "array" and kind.items is not None and _is_ids(kind.items)


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
