"""The package `mlserver` where it is not installed: the parts of it that runtimes of one's own use."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from geartrain.worker.loading.scripts import mlserver_codecs as codecs
from geartrain.worker.loading.scripts.mlserver_types import (
    TYPES,
    InferenceRequest,
    InferenceResponse,
    InvalidModelURI,
    MetadataModelResponse,
    MetadataTensor,
    MLServerError,
    ModelNotFound,
    ModelNotReady,
    ModelParametersMissing,
    Parameters,
    RuntimeInferenceError,
    content_type_of,
)

logger = logging.getLogger("mlserver")


class ModelParameters(SimpleNamespace):
    """The `parameters` of a settings file; those that are not there are None."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{"uri": None, "version": None, "content_type": None, "format": None, "extra": {}, **given})


class ModelSettings:
    """A settings file."""

    def __init__(self, *, implementation: Any = "", parameters: Any = None, **given: Any) -> None:
        self._source: str | None = None
        self.name: str = given.pop("name", "")
        self.implementation_ = implementation
        self.parameters = ModelParameters(**parameters) if isinstance(parameters, Mapping) else parameters
        self.inputs = _metadata(given.pop("inputs", None))
        self.outputs = _metadata(given.pop("outputs", None))
        self.platform = given.pop("platform", "")
        self.versions = given.pop("versions", [])
        vars(self).update(given)

    @property
    def version(self) -> str | None:
        """The version that the parameters say."""
        return None if self.parameters is None else self.parameters.version

    @classmethod
    def parse_file(cls, path: str) -> ModelSettings:
        """Read a settings file."""
        return cls.model_validate({**json.loads(Path(path).read_text()), "_source": path})

    @classmethod
    def model_validate(cls, given: Mapping[str, Any]) -> ModelSettings:
        """Make settings of a dict."""
        made = cls(**{name: value for name, value in given.items() if name != "_source"})
        made._source = given.get("_source")
        return made


def _metadata(given: Any) -> list[MetadataTensor]:
    return [each if isinstance(each, MetadataTensor) else MetadataTensor(**each) for each in given or ()]


class MLModel:
    """The base class of a runtime."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self.ready = False

    @property
    def name(self) -> str:
        """The name of the model."""
        return self._settings.name

    @property
    def version(self) -> str | None:
        """The version of the model."""
        return self._settings.version

    @property
    def settings(self) -> ModelSettings:
        """The settings of the model."""
        return self._settings

    @property
    def inputs(self) -> list[MetadataTensor]:
        """The inputs that the settings say."""
        return self._settings.inputs

    @inputs.setter
    def inputs(self, value: list[MetadataTensor]) -> None:
        self._settings.inputs = value

    @property
    def outputs(self) -> list[MetadataTensor]:
        """The outputs that the settings say."""
        return self._settings.outputs

    @outputs.setter
    def outputs(self, value: list[MetadataTensor]) -> None:
        self._settings.outputs = value

    async def load(self) -> bool:
        """Load the model; True when it is ready."""
        return True

    async def unload(self) -> bool:
        """Free what the model holds."""
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Run the model."""
        raise NotImplementedError("predict() method not implemented")

    async def predict_stream(self, payloads: Any) -> Any:
        """Run the model, and yield responses."""
        yield await self.predict(await anext(aiter(payloads)))

    async def metadata(self) -> MetadataModelResponse:
        """Return the metadata."""
        settings = self._settings
        return MetadataModelResponse(
            name=self.name,
            platform=settings.platform,
            versions=settings.versions,
            inputs=settings.inputs,
            outputs=settings.outputs,
        )

    def decode(self, request_input: Any, default_codec: Any = None) -> Any:
        """Decode an input by its content type, by that in the settings, or with a codec."""
        found = self._decoded(request_input)
        if found is not codecs.UNDECODED:
            return found
        return request_input.data if default_codec is None else default_codec.decode_input(request_input)

    def decode_request(self, inference_request: InferenceRequest, default_codec: Any = None) -> Any:
        """Decode a request by its content type, by that in the settings, or with a codec."""
        for each in inference_request.inputs:
            self._decoded(each)
        kind = content_type_of(inference_request) or getattr(self._settings.parameters, "content_type", None)
        codec = codecs.find_request_codec(kind) if kind else default_codec
        return inference_request if codec is None else codec.decode_request(inference_request)

    def encode(self, payload: Any, request_output: Any, default_codec: Any = None) -> Any:
        """Encode a value as an output."""
        known = next((each for each in self.outputs if each.name == request_output.name), None)
        kind = content_type_of(request_output) or content_type_of(known)
        codec = codecs.find_input_codec(kind) if kind else codecs.input_codec_for(payload) or default_codec
        if codec is None:
            raise codecs.CodecNotFound(request_output.name, type(payload))
        return codec.encode_output(request_output.name, payload)

    def encode_response(self, payload: Any, default_codec: Any = None) -> InferenceResponse:
        """Encode a value as a response."""
        codec = codecs.request_codec_for(payload) or default_codec
        if codec is None:
            raise codecs.CodecNotFound("a response", type(payload))
        found: InferenceResponse = codec.encode_response(self.name, payload, self.version)
        return found

    def _decoded(self, request_input: Any) -> Any:
        known = next((each for each in self.inputs if each.name == request_input.name), None)
        kind = content_type_of(request_input) or content_type_of(known)
        codec = codecs.find_input_codec(kind) if kind else None
        if codec is None:
            return codecs.UNDECODED
        found = codec.decode_input(request_input)
        if request_input.parameters is None:
            request_input.parameters = Parameters()
        vars(request_input.parameters)[codecs.DECODED] = found
        return found


