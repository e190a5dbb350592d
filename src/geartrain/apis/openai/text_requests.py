"""Requests for text: chat completions and completions, as inputs of a model."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from geartrain.apis.openai.errors import OpenAIError, invalid, unsupported
from geartrain.apis.openai.parameters import TEXTS_OR_IDS, Members, Parameters, TokenIds, decoded, sort_texts
from geartrain.apis.openai.parts import take_files
from geartrain.apis.openai.shapes import Shape, read_shape
from geartrain.domain.errors import Code
from geartrain.domain.signature.openai_view import OpenAIView, plain_prompt
from geartrain.domain.signature.types import Signature

MOST_CHOICES: Final = 128
MOST_STOPS: Final = 4
LONGEST_STOP: Final = 1000  # characters: a text's end is compared with each beginning of it
MOST_COPIED: Final = 64 * 1024**2  # bytes of the prompts of all choices, where there are several

Message = dict[str, Any]

_ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_SYSTEM: Final = "system"

# The newest name of each side first: the one that counts if a client sends several, or that the model has.
_LIMITS: Final = ("max_completion_tokens", "max_tokens")
_LIMIT_INPUTS: Final = (
    *("max_completion_tokens", "max_tokens", "max_output_tokens"),
    *("max_new_tokens", "max_tokens_to_sample"),
)
_NO_FILES: Final[Members] = {}
_encode = msgspec.json.Encoder().encode


class StreamOptions(msgspec.Struct, frozen=True):
    """The options of a stream."""

    include_usage: bool = False


class TextRequest(msgspec.Struct, frozen=True):
    """A request to a model that gives text.

    Attributes:
        inputs: the members of the model's input, for each choice; there are `count` for each prompt.
        count: the choices of each prompt.
        stops: the texts that end a choice.
        echoes: what stands before the text of each choice.
        names: the parameter that has filled an input, where its name is another one.
        ignored: the names of parameters that were passed over.
        shape: that of the whole text which the client asks for; None for any.
        tools: the names of the tools that the model may call.
        repeated: members of the request that the answer has, too.
        chat: the messages, by the input for which the worker makes a prompt of them (`worker.loading.chat_prompts`).
            What stands in `inputs` meanwhile is their plain text.
    """

    inputs: tuple[Members, ...]
    count: int = 1
    is_stream: bool = False
    has_usage: bool = False
    stops: tuple[str, ...] = ()
    echoes: tuple[str, ...] = ()
    names: dict[str, str] = {}
    ignored: tuple[str, ...] = ()
    shape: Shape | None = None
    tools: frozenset[str] = frozenset()
    repeated: dict[str, Any] = {}
    chat: Members = {}


def read_chat(members: Members, signature: Signature, view: OpenAIView) -> TextRequest:
    """Read the body of a chat completion, but for its model. Raises `OpenAIError`."""
    check_chats(view, "chat completions")
    parameters = Parameters(members)
    messages = _read_messages(parameters.raw("messages"), keeps_parts=view.keeps_parts)
    return read_chat_of(messages, parameters, signature=signature, view=view, by="messages")


def check_chats(view: OpenAIView, what: str) -> None:
    """Raise `OpenAIError` for a model that cannot be asked for `what`, a kind of chat."""
    if not (view.messages or view.prompt):
        raise _lacks(what, "it takes neither messages nor a prompt, or gives no text")


def read_chat_of(
    messages: list[Message], parameters: Parameters, *, signature: Signature, view: OpenAIView, by: str
) -> TextRequest:
    """Read the other parameters of a chat. `messages` as of `check_message`; `by` names what they came by."""
    messages, files = take_files(messages, view, by)
    if view.messages:
        return _read(parameters, signature, [_encode(messages)], taken=view.messages, by=by, files=files)
    request = _read(parameters, signature, [_encode(plain_prompt(messages))], taken=view.prompt, by=by, files=files)
    return msgspec.structs.replace(request, chat={view.prompt: msgspec.Raw(_encode(messages))})


def read_completion(members: Members, signature: Signature, view: OpenAIView) -> TextRequest:
    """Read the body of a completion, but for its model. Raises `OpenAIError`."""
    if not view.takes_prompts:
        raise _lacks("completions", "it takes no prompt, or gives no text")
    parameters = Parameters(members)
    prompts, taken = _read_prompts(parameters, view)
    best_of = parameters.take_any("best_of", int)
    _take_logprobs(parameters, signature)
    echoes: tuple[str, ...] = ()
    if parameters.take("echo", bool, default=False):
        echoes = tuple(prompt for prompt in prompts if isinstance(prompt, str))
        if not echoes:
            raise unsupported("echo", "the server does not know the text of token ids")
    texts = list(map(_encode, prompts))
    request = _read(parameters, signature, texts, taken=taken, by="prompt", echoes=echoes)
    if best_of is not None and best_of > request.count:
        raise unsupported("best_of", "every choice is in the answer, so it can be no more than 'n'")
    return request


def _read(
    parameters: Parameters,
    signature: Signature,
    texts: list[bytes],
    *,
    taken: str,
    by: str,
    echoes: tuple[str, ...] = (),
    files: Members = _NO_FILES,
) -> TextRequest:
    """`files`: inputs that files of the chat fill."""
    fields = {field.name: field for field in signature.inputs if field.name != taken}
    is_stream = parameters.take("stream", bool, default=False)
    options = parameters.take("stream_options", StreamOptions, StreamOptions())
    count = parameters.take("n", int, 1)
    if not 1 <= count * len(texts) <= MOST_CHOICES or count < 1:
        raise invalid(f"'n' has to be 1 to {MOST_CHOICES}, all prompts together", "n")
    if count > 1 and count * sum(map(len, (*texts, *files.values()))) > MOST_COPIED:
        raise OpenAIError(Code.TOO_LARGE, f"'n' times the prompt is more than {MOST_COPIED} bytes", param="n")
    stops = _read_stops(parameters)
    names = {taken: by, **dict.fromkeys(files, by), **parameters.names}
    limits = _read_limits(parameters, set(fields), names)
    shape = read_shape(parameters) if "response_format" in fields else None
    given, ignored = parameters.sort(frozenset(fields))
    given |= {**limits, **files}
    if stops and "stop" in fields:
        is_list = fields["stop"].type.kind == "array"
        given["stop"] = msgspec.Raw(_encode(stops if is_list else stops[0]))
    if shape is not None:
        given["response_format"] = shape[0]
    inputs = [{**given, taken: msgspec.Raw(text)} for text in texts for _ in range(count)]
    if count > 1 and "seed" in given:
        inputs = [seeded(one, at % count) for at, one in enumerate(inputs)]
    return TextRequest(
        tuple(inputs),
        count,
        is_stream,
        has_usage=options.include_usage,
        stops=stops,
        echoes=tuple(echo for echo in echoes for _ in range(count)),
        names=names,
        ignored=ignored,
        shape=None if shape is None else shape[1],
        tools=_names_of(given.get("tools")),
    )


def _read_prompts(parameters: Parameters, view: OpenAIView) -> tuple[list[str] | list[TokenIds], str]:
    """Read the prompts; return them and the input that takes them."""
    prompt = parameters.take_any("prompt", TEXTS_OR_IDS)
    if prompt is None:
        raise invalid("'prompt' is missing", "prompt")
    texts, ids = sort_texts("prompt", prompt)
    prompts = texts or ids
    if not prompts:
        raise invalid("'prompt' is an empty list", "prompt")
    if ids and view.token_ids is None:
        raise invalid("'prompt' has token ids, and the model takes text", "prompt")
    if texts and not view.prompt:
        raise invalid("'prompt' has text, and the model takes token ids", "prompt")
    if len(prompts) > MOST_CHOICES:
        raise invalid(f"'prompt' has {len(prompts)} texts; at most {MOST_CHOICES} are accepted", "prompt")
    return prompts, view.token_ids.name if ids and view.token_ids is not None else view.prompt


def _names_of(tools: msgspec.Raw | None) -> frozenset[str]:
    """Return the names of tools, as far as these have the form of OpenAI's: the model's annotation checks them."""
    given = [] if tools is None else decoded("tools", tools, Any)
    functions = [tool.get("function") for tool in given if isinstance(tool, dict)] if isinstance(given, list) else []
    return frozenset(str(each.get("name")) for each in functions if isinstance(each, dict))


def _read_stops(parameters: Parameters) -> tuple[str, ...]:
    name = parameters.name_of("stop")
    stop = parameters.take_any("stop", str | list[str])
    stops = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
    if len(stops) > MOST_STOPS or "" in stops or any(len(each) > LONGEST_STOP for each in stops):
        msg = f"at most {MOST_STOPS}, none of them empty or longer than {LONGEST_STOP} characters"
        raise invalid(f"'{name}' has to be a text, or a list of {msg}", name)
    return stops


def _take_logprobs(parameters: Parameters, signature: Signature) -> None:
    """Give `logprobs` of a completion, a number, to a model that has the parameters of chats for it."""
    kinds = {field.name: field.type.kind for field in signature.inputs}
    if kinds.get("logprobs") != "boolean" or "top_logprobs" not in kinds:
        return
    number = parameters.take_any("logprobs", int)
    if number is not None:
        parameters.put("logprobs", msgspec.Raw(b"true"))
        parameters.put("top_logprobs", msgspec.Raw(_encode(number)))


def _read_limits(parameters: Parameters, inputs: set[str], names: dict[str, str]) -> Members:
    """Return the most tokens to give, by the model's name for it; what has no input for it is passed over."""
    name = next((name for name in _LIMIT_INPUTS if name in inputs), None)
    if name is None:
        return {}
    values = [(each, value) for each in _LIMITS if (value := parameters.raw(each)) is not None]
    if not values:
        return {}
    names[name] = parameters.name_of(values[0][0])
    return {name: values[0][1]}


