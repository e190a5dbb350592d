"""`score.py` of Azure ML: `init()` once, `run(raw_data)` for each request; raw requests with `@rawhttp`."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

from geartrain.authoring.requests import JSON_TYPE, Request, Response
from geartrain.worker.loading.scripts.values import plain

_RAW: Final = "__geartrain_rawhttp__"
_PACKAGE: Final = "azureml.contrib.services"
_Function = TypeVar("_Function", bound=Callable[..., Any])


class AMLRequest:
    """A raw request, with the names that `flask` gives to its parts."""

    def __init__(self, request: Request) -> None:
        self.method = request.method
        self.path = request.path
        self.full_path = f"{request.path}?{request.query}"
        self.headers = {**request.headers, "content-type": request.content_type}
        self.args = request.parameters
        self.data = request.body

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


def rawhttp(function: _Function) -> _Function:
    """Have `run()` get an `AMLRequest`."""
    setattr(function, _RAW, True)
    return function


class AzureScript:
    """A script of an online endpoint."""

    def __init__(self, module: ModuleType, _folder: Path) -> None:
        """Raises `ValueError` for a script without its functions."""
        self._init: Callable[[], Any] | None = getattr(module, "init", None)
        self._run: Callable[[Any], Any] = module.run
        if not callable(self._run) or (self._init is not None and not callable(self._init)):
            raise ValueError("init() and run(raw_data) are functions")

    @staticmethod
    def prepare(folder: Path) -> None:
        """Set the variables of Azure's containers, and have the classes of raw requests imported from here."""
        os.environ.setdefault("AZUREML_MODEL_DIR", str(folder))
        os.environ.setdefault("AML_APP_ROOT", str(folder))
        try:
            is_there = importlib.util.find_spec(_PACKAGE) is not None
        except ImportError:
            is_there = False
        if not is_there:
            _install()

    def setup(self) -> None:
        """Call `init()`."""
        if self._init is not None:
            self._init()

    def run(self, request: Request) -> Response:
        """Answer one request."""
        is_raw = getattr(self._run, _RAW, False)
        answer = self._run(AMLRequest(request) if is_raw else request.text)
        if isinstance(answer, AMLResponse):
            kind = answer.headers.pop("content-type", answer.content_type)
            return Response(answer.content, kind, status=answer.status_code, headers=answer.headers)
        return Response(json.dumps(plain(answer)), JSON_TYPE)


def _install() -> None:
    """Have `azureml.contrib.services` give the classes of raw requests."""
    parts = _PACKAGE.split(".")
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        if name not in sys.modules:
            package = ModuleType(name)
            package.__path__ = []
            sys.modules[name] = package
            if end > 1:
                setattr(sys.modules[name.rpartition(".")[0]], parts[end - 1], package)
    for name, values in (
        ("aml_request", {"AMLRequest": AMLRequest, "rawhttp": rawhttp}),
        ("aml_response", {"AMLResponse": AMLResponse}),
    ):
        part = ModuleType(f"{_PACKAGE}.{name}")
        vars(part).update(values)
        sys.modules[part.__name__] = part
        setattr(sys.modules[_PACKAGE], name, part)
