"""Embeddings and reranking: texts in, vectors and scores out."""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
import pybase64

from geartrain.apis.openai.errors import invalid
from geartrain.apis.openai.parameters import TEXTS_OR_IDS, Members, Parameters, TokenIds, sort_texts
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.signature.openai_view import OpenAIView
from geartrain.domain.signature.tensor_view import TensorView
from geartrain.domain.signature.types import Signature
from geartrain.domain.tensors.tensor import Buffer, Tensor

MOST_TEXTS: Final = 2048
_TYPECODES: Final = {"FP32": "f", "FP64": "d"}
_MATRIX: Final = 2  # dimensions
_Dimensions = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]

_encode = msgspec.json.Encoder().encode


class EmbeddingRequest(msgspec.Struct, frozen=True):
    """Texts to be embedded: the members of the model's input, for each run.

    `dimensions`: the numbers that each vector shall have; 0 for those that the model gives.
    """

    inputs: tuple[Members, ...]
    is_base64: bool
    names: dict[str, str]
    ignored: tuple[str, ...]
    count: int
    dimensions: int


class RerankRequest(msgspec.Struct, frozen=True):
    """Documents to be scored: the members of the model's input. `most`: how many the answer may have."""

    given: Members
    documents: tuple[str, ...]
    most: int
    has_documents: bool


def read_embedding(members: Members, signature: Signature, view: OpenAIView) -> EmbeddingRequest:
    """Read the body of a request for embeddings, but for its model. Raises `OpenAIError`."""
    if not view.embeds:
        msg = "The model has no embeddings: it does not turn texts into vectors of floats."
        raise invalid(msg, "model", "unsupported_model")
    parameters = Parameters(members)
    taken, texts = _read_texts(parameters, view)
    encoding = parameters.take("encoding_format", str, "float")
    if encoding not in {"float", "base64"}:
        raise invalid("'encoding_format' has to be float or base64", "encoding_format")
    names = frozenset(field.name for field in signature.inputs)
    dimensions = 0
    if "dimensions" not in names:
        dimensions = parameters.take_any("dimensions", _Dimensions) or 0
    given, ignored = parameters.sort(names - {taken})
    values = [_encode(text) for text in texts] if view.is_single else [_encode(texts)]
    inputs = tuple({**given, taken: msgspec.Raw(value)} for value in values)
    return EmbeddingRequest(inputs, encoding == "base64", {taken: "input"}, ignored, len(texts), dimensions)


def _read_texts(parameters: Parameters, view: OpenAIView) -> tuple[str, list[str] | list[TokenIds]]:
    """Read what is to be embedded; return the input that takes it, and it."""
    given = parameters.take_any("input", TEXTS_OR_IDS)
    if given is None:
        raise invalid("'input' is missing", "input")
    texts, ids = sort_texts("input", given)
    if ids and view.token_ids is None:
        advice = "LangChain sends text with check_embedding_ctx_length=False"
        raise invalid(f"'input' has token ids, and the model takes text; {advice}", "input")
    if texts and not view.texts:
        raise invalid("'input' has text, and the model takes token ids", "input")
    if not 1 <= len(texts or ids) <= MOST_TEXTS:
        raise invalid(f"'input' has to have 1 to {MOST_TEXTS} texts", "input")
    if "" in texts:
        raise invalid("'input' cannot be an empty string", "input")
    return (view.token_ids.name, ids) if ids and view.token_ids is not None else (view.texts, texts)


class Embeddings(msgspec.Struct, frozen=True):
    """The answer that a client wants: `count` vectors by a `model`, whose texts had so many `tokens`.

    `is_single`: each output is one vector. `dimensions`: the numbers that each vector shall have, 0 for those that the
    model gives; `may_cut`: its first numbers are a vector of their own.
    """

    model: str
    count: int
    is_single: bool
    is_base64: bool
    tokens: int
    dimensions: int = 0
    may_cut: bool = False


def encode_embeddings(wanted: Embeddings, outputs: Sequence[Buffer], view: TensorView) -> bytes:
    """Return an answer with a vector of 32-bit floats for each text, in their order, of the `outputs` of all runs.

    Raises `RUN_FAILED` for what is no number, or not one vector for each text, and `INVALID_INPUT` for vectors that do
    not have the dimensions that are asked for.
    """
    rows = [row for output in outputs for row in rows_of(output, view, is_single=wanted.is_single)]
    if len(rows) != wanted.count:
        raise GeartrainError(Code.RUN_FAILED, f"The model gave {len(rows)} vectors for {wanted.count} texts.")
    data = []
    for index, whole in enumerate(rows):
        row = _cut(whole, wanted) if wanted.dimensions else whole
        if not math.isfinite(sum(row)) and not all(map(math.isfinite, row)):
            raise GeartrainError(Code.RUN_FAILED, f"The model gave a vector that is not finite, for text {index}.")
        vector: Any = pybase64.b64encode_as_string(row.tobytes()) if wanted.is_base64 else row.tolist()
        data.append({"object": "embedding", "index": index, "embedding": vector})
    told = {"prompt_tokens": wanted.tokens, "total_tokens": wanted.tokens}
    return _encode({"object": "list", "data": data, "model": wanted.model, "usage": told})