def seeded(given: Members, number: int) -> Members:
    """Return an input whose seed is so much greater, for the choice of this number."""
    seed = decoded("seed", given["seed"], Any)
    if not isinstance(seed, int):
        return given
    return {**given, "seed": msgspec.Raw(_encode(seed + number))}


def _lacks(what: str, why: str) -> Exception:
    return invalid(f"The model has no {what}: {why}.", "model", "unsupported_model")


# messages


def _read_messages(raw: msgspec.Raw | None, *, keeps_parts: bool) -> list[Message]:
    """Read and check messages; content in parts that are all text becomes one text.

    `keeps_parts`: content with other parts, such as images, is left to the model; otherwise it is refused. The role
    `developer` becomes `system`: few models tell them apart. Raises `OpenAIError`.
    """
    messages = None if raw is None else decoded("messages", raw, Any)
    if not isinstance(messages, list) or not messages:
        raise invalid("'messages' has to be a list of at least one message", "messages")
    return [
        check_message(message, f"messages[{number}]", keeps_parts=keeps_parts)
        for number, message in enumerate(messages)
    ]


def check_message(message: Any, place: str, *, keeps_parts: bool) -> Message:
    """Check one message, and return it as models get it. See `_read_messages`. Raises `OpenAIError`.

    `place`: where it stands in the body.
    """
    if not isinstance(message, dict):
        raise invalid(f"'{place}' has to be an object", place)
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise invalid(f"'{place}.role' has to be one of {', '.join(sorted(_ROLES))}", f"{place}.role")
    if role == "developer":
        message["role"] = _SYSTEM
    message["content"] = _content(message.get("content"), place, keeps_parts=keeps_parts)
    return message


def _content(content: Any, place: str, *, keeps_parts: bool) -> Any:
    if content is None or isinstance(content, str):
        return content
    place = f"{place}.content"
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise invalid(f"'{place}' has to be a text, or a list of parts", place)
    texts = [part.get("text") for part in content if part.get("type") == "text"]
    if not all(isinstance(text, str) for text in texts):
        raise invalid(f"'{place}' has a part of text without a 'text'", place)
    if len(texts) == len(content):
        return "".join(text for text in texts if isinstance(text, str))
    if not keeps_parts:
        kinds = sorted({str(part.get("type")) for part in content} - {"text"})
        raise unsupported(place, f"the model takes text, and this has {', '.join(kinds)[:100]}")
    return content