async def get_model_uri(settings: ModelSettings, wellknown_filenames: list[str] | None = None) -> str:
    """Return the path of the model's files. Raises `InvalidModelURI`."""
    uri = getattr(settings.parameters, "uri", None)
    if not uri:
        raise InvalidModelURI(settings.name)
    parts = urlsplit(uri, scheme="file")
    if parts.scheme != "file":
        return str(uri)
    found = _found(to_absolute_path(settings, parts.path), wellknown_filenames or [])
    if found is None:
        raise InvalidModelURI(settings.name, uri)
    return found


def _found(path: str, names: list[str]) -> str | None:
    """Return a file, the file of one of the names in a folder, or the folder; None for what is not there."""
    place = Path(path)
    if place.is_dir():
        return next((str(place / name) for name in names if (place / name).is_file()), path)
    return path if place.is_file() else None


def to_absolute_path(model_settings: ModelSettings, uri: str) -> str:
    """Return a path relative to the settings file as an absolute one."""
    source = model_settings._source  # noqa: SLF001 - of this module
    return uri if source is None else os.path.normpath(Path(source).parent / uri)


def custom_handler(rest_path: str, rest_method: str = "POST") -> Callable[[Any], Any]:
    """Mark a method with a path of its own, which is not served."""
    logger.warning("custom_handler(%r) is passed over: %s has no paths of its own here", rest_path, rest_method)
    return lambda function: function


def own_errors() -> Iterator[tuple[str, Any]]:
    """Yield the errors by the names of MLServer."""
    for each in (MLServerError, InvalidModelURI, ModelNotFound, ModelNotReady, ModelParametersMissing):
        yield each.__name__, each
    yield "InferenceError", RuntimeInferenceError


def modules(register: Any, log: Any) -> dict[str, Mapping[str, Any]]:
    """Return the modules of the package; `register` and `log` are for metrics."""
    settings = {"ModelParameters": ModelParameters, "ModelSettings": ModelSettings}
    public = codecs.NAMES
    return {
        "mlserver": {"MLModel": MLModel, "ModelSettings": ModelSettings, "register": register, "log": log},
        "mlserver.codecs": public,
        **{f"mlserver.codecs.{name}": public for name in ("base", "decorator", "numpy", "pandas", "string", "utils")},
        "mlserver.codecs.errors": public,
        "mlserver.errors": dict(own_errors()),
        "mlserver.handlers": {"custom_handler": custom_handler},
        "mlserver.logging": {"logger": logger},
        "mlserver.metrics": {"register": register, "log": log},
        "mlserver.model": {"MLModel": MLModel},
        "mlserver.settings": settings,
        "mlserver.types": TYPES,
        "mlserver.utils": {"get_model_uri": get_model_uri, "to_absolute_path": to_absolute_path},
    }
