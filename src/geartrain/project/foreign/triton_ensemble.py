"""`ensemble_scheduling` of config.pbtxt as a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from geartrain.domain.signature.pipeline import PLATFORM, Pipeline, Step
from geartrain.domain.signature.types import Declared
from geartrain.project.errors import ProjectError
from geartrain.project.foreign import model_config_pb2 as pb

_LATEST: Final = -1
_UNFIT: Final = ("instance_group", "dynamic_batching", "optimization", "default_model_filename")


def is_ensemble(config: pb.ModelConfig) -> bool:
    """True if a model is made of others."""
    return config.HasField("ensemble_scheduling") or PLATFORM in {config.platform, config.backend}


def read_ensemble(config: pb.ModelConfig, declared: Declared) -> Pipeline:
    """Return the steps of an ensemble; raise ProjectError that names the step and the field."""
    for kind in ("platform", "backend"):
        if getattr(config, kind) not in {"", PLATFORM}:
            raise ProjectError(f"`{kind}` is {getattr(config, kind)!r} beside `ensemble_scheduling`; write 'ensemble'")
    for field, _ in config.ListFields():
        if field.name in _UNFIT:
            raise ProjectError(f"`{field.name}` is of no use in an ensemble; move it to the models of its steps")
    for name, given in (("input", declared.inputs), ("output", declared.outputs)):
        if not given:
            raise ProjectError(f"`{name}` is missing; an ensemble declares its tensors")
        reshaped = next((each.name for each in given if each.is_reshaped), None)
        if reshaped is not None:
            raise ProjectError(
                f"`reshape` of {reshaped!r} is of no use in an ensemble; move it to the model that has it"
            )
    steps = config.ensemble_scheduling.step
    if not steps:
        raise ProjectError("`ensemble_scheduling.step` is missing; write a step for each model")
    return Pipeline(
        tuple(_step(f"`ensemble_scheduling.step[{index}]", each) for index, each in enumerate(steps)),
        declared=declared,
        place="ensemble_scheduling.step",
        maps=("input_map", "output_map"),
        is_ensemble=True,
    )


def _step(place: str, step: pb.ModelEnsembling.Step) -> Step:
    if not step.model_name:
        raise ProjectError(f"{place}.model_name` is missing; write the name of a model of the same folder")
    if step.model_namespace:
        raise ProjectError(f"{place}.model_namespace`: models have no namespaces; remove it")
    version = step.model_version
    if version < _LATEST:
        raise ProjectError(f"{place}.model_version` is {version}; write -1 for the latest, or the number of a version")
    inputs, outputs = dict(step.input_map), dict(step.output_map)
    maps: Mapping[str, Mapping[str, str]] = {"input_map": inputs, "output_map": outputs}
    for key, given in maps.items():
        if not given:
            raise ProjectError(f"{place}.{key}` is missing; write a `key` of the model and a `value` of the ensemble")
        for name, value in given.items():
            if not name or not value:
                raise ProjectError(f"{place}.{key}` has an empty {'value' if name else 'key'}; write a name")
    return Step(
        step.model_name,
        version=str(version) if version > 0 else "",  # 0 stands also for a field that is not there
        inputs=inputs,
        outputs=outputs,
    )
