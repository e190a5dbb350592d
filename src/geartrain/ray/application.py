"""Applications of Ray Serve."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final, Unpack

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from geartrain.ray.config import DEPLOYMENT
from geartrain.ray.options import ReplicaOptions, absolute, check_options, read_scale
from geartrain.ray.replica import Replica
from geartrain.ray.scaling import by_queue

_REACHABLE: Final = 30.0  # seconds for which Ray's proxies may still send requests to a replica that ends
_AFTER: Final = 20.0  # for webhooks and workers, when the predictions have ended
_UNCOUNTED: Final = 1_000_000  # requests at once: the replica has limits of its own


def app(
    models: str | os.PathLike[str],
    *,
    num_replicas: str | int = 1,
    num_cpus: float = 1.0,
    num_gpus: float = 0.0,
    user_config: Mapping[str, Any] | None = None,
    autoscaling: Mapping[str, Any] | None = None,
    **options: Unpack[ReplicaOptions],
) -> serve.Application:
    """Return an application that serves a model, or a folder of models, with every protocol.

    `models` is what `geartrain serve` takes, as each node has it; or a reference to models elsewhere. `num_replicas`:
    how many, or `MIN:MAX` to have them follow the queue. `num_cpus` and `num_gpus` are those that Ray reserves for each
    replica; its models divide them. `user_config`: see docs/ray.md. `autoscaling`: fields of Ray's `AutoscalingConfig`,
    such as `upscale_delay_s`. `options` are those of `geartrain.asgi`, and who may come in; see `ReplicaOptions`.

    One application has one repository. Raises `ProjectError` for options that are wrong.
    """
    scale = read_scale(num_replicas)
    check_options(options, scale)
    grace = float(options.get("shutdown_grace", 30.0))
    deployment = serve.deployment(serve.ingress()(Replica), name=DEPLOYMENT).options(
        num_replicas=scale.least if scale.is_fixed else None,
        autoscaling_config=None
        if scale.is_fixed
        else AutoscalingConfig(
            **{
                "min_replicas": scale.least,
                "max_replicas": scale.most,
                "policy": AutoscalingPolicy(policy_function=by_queue),
                **(autoscaling or {}),
            }
        ),
        ray_actor_options={"num_cpus": num_cpus, "num_gpus": num_gpus},
        user_config=None if user_config is None else dict(user_config),
        max_ongoing_requests=_UNCOUNTED,
        graceful_shutdown_timeout_s=_REACHABLE + grace + _AFTER,
    )
    return deployment.bind(absolute(models), dict(options))


def build(arguments: dict[str, Any]) -> serve.Application:
    """Return the application that the arguments of `app` describe: the `import_path` of a config file of Serve."""
    return app(**arguments)
