"""The files that tools have given, as resources, for as long as the predictions of their calls are kept."""

from __future__ import annotations

import base64
import binascii
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from geartrain.apis.mcp.messages import INVALID_PARAMS, Fault, JsonObject
from geartrain.apis.mcp.tools import PAGE, OutputFile, call_result
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.principal import Principal
from geartrain.domain.signature.types import Signature
from geartrain.service.models.deployment import Deployment
from geartrain.service.models.predictions import Predictions

MOST_FILES: Final = 10_000  # that are listed; the oldest calls make room
_URI: Final = re.compile(r"geartrain://predictions/([^/]{1,1024})/files/[0-9]+(?:\.[A-Za-z0-9]+)?")
_CURSOR: Final = re.compile(r"([0-9]{1,18})\.([0-9]{1,9})")
_UNKNOWN: Final = (
    "There is no such resource: it never was, or it is no longer kept. resources/list names those there are."
)

TEMPLATE: Final[JsonObject] = {
    "uriTemplate": "geartrain://predictions/{prediction}/files/{file}",
    "name": "file",
    "title": "A file that a tool has given",
    "description": "`prediction` is the id in `_meta` of a result, `file` a number and the ending of its media type.",
}


class _File(NamedTuple):
    """A file without its content."""

    uri: str
    media_type: str
    size: int  # bytes


class _Call(NamedTuple):
    """A call whose output has files. The output itself is that of its prediction."""

    number: int
    model: str
    prediction_id: str
    predictions: Predictions
    signature: Signature
    ended: str  # time, in ISO 8601
    files: tuple[_File, ...]


class KeptFiles:
    """The files of the calls of one server, newest calls first.

    Only their descriptions are held here. The content is in the output of the prediction, which its model keeps within
    limits of time, number and bytes, and shows to its owner alone.
    """

    def __init__(self) -> None:
        self._calls: OrderedDict[str, _Call] = OrderedDict()
        self._count = 0  # files
        self._number = 0  # of the latest call

    @property
    def count(self) -> int:
        """The number of files that are described."""
        return self._count

    def add(self, deployment: Deployment, prediction: Prediction, files: Sequence[OutputFile]) -> None:
        """Take over the files of a call that has ended well, if its prediction is kept."""
        predictions = deployment.predictions
        if not files or predictions.recent.find(prediction.id) is not prediction:
            return
        self._number += 1
        ended = datetime.fromtimestamp(prediction.completed_at or 0, UTC).isoformat()
        described = tuple(_File(file.uri, file.media_type, file.size) for file in files)
        self._calls[prediction.id] = _Call(
            self._number, deployment.name, prediction.id, predictions, deployment.interface.signature, ended, described
        )
        self._count += len(described)
        while len(self._calls) > 1:
            oldest = next(iter(self._calls.values()))
            if self._count <= MOST_FILES and oldest.predictions.recent.find(oldest.prediction_id) is not None:
                return
            self._drop(oldest.prediction_id)

    def page(self, cursor: str | None, principal: Principal, may_see: Callable[[str], bool]) -> JsonObject:
        """Return a page of the files that `principal` may see, of the models that it may see. Raises `Fault`."""
        begin = None if cursor is None else _decode_cursor(cursor)
        resources: list[JsonObject] = []
        last = (0, 0)
        for call in self._seen(principal, may_see):
            for place, file in enumerate(call.files):
                if begin is not None and (-call.number, place) <= (-begin[0], begin[1]):
                    continue
                if len(resources) == PAGE:
                    return {"resources": resources, "nextCursor": _encode_cursor(*last)}
                resources.append(_describe(call, file))
                last = (call.number, place)
        return {"resources": resources}

    def find(self, uri: str, principal: Principal, may_see: Callable[[str], bool]) -> tuple[Prediction, Signature]:
        """Return the prediction that has a file, and the signature of its model. Raises `LookupError`."""
        matched = _URI.fullmatch(uri)
        call = self._calls.get(matched[1]) if matched else None
        if call is None or not may_see(call.model) or all(file.uri != uri for file in call.files):
            raise LookupError(_UNKNOWN)
        prediction = call.predictions.look_up(call.prediction_id, principal)
        if prediction is None:
            raise LookupError(_UNKNOWN)
        return prediction, call.signature

    def _seen(self, principal: Principal, may_see: Callable[[str], bool]) -> Iterator[_Call]:
        for call in [*reversed(self._calls.values())]:
            prediction = call.predictions.recent.find(call.prediction_id)
            if prediction is None:
                self._drop(call.prediction_id)
            elif principal.may_see(prediction.principal) and may_see(call.model):
                yield call

    def _drop(self, prediction_id: str) -> None:
        call = self._calls.pop(prediction_id, None)
        if call is not None:
            self._count -= len(call.files)


def read_file(prediction: Prediction, signature: Signature, uri: str, *, version: str) -> JsonObject:
    """Return the result of `resources/read` for a file of a prediction that is over."""
    files = call_result(prediction.output, signature, prediction.id, version=version).files
    return {"contents": [next(file.resource for file in files if file.uri == uri)]}


def _describe(call: _Call, file: _File) -> JsonObject:
    name = file.uri.rpartition("/")[2]
    return {
        "uri": file.uri,
        "name": f"{call.model}-{name}",
        "description": f"File {name} of a call of the tool {call.model}.",
        "mimeType": file.media_type,
        "size": file.size,
        "annotations": {"lastModified": call.ended},
    }


def _encode_cursor(number: int, place: int) -> str:
    return base64.urlsafe_b64encode(b"%d.%d" % (number, place)).decode()


def _decode_cursor(cursor: str) -> tuple[int, int]:
    try:
        matched = _CURSOR.fullmatch(base64.b64decode(cursor.encode(), altchars=b"-_", validate=True).decode())
    except (binascii.Error, ValueError):
        matched = None
    if matched is None:
        raise Fault(INVALID_PARAMS, "'params.cursor' is none that this server has given: begin without it")
    return int(matched[1]), int(matched[2])
