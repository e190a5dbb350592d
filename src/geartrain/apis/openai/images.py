"""Images: a description in, and perhaps pictures to be changed; pictures out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from geartrain.apis.openai.errors import invalid, unsupported
from geartrain.apis.openai.files import FILE_URLS, GivenFile
from geartrain.apis.openai.parameters import Members, Parameters
from geartrain.apis.openai.text_answers import usage_of
from geartrain.apis.openai.text_requests import seeded
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.signature.openai_media import MediaView
from geartrain.domain.signature.types import Signature

MOST_IMAGES: Final = 10
MOST_SOURCES: Final = 16  # pictures to be changed
_FORMATS: Final = {"image/png": "png", "image/webp": "webp", "image/jpeg": "jpeg", "image/jpg": "jpeg"}
_SIZE: Final = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})")

_encode = msgspec.json.Encoder().encode


class ImageRequest(msgspec.Struct, frozen=True):
    """A request for pictures.

    Attributes:
        inputs: the members of the model's input, for each run.
        count: the pictures that the client wants.
        has_urls: whether it wants their URLs, not their contents.
    """

    inputs: tuple[Members, ...]
    count: int
    has_urls: bool
    names: dict[str, str]
    ignored: tuple[str, ...]


def check_images(view: MediaView, *, is_edit: bool) -> None:
    """Raise `OpenAIError` unless the model has the endpoint."""
    if not view.images:
        msg = 'The model has no images: its run() is not declared with @endpoint("images").'
        raise invalid(msg, "model", "unsupported_model")
    if is_edit and not view.image:
        raise invalid("The model edits no images: it has no input 'image' for a file.", "model", "unsupported_model")
    if not is_edit and view.needs_image:
        msg = "The model generates no images: it requires one to be edited; POST /v1/images/edits."
        raise invalid(msg, "model", "unsupported_model")


def read_images(members: Members, signature: Signature, view: MediaView, *, gives_urls: bool) -> ImageRequest:
    """Read the body of a request, without its model and the pictures to change. Raises `OpenAIError`.

    `gives_urls`: true if the server uploads files, and so has URLs of them.
    """
    parameters = Parameters(members)
    prompt = parameters.take("prompt", str, "")
    if not prompt:
        raise invalid("'prompt' has to be a text that is not empty", "prompt")
    count = parameters.take("n", int, 1)
    if not 1 <= count <= MOST_IMAGES:
        raise invalid(f"'n' has to be 1 to {MOST_IMAGES}", "n")
    form = parameters.take("response_format", str, "b64_json")
    if form not in {"b64_json", "url"}:
        raise invalid("'response_format' has to be b64_json or url", "response_format")
    if form == "url" and not gives_urls:
        raise unsupported("response_format", "the server runs without --upload-url; ask for b64_json")
    if parameters.take("stream", bool, default=False):
        raise unsupported("stream", "pictures come as a whole")
    files = {view.image, view.mask}
    fields = frozenset(field.name for field in signature.inputs if field.name not in {view.images, *files})
    size = _read_size(parameters, view, fields)
    given, ignored, names = parameters.place(view.names, fields - {view.count})
    given = {**given, **size, view.images: msgspec.Raw(_encode(prompt))}
    names = {**names, view.images: "prompt", **dict.fromkeys(size, "size")}
    if view.count:
        names[view.count] = "n"
        inputs: tuple[Members, ...] = ({**given, view.count: msgspec.Raw(_encode(count))},)
    else:
        inputs = tuple(seeded(given, at) if "seed" in given else given for at in range(count))
    return ImageRequest(inputs, count, form == "url", names, ignored)


def _read_size(parameters: Parameters, view: MediaView, fields: frozenset[str]) -> Members:
    """Return the width and the height, for a model that has inputs for them and none for the size."""
    if view.names.get("size", "size") in fields:
        return {}
    size = parameters.text("size")
    found = _SIZE.fullmatch(size)
    if size and size != "auto" and found is None:
        raise invalid("'size' has to be auto, or a width and a height such as 512x512", "size")
    names = [view.names.get(name, name) for name in ("width", "height")]
    if not set(names) <= fields:
        return {}
    parameters.raw("size")
    return {} if found is None else dict(zip(names, (msgspec.Raw(each) for each in found.groups()), strict=True))


def read_sources(members: Members, view: MediaView) -> Members:
    """Take the pictures to be changed out of a JSON body, where they are URLs; return the inputs for them.

    Raises `OpenAIError`.
    """
    parameters = Parameters(members)
    sources = parameters.take("images", list[dict[str, Any]], [])
    mask = parameters.take_any("mask", dict[str, Any])
    for name in ("images", "mask"):
        members.pop(name, None)
    check_sources(view, len(sources), has_mask=mask is not None, name="images")
    urls = [_url(source, f"images[{number}]") for number, source in enumerate(sources)]
    given = {view.image: msgspec.Raw(_encode(urls if view.takes_images else urls[0]))}
    if mask is not None:
        given[view.mask] = msgspec.Raw(_encode(_url(mask, "mask")))
    return given


def check_sources(view: MediaView, count: int, *, has_mask: bool, name: str) -> None:
    """Raise `OpenAIError` unless the model takes so many pictures, and a mask if there is one."""
    if not count:
        raise invalid(f"'{name}' is missing: send the image to be edited", name)
    if count > (MOST_SOURCES if view.takes_images else 1):
        most = f"at most {MOST_SOURCES} images" if view.takes_images else "one image"
        raise invalid(f"'{name}' has {count} images, and the model takes {most}", name)
    if has_mask and not view.mask:
        raise unsupported("mask", "the model has no input of this name")


def _url(source: Mapping[str, Any], place: str) -> str:
    if "file_id" in source:
        raise unsupported(f"{place}.file_id", "this server keeps no files; send an 'image_url'")
    url = source.get("image_url")
    if not isinstance(url, str) or not url.lower().startswith(FILE_URLS):
        raise invalid(f"'{place}.image_url' has to be an http:, https: or data: URL", f"{place}.image_url")
    return url


def encode_images(
    request: ImageRequest, files: Sequence[GivenFile | str], *, created: int, metrics: Sequence[Mapping[str, Any]]
) -> bytes:
    """Return the answer with the pictures, or with their URLs. Raises `RUN_FAILED` without any."""
    if not files:
        raise GeartrainError(Code.RUN_FAILED, "The model gave no image.")
    kept = files[: request.count]
    answer: dict[str, Any] = {
        "created": created,
        "data": [{"url": each} if isinstance(each, str) else {"b64_json": each.base64} for each in kept],
    }
    kinds = {_FORMATS.get(each.media_type, "") for each in kept if isinstance(each, GivenFile)}
    if len(kinds) == 1 and "" not in kinds:
        answer["output_format"] = kinds.pop()
    usage = usage_of(metrics, 1)
    if usage is not None:
        answer["usage"] = {
            "input_tokens": usage["prompt_tokens"],
            "output_tokens": usage["completion_tokens"],
            "total_tokens": usage["total_tokens"],
            "input_tokens_details": {"text_tokens": usage["prompt_tokens"], "image_tokens": 0},
        }
    return _encode(answer)
