"""`instance_group` of a `config.pbtxt`: how many replicas there are, and on which devices."""

from __future__ import annotations

from typing import Final

import msgspec

from geartrain.project.device_settings import Devices
from geartrain.project.errors import ProjectError
from geartrain.project.foreign import model_config_pb2 as pb

_Group = pb.ModelInstanceGroup
_CPU: Final = Devices("cpu")
_PASSED_OVER: Final = ("rate_limiter", "secondary_devices", "profile", "host_policy")


class Instances(msgspec.Struct, frozen=True):
    """The replicas, 0 where nothing is said; their devices, None for those of the server; and what is passed over."""

    replicas: int = 0
    devices: Devices | None = None
    remarks: tuple[str, ...] = ()


def read_instances(config: pb.ModelConfig) -> Instances:
    """Combine the groups of instances; raise ProjectError that names the field."""
    groups = list(config.instance_group)
    there = {field.name for group in groups for field, _ in group.ListFields()}
    remarks = [f"`instance_group.{name}` is passed over" for name in _PASSED_OVER if name in there]
    if any(group.passive for group in groups):
        remarks.append("`instance_group.passive` is passed over: all instances take requests")
    for group in groups:
        if group.count < 0 or any(gpu < 0 for gpu in group.gpus):
            raise ProjectError("`instance_group` has a number below 0")
        if group.gpus and group.kind == _Group.KIND_CPU:
            raise ProjectError("`instance_group` is of KIND_CPU, and has `gpus`; remove them, or write KIND_GPU")
    on_gpus = [group for group in groups if group.kind == _Group.KIND_GPU or group.gpus]
    on_cpus = [group for group in groups if group.kind == _Group.KIND_CPU]
    if on_gpus and len(on_gpus) < len(groups):
        remarks.append("`instance_group`: the replicas of a model are on devices of one kind; those on GPUs are made")
        groups = on_gpus
    return Instances(
        replicas=sum((group.count or 1) * max(1, len(group.gpus)) for group in groups),
        devices=_gpus(on_gpus, remarks) if on_gpus else _CPU if on_cpus else None,
        remarks=tuple(remarks),
    )


def _gpus(groups: list[pb.ModelInstanceGroup], remarks: list[str]) -> Devices:
    named = tuple(dict.fromkeys(f"cuda:{gpu}" for group in groups for gpu in group.gpus))
    if named and all(group.gpus for group in groups):
        if len({group.count or 1 for group in groups}) > 1:
            remarks.append("`instance_group`: the replicas are divided evenly among the GPUs")
        return Devices("named", named)
    remarks.append(
        "`instance_group`: `count` is that of all GPUs together, and not of each; write `gpus` to choose them"
    )
    return Devices()
