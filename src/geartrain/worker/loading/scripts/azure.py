"""`score.py` of Azure ML: `init()` once, `run(raw_data)` for each request; raw requests with `@rawhttp`."""

from __future__ import annotations

import inspect
import io
import json
import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, ClassVar, Final, TypeVar

from geartrain.authoring.requests import JSON_TYPE, Request, Response
from geartrain.worker.errors import ClientError
from geartrain.worker.loading.scripts.answers import plain
from geartrain.worker.loading.scripts.finder import stand_in
from geartrain.worker.loading.scripts.script import FormFile, Place, Script, read_parts

_RAW: Final = "__geartrain_rawhttp__"
_PACKAGE: Final = "azureml.contrib.services"
_Function = TypeVar("_Function", bound=Callable[..., Any])


class FileStorage:
    """A file of a form, with the names that `flask` gives to its parts."""

    def __init__(self, given: FormFile) -> None:
        self.filename = given.filename
        self.content_type = self.mimetype = given.content_type
        self.stream = io.BytesIO(given.body)

    def read(self, size: int = -1) -> bytes:
        """Read bytes of the file."""
        return self.stream.read(size)


class Parts(dict[str, Any]):
    """Fields or files of a form by name: the first of each, and all of them by `getlist`."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        self._pairs = pairs
        super().__init__(reversed(pairs))

    def getlist(self, name: str) -> list[Any]:
        """Return all of a name; none if there is none."""
        return [value for each, value in self._pairs if each == name]


class AMLRequest:
    """A raw request, with the names that `flask` gives to its parts."""

    def __init__(self, request: Request) -> None:
        self.method = request.method
        self.path = request.path
        self.full_path = f"{request.path}?{request.query}"
        self.headers = {**request.headers, "content-type": request.content_type}
        self.args = request.parameters
        self.data = request.body
        parts = read_parts(request) if request.media_type == "multipart/form-data" else []
        self.files = Parts([(name, FileStorage(part)) for name, part in parts if isinstance(part, FormFile)])
        self.form = Parts([(name, part.decode(errors="replace")) for name, part in parts if isinstance(part, bytes)])

    def get_data(self, *, as_text: bool = False) -> str | bytes:
        """Return the body."""
        return self.data.decode() if as_text else self.data

    def get_json(self, **_: Any) -> Any:
        """Return the decoded body."""
        return json.loads(self.data)


class AMLResponse:
    """An answer with a status; with `json_str` the message becomes JSON."""

    def __init__(self, message: Any, status_code: int, response_headers: Any = None, *, json_str: bool = False) -> None:
        self.content = json.dumps(plain(message)) if json_str else message
        self.content_type = JSON_TYPE if json_str else None
        self.status_code = status_code
        self.headers: dict[str, str] = dict(response_headers or {})
        self.mimetype: str | None = None


def rawhttp(function: _Function) -> _Function:
    """Have `run()` get an `AMLRequest`."""
    setattr(function, _RAW, True)
    return function


class AzureScript(Script):
    """A script of an online endpoint."""

    file_name: ClassVar = "score.py"

    def __init__(self, module: ModuleType, place: Place, options: Mapping[str, Any]) -> None:
        """Raises `ValueError` for a script without its functions."""
        super().__init__(module, place, options)
        self._init: Callable[[], Any] | None = getattr(module, "init", None)
        self._run: Callable[[Any], Any] | None = getattr(module, "run", None)
        if not callable(self._run) or (self._init is not None and not callable(self._init)):
            raise ValueError("init() and run(raw_data) are functions")
        self._fields = _fields_of_schema(self._run)

    @classmethod
    def prepare(cls, place: Place) -> None:
        """Set the variables of Azure's containers, and have the classes of raw requests imported from here."""
        os.environ.setdefault("AZUREML_MODEL_DIR", str(place.folder))
        os.environ.setdefault("AML_APP_ROOT", str(place.folder))
        stand_in(
            {
                f"{_PACKAGE}.aml_request": {"AMLRequest": AMLRequest, "rawhttp": rawhttp},
                f"{_PACKAGE}.aml_response": {"AMLResponse": AMLResponse},
            }
        )

    def setup(self) -> None:
        """Call `init()`."""
        if self._init is not None:
            self._init()

    def run(self, request: Request) -> Response:
        """Answer one request."""
        run: Any = self._run
        is_raw = getattr(run, _RAW, False)
        if self._fields is not None and not is_raw:
            answer = run(**_arguments(request, self._fields))
        else:
            answer = run(AMLRequest(request) if is_raw else request.text)
        if isinstance(answer, AMLResponse):
            kind = answer.mimetype or answer.headers.pop("content-type", answer.content_type)
            return Response(answer.content, kind, status=answer.status_code, headers=answer.headers)
        return Response(json.dumps(plain(answer)), JSON_TYPE)


def _fields_of_schema(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """Return the parameters of a function with `@input_schema` of `inference_schema`; None for one without."""
    schemas = sys.modules.get("inference_schema.schema_util")
    if schemas is None or not schemas.is_schema_decorated(function):
        return None
    return inspect.signature(function).parameters


def _arguments(request: Request, fields: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """Return the arguments of `run()` from the fields of a JSON object. Raises `ClientError`."""
    try:
        body = request.json()
    except (ValueError, RecursionError) as error:
        raise ClientError(f"the body is no JSON: {error}") from None
    required = [name for name, each in fields.items() if each.default is each.empty]
    if not isinstance(body, dict) or any(name not in body for name in required):
        raise ClientError(f"the body is a JSON object with the fields {', '.join(required)}")
    return {name: body[name] for name in fields if name in body}