def _cut(row: array[float], wanted: Embeddings) -> array[float]:
    """Return the first numbers of a vector, made a vector of the length 1 again. A whole one stays as it is."""
    if len(row) == wanted.dimensions:
        return row
    check_dimensions(wanted.dimensions, len(row), may_cut=wanted.may_cut)
    first = row[: wanted.dimensions]
    length = math.hypot(*first)
    return array(row.typecode, [number / length for number in first]) if length else first


def check_dimensions(wanted: int, width: int, *, may_cut: bool) -> None:
    """Raise `INVALID_INPUT` unless vectors of a `width` have so many dimensions, or can be cut to them."""
    if wanted > width or (wanted < width and not may_cut):
        least = "at most " if may_cut else ""
        raise GeartrainError(Code.INVALID_INPUT, f"the vectors of this model have {least}{width} dimensions")


def rows_of(output: Buffer, view: TensorView, *, is_single: bool, kind: str = "f") -> list[array[float]]:
    """Return the vectors of an output, of floats of 32 bits or, with the `kind` "d", of 64. Raises `RUN_FAILED`."""
    if view.gives_tensors:
        (tensor,) = view.whole(output, (output,))
        return _rows_of(tensor, is_single=is_single, kind=kind)
    given: Any = msgspec.json.decode(output)
    return [array(kind, row) for row in ([given] if is_single else given)]


def _rows_of(tensor: Tensor, *, is_single: bool, kind: str) -> list[array[float]]:
    shape = (1, *tensor.shape) if is_single and len(tensor.shape) < _MATRIX else tensor.shape
    if len(shape) != _MATRIX:
        raise GeartrainError(Code.RUN_FAILED, f"The model gave a tensor of the shape {[*tensor.shape]}.")
    values = _floats(tensor, kind)
    width = shape[1]
    return [values[at * width : (at + 1) * width] for at in range(shape[0])]


def _floats(tensor: Tensor, kind: str) -> array[float]:
    if tensor.datatype in _TYPECODES:
        values: array[float] = array(_TYPECODES[tensor.datatype])
        values.frombytes(tensor.data)
        return values if values.typecode == kind else array(kind, values)
    return array(kind, struct.unpack(f"<{len(tensor.data) // 2}e", tensor.data))  # FP16


def read_rerank(members: Members, signature: Signature, view: OpenAIView) -> RerankRequest:
    """Read the body of a request for scores, but for its model. Raises `OpenAIError`."""
    if not view.reranks:
        msg = "The model does not rerank: it has no inputs 'query' and 'documents', or gives no list of scores."
        raise invalid(msg, "model", "unsupported_model")
    parameters = Parameters(members)
    query = parameters.take_any("query", str)
    if query is None:
        raise invalid("'query' is missing", "query")
    given = parameters.take_any("documents", list[str | dict[str, Any]])
    if not given or len(given) > MOST_TEXTS:
        raise invalid(f"'documents' has to be a list of 1 to {MOST_TEXTS} texts", "documents")
    documents = tuple(_text_of(document, number) for number, document in enumerate(given))
    most = parameters.take("top_n", int, len(documents))
    if most < 1:
        raise invalid("'top_n' has to be at least 1", "top_n")
    has_documents = parameters.take("return_documents", bool, default=False)
    others, _ = parameters.sort(frozenset(field.name for field in signature.inputs) - {"query", "documents"})
    texts = {"query": msgspec.Raw(_encode(query)), "documents": msgspec.Raw(_encode(documents))}
    return RerankRequest({**others, **texts}, documents, most, has_documents)


def encode_ranks(request: RerankRequest, scores: Sequence[float], *, own_id: str, model: str) -> bytes:
    """Return the documents with the highest scores, those first. Raises `RUN_FAILED` for scores that do not fit."""
    if len(scores) != len(request.documents):
        msg = f"The model gave {len(scores)} scores for {len(request.documents)} documents."
        raise GeartrainError(Code.RUN_FAILED, msg)
    if not all(map(math.isfinite, scores)):
        raise GeartrainError(Code.RUN_FAILED, "The model gave a score that is not finite.")
    best = sorted(range(len(scores)), key=lambda index: -scores[index])[: request.most]
    results: list[dict[str, Any]] = []
    for index in best:
        result: dict[str, Any] = {"index": index, "relevance_score": scores[index]}
        if request.has_documents:
            result["document"] = {"text": request.documents[index]}
        results.append(result)
    return _encode({"id": own_id, "model": model, "results": results, "meta": {"api_version": {"version": "2"}}})


def _text_of(document: str | dict[str, Any], number: int) -> str:
    text = document if isinstance(document, str) else document.get("text")
    if not isinstance(text, str):
        raise invalid(f"'documents[{number}]' has to be a text, or an object with a 'text'", f"documents[{number}]")
    return text
