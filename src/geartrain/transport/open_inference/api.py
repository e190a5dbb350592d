"""Refusals of the Open Inference Protocol, and the model that a path names."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from geartrain.apis import open_inference
from geartrain.domain.errors import Code, GeartrainError
from geartrain.service.models.catalogue import normal
from geartrain.transport import compression
from geartrain.transport.errors import OPEN_INFERENCE_HTTP_STATUS, error_headers
from geartrain.transport.routing import Params
from geartrain.transport.wire.exchange import JSON, Answer, Headers

_OK: Final = HTTPStatus.OK  # to read it from its class takes several times as long

EMPTY: Final = Answer(_OK, (b"",), ())
_NOT_FOUND: Final = Answer(HTTPStatus.NOT_FOUND, (open_inference.encode_fault("Not Found"),))


class OpenInferenceApi:
    """The answers to requests that are refused. See `Api`."""

    def refuse(self, error: GeartrainError) -> Answer:
        """Return the answer to a request that failed."""
        headers: Headers = JSON
        if error.code is Code.UNSUPPORTED_MEDIA_TYPE:
            headers = (*JSON, (b"accept-encoding", compression.ACCEPTED))
        status = OPEN_INFERENCE_HTTP_STATUS[error.code]
        headers = (*headers, *error_headers(status, error))
        return Answer(status, (open_inference.encode_error(error),), headers, error=error.reason)

    def not_found(self) -> Answer:
        """Return the answer where there is no such path."""
        return _NOT_FOUND

    def wrong_method(self, allowed: str) -> Answer:
        """Return the answer to another method than those `allowed`."""
        body = open_inference.encode_fault("Method Not Allowed")
        return Answer(HTTPStatus.METHOD_NOT_ALLOWED, (body,), (*JSON, (b"allow", allowed.encode())))


API: Final = OpenInferenceApi()


def model_of(params: Params) -> tuple[str, str]:
    """Return the name and the version that a path has; an empty version leaves the choice to the server."""
    return params["model"], normal(params.get("version", ""))


def json_answer(body: bytes) -> Answer:
    """Return a body of JSON with status 200."""
    return Answer(_OK, (body,))
