"""A model as clients of OpenAI's API see it: its signature with the names of parameters, and its endpoints."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from geartrain.domain.signature.openai_view import OpenAIView, openai_view
from geartrain.domain.signature.types import OpenAISettings, Signature


class OpenAIModel(msgspec.Struct, frozen=True):
    """A model with the names of its clients.

    Attributes:
        signature: its inputs have the names of the parameters that fill them.
        view: its endpoints.
        inputs: the names of its inputs, by the names of the parameters, where these differ.
    """

    signature: Signature
    view: OpenAIView
    inputs: Mapping[str, str] = {}


def openai_model(signature: Signature, settings: OpenAISettings) -> OpenAIModel:
    """Return a model as its clients see it."""
    seen = _renamed(signature, settings.fields) if settings.fields else signature
    view = openai_view(seen)
    if settings.serve is not None:
        view = msgspec.structs.replace(view, off=frozenset(view.endpoints) - settings.serve)
    return OpenAIModel(seen, view, settings.fields)


def misfit(signature: Signature, settings: OpenAISettings) -> str:
    """Return the first setting that does not fit the signature, as a sentence for the operator; empty if all fit."""
    names = [field.name for field in signature.inputs]
    for parameter, name in settings.fields.items():
        if name not in names:
            return f"`openai.fields.{parameter}` names no input: {name}; the inputs are {', '.join(names)}"
        if parameter in names and parameter not in settings.fields.values():
            return f"`openai.fields.{parameter}` is an input itself; leave it out, or give that input another parameter"
    view = openai_view(_renamed(signature, settings.fields))
    if settings.fields and view.media.endpoints:
        return "`openai.fields` is for models of texts and vectors; `@endpoint` takes the names of inputs of media"
    if settings.chat_template and not view.prompt:
        return "`openai.chat_template` is for models that take a prompt, and this one takes none"
    if settings.matryoshka and not view.embeds:
        return "`openai.matryoshka` is for models of embeddings, and this one has none"
    missing = sorted((settings.serve or frozenset()) - frozenset(view.endpoints))
    if missing:
        there = f"its endpoints are {', '.join(view.endpoints)}" if view.endpoints else "it has none"
        return f"`openai.serve` has {', '.join(missing)}, which the model does not fit; {there}"
    return ""


def _renamed(signature: Signature, fields: Mapping[str, str]) -> Signature:
    """Return a signature whose inputs have the names of the parameters that fill them."""
    parameters = {name: parameter for parameter, name in fields.items()}
    inputs = tuple(
        msgspec.structs.replace(field, name=parameters.get(field.name, field.name)) for field in signature.inputs
    )
    return msgspec.structs.replace(signature, inputs=inputs)
