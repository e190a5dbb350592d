"""Metadata of a server and its models in the Open Inference Protocol. Nothing here waits."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from geartrain.apis import open_inference_info
from geartrain.authoring import __version__
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.rendering import clip
from geartrain.service.models import information
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.shared_memory import SharedRegions
from geartrain.transport.open_inference.api import EMPTY, json_answer, model_of
from geartrain.transport.routing import Params
from geartrain.transport.wire.exchange import Answer, Head

_NOT_READY: Final = Answer(HTTPStatus.BAD_REQUEST, (b"",), ())


class InfoEndpoints:
    """Answers at once, all of them; raises `GeartrainError`."""

    def __init__(self, catalogue: Catalogue, regions: SharedRegions, *, health_body: bool) -> None:
        """`health_body`: whether health responses say in JSON what their status says."""
        self._catalogue = catalogue
        self._regions = regions
        self._has_health_body = health_body

    # the server

    def live(self, _head: Head, _params: Params) -> Answer:
        """`GET v2/health/live`."""
        return self._health(True, open_inference_info.health(live=True))

    def ready(self, _head: Head, _params: Params) -> Answer:
        """`GET v2/health/ready`."""
        ready = self._catalogue.readiness.is_ready
        return self._health(ready, open_inference_info.health(ready=ready))

    def _health(self, is_well: bool, body: bytes) -> Answer:  # noqa: FBT001 - the one fact
        if self._has_health_body:
            return Answer(HTTPStatus.OK if is_well else HTTPStatus.BAD_REQUEST, (body,))
        return EMPTY if is_well else _NOT_READY

    def server(self, _head: Head, _params: Params) -> Answer:
        """`GET v2`."""
        return json_answer(open_inference_info.server_metadata(__version__, shared_memory=self._regions.enabled))

    def models(self, _head: Head, _params: Params) -> Answer:
        """`GET v2/models`."""
        names = dict.fromkeys(deployment.name for deployment in self._catalogue.deployments())
        return json_answer(open_inference_info.model_list(names))

    # a model

    def model_ready(self, _head: Head, params: Params) -> Answer:
        """`GET v2/models/{name}/ready`."""
        name, version = model_of(params)
        ready = information.is_ready(self._catalogue, name, version)
        return self._health(ready, open_inference_info.health(name, ready=ready))

    def metadata(self, _head: Head, params: Params) -> Answer:
        """`GET v2/models/{name}`."""
        deployment, versions = information.describe(self._catalogue, *model_of(params))
        info, view = deployment.interface.info, deployment.interface.view
        return json_answer(
            open_inference_info.model_metadata(
                deployment.name, versions, view, platform=info.platform, batching=info.batching
            )
        )

    def config(self, _head: Head, params: Params) -> Answer:
        """`GET v2/models/{name}/config`."""
        deployment, _ = information.describe(self._catalogue, *model_of(params))
        info, view = deployment.interface.info, deployment.interface.view
        config = open_inference_info.model_config(
            deployment.name,
            view,
            deployment.slots,
            platform=info.platform,
            batching=info.batching,
            stated=deployment.settings.stated,
        )
        return json_answer(open_inference_info.encode_config(config))

    def all_statistics(self, _head: Head, _params: Params) -> Answer:
        """`GET v2/models/stats`."""
        return json_answer(open_inference_info.statistics(information.statistics(self._catalogue)))

    def statistics(self, _head: Head, params: Params) -> Answer:
        """`GET v2/models/{name}/stats`."""
        name, version = model_of(params)
        try:
            return json_answer(open_inference_info.statistics(information.statistics(self._catalogue, name, version)))
        except GeartrainError as error:
            if error.code is not Code.NOT_FOUND:
                raise
            is_version = version and self._knows(name)
            msg = f"requested model version is not available for model '{clip(name)}'" if is_version else ""
            raise GeartrainError(
                Code.INVALID_INPUT, msg or f"requested model '{clip(name)}' is not available"
            ) from None

    def _knows(self, name: str) -> bool:
        try:
            return bool(information.versions(self._catalogue, name))
        except GeartrainError:
            return False
