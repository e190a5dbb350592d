"""Metadata, configuration and statistics of models."""

from __future__ import annotations

from typing import Final

from geartrain.apis.open_inference_info import encode_config, model_config, properties
from geartrain.domain.predictions.statistics import Duration, ModelStatistics
from geartrain.domain.tensors.tensor import TensorSpec
from geartrain.service.models.deployment import Deployment
from geartrain.service.models.repository import IndexEntry
from geartrain.transport.grpc import open_inference_pb2 as pb

_COMPUTE: Final = ("compute_input", "compute_infer", "compute_output")
_DURATIONS: Final = ("success", "fail", "queue", *_COMPUTE)


def metadata(deployment: Deployment, versions: tuple[str, ...]) -> pb.ModelMetadataResponse:
    """Describe a model version; raise `NOT_READY` while its inputs are not known."""
    view, info = deployment.interface.view, deployment.interface.info
    return pb.ModelMetadataResponse(
        name=deployment.name,
        versions=versions,
        platform=info.platform,
        inputs=map(_metadata, view.inputs),
        outputs=map(_metadata, view.outputs),
        properties=properties(view, info.batching, platform=info.platform),
    )


def config(deployment: Deployment) -> pb.ModelConfig:
    """Describe how a model version is served; raise `NOT_READY` while its inputs are not known.

    It is what `GET v2/models/{name}/config` tells, as far as the message has fields for it.
    """
    from google.protobuf import json_format  # late: it is rarely asked for

    info = deployment.interface.info
    told = model_config(
        deployment.name,
        deployment.interface.view,
        deployment.slots,
        platform=info.platform,
        batching=info.batching,
        stated=deployment.settings.stated,
    )
    return json_format.Parse(encode_config(told), pb.ModelConfig(), ignore_unknown_fields=True)


def statistics(model: ModelStatistics) -> pb.ModelStatistics:
    """Tell what a model version has done."""
    return pb.ModelStatistics(
        name=model.name,
        version=model.version,
        last_inference=model.last_inference,
        inference_count=model.inference_count,
        execution_count=model.execution_count,
        inference_stats=pb.InferStatistics(**{name: _duration(getattr(model, name)) for name in _DURATIONS}),
        batch_stats=_batches(model),
    )


def _batches(model: ModelStatistics) -> list[pb.InferBatchStatistics]:
    if not model.batches:
        compute = {name: _duration(getattr(model, name)) for name in _COMPUTE}
        return [pb.InferBatchStatistics(batch_size=1, **compute)] if model.execution_count else []
    return [
        pb.InferBatchStatistics(
            batch_size=batch.size,
            compute_infer=_duration(batch.compute_infer),
            compute_output=_duration(batch.compute_output),
        )
        for batch in model.batches
    ]


def index_entry(entry: IndexEntry) -> pb.RepositoryIndexResponse.ModelIndex:
    """Describe a model version of the repository."""
    return pb.RepositoryIndexResponse.ModelIndex(
        name=entry.name, version=entry.version, state=entry.state, reason=entry.reason
    )


def _metadata(spec: TensorSpec) -> pb.ModelMetadataResponse.TensorMetadata:
    return pb.ModelMetadataResponse.TensorMetadata(name=spec.name, datatype=spec.datatype, shape=spec.shape)


def _duration(duration: Duration) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=duration.count, ns=duration.ns)
