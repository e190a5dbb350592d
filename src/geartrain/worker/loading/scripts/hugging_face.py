"""`handler.py` of an inference endpoint of Hugging Face: a class `EndpointHandler` that is called with a dict."""

from __future__ import annotations

import inspect
import io
from collections.abc import Mapping
from types import ModuleType
from typing import Any, ClassVar

from geartrain.authoring.requests import JSON_TYPE, Request, Response
from geartrain.worker.errors import describe_error
from geartrain.worker.loading.scripts.answers import plain
from geartrain.worker.loading.scripts.script import Place, Script


class HuggingFaceHandler(Script):
    """A handler and its model."""

    file_name: ClassVar = "handler.py"

    def __init__(self, module: ModuleType, place: Place, options: Mapping[str, Any]) -> None:
        """Raises `ValueError` for a class that cannot be called."""
        super().__init__(module, place, options)
        self._class = getattr(module, "EndpointHandler", None)
        if not isinstance(self._class, type) or "__call__" not in dir(self._class):
            raise ValueError("EndpointHandler is a class with __call__(self, data)")
        self._handler: Any = None

    def setup(self) -> None:
        """Make the author's object, with the folder of the model."""
        made: Any = self._class
        names = inspect.signature(made).parameters
        name = "model_dir" if "model_dir" in names else "path"
        self._handler = made(**({name: str(self.place.folder)} if names else {}))

    def run(self, request: Request) -> Response:
        """Answer one request; whatever the handler raises is a fault of the request, as there."""
        try:
            data = _read(request)
        except ValueError as error:
            return Response({"error": str(error)}, status=400)
        try:
            answer = self._handler(data)
        except Exception as error:  # noqa: BLE001 - as Hugging Face's toolkit answers them
            return Response({"error": describe_error(error)}, status=400)
        if isinstance(answer, (bytes, bytearray)):
            return Response(bytes(answer), request.accept if "*" not in request.accept else "")
        if hasattr(answer, "save") and hasattr(answer, "convert"):  # a picture of Pillow
            kind = request.accept.removeprefix("image/") if request.accept.startswith("image/") else "png"
            buffer = io.BytesIO()
            answer.save(buffer, format="jpeg" if kind == "jpg" else kind)
            return Response(buffer.getvalue(), f"image/{kind}")
        return Response(plain(answer), JSON_TYPE)


def _read(request: Request) -> dict[str, Any]:
    """The dict that a handler gets. Raises `ValueError`."""
    kind = request.media_type
    if kind in {"", JSON_TYPE}:
        data = request.json()
        if not isinstance(data, dict):
            raise ValueError('the body is a JSON object with "inputs"')
        return data
    if kind.startswith("text/"):
        return {"inputs": request.text}
    if kind.startswith("image/"):
        from PIL import Image

        return {"inputs": Image.open(io.BytesIO(request.body)).convert("RGB")}
    return {"inputs": request.body}
