"""`inference.py` of SageMaker: `model_fn`, `input_fn`, `predict_fn`, `output_fn` or `transform_fn`.

After the contract of SageMaker's inference toolkit: each function may take a context as its last parameter, and each
may be left out, `model_fn` where a container of SageMaker loads the model by itself.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Final

from geartrain.authoring.devices import own_device
from geartrain.authoring.requests import BINARY_TYPE, JSON_TYPE, Request, Response
from geartrain.authoring.sagemaker import SAGEMAKER_FILE, sagemaker_program
from geartrain.worker.loading.scripts.answers import plain
from geartrain.worker.loading.scripts.finder import stand_in
from geartrain.worker.loading.scripts.sagemaker_defaults import (
    CSV_TYPE,
    NPY_TYPE,
    TEXTS,
    UnsupportedFormatError,
    decode,
    defaults_of,
    encode,
)
from geartrain.worker.loading.scripts.script import Place, Script

_FUNCTIONS: Final = ("input_fn", "predict_fn", "output_fn")


class Context:
    """The last parameter of a function of the script, where it takes one."""

    def __init__(self, folder: Path) -> None:
        device = own_device()
        gpu = int(device.partition(":")[2] or 0) if device.startswith("cuda") else None
        self.system_properties = {"model_dir": str(folder), "gpu_id": gpu}
        self._headers: dict[str, str] = {}

    def take(self, request: Request) -> None:
        """Be about a request from now on."""
        self._headers = {**request.headers, "content-type": request.content_type, "accept": request.accept}

    def get_request_header(self, _index: int, name: str) -> str | None:
        """Return a header field of the request."""
        return self._headers.get(name.lower())

    def get_all_request_header(self, _index: int) -> dict[str, str]:
        """Return the header fields of the request."""
        return dict(self._headers)


class SageMakerScript(Script):
    """A script with a model for SageMaker."""

    file_name: ClassVar = SAGEMAKER_FILE

    def __init__(self, module: ModuleType, place: Place, options: Mapping[str, Any]) -> None:
        """Raises `ValueError` for functions that are missing, or cannot stand together."""
        super().__init__(module, place, options)
        found = {name: getattr(module, name, None) for name in _FUNCTIONS}
        transform = getattr(module, "transform_fn", None)
        both = [name for name, function in found.items() if function is not None]
        if transform is not None and both:
            raise ValueError(f"it has transform_fn() and {both[0]}(): keep one of them")
        defaults = defaults_of(place.folder, getattr(module, "model_fn", None))
        self._context = context = Context(place.folder)
        self._input, self._predict, self._output = (
            _with_context(found[name] or getattr(defaults, name), 2, context) for name in _FUNCTIONS
        )
        self._transform = None if transform is None else _with_context(transform, 4, context)
        self._load = _with_context(defaults.model_fn, 1, context)
        self._model: Any = None

    @classmethod
    def find(cls, path: Path) -> Place:
        """Find the script that `SAGEMAKER_PROGRAM` names, or that has the usual name."""
        named = sagemaker_program(path) if path.is_dir() else None
        return super().find(path) if named is None else Place(named, path)

    @classmethod
    def prepare(cls, place: Place) -> None:
        """Set the variables of SageMaker's containers, and have `sagemaker_inference` imported from here."""
        os.environ.setdefault("SM_MODEL_DIR", str(place.folder))
        stand_in(
            {
                "sagemaker_inference.content_types": {
                    "JSON": JSON_TYPE,
                    "CSV": CSV_TYPE,
                    "NPY": NPY_TYPE,
                    "OCTET_STREAM": BINARY_TYPE,
                    "UTF8_TYPES": sorted(TEXTS),
                },
                "sagemaker_inference.decoder": {"decode": decode},
                "sagemaker_inference.encoder": {"encode": lambda array, content_type: encode(array, content_type)[0]},
                "sagemaker_inference.errors": {"UnsupportedFormatError": UnsupportedFormatError},
            }
        )

    def setup(self) -> None:
        """Call `model_fn`."""
        self._model = self._load(str(self.place.folder))

    def run(self, request: Request) -> Response:
        """Answer one request, as SageMaker's toolkit does."""
        self._context.take(request)
        content_type = request.media_type or JSON_TYPE
        accept = request.accept.partition(",")[0].partition(";")[0].strip()
        accept = JSON_TYPE if accept in {"", "*/*"} else accept
        body = request.text if content_type in TEXTS else request.body
        try:
            if self._transform is not None:
                answer = self._transform(self._model, body, content_type, accept)
            else:
                taken = self._input(body, content_type)
                made = self._predict(taken, self._model)
                answer = self._output(made, accept)
        except Exception as error:
            status = getattr(error, "status_code", None)
            if not isinstance(status, int) or not 400 <= status < 600:  # noqa: PLR2004 - statuses of errors
                raise
            return Response({"error": str(error)}, status=status)
        content, kind = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, accept)  # noqa: PLR2004
        if not isinstance(content, (bytes, bytearray, str)) and not hasattr(content, "__next__"):
            content = json.dumps(plain(content))
        return Response(bytes(content) if isinstance(content, bytearray) else content, str(kind))


def _with_context(function: Callable[..., Any], count: int, context: Context) -> Callable[..., Any]:
    """A function of `count` values: the author's, which gets the context behind them if it takes one more."""
    parameters = inspect.signature(function).parameters.values()
    taken = sum(each.kind in {each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD} for each in parameters)
    return (lambda *values: function(*values, context)) if taken > count else function
