"""The health of models as `GET /health-check` tells it."""

from __future__ import annotations

from typing import Any

from geartrain.domain.predictions.lifecycle import Health
from geartrain.domain.rendering import timestamp
from geartrain.service.durable.durability import Durability
from geartrain.service.workers.pool import HealthReport, SetupReport


def health_fields(report: HealthReport) -> dict[str, Any]:
    """Return the health of a model as `GET /health-check` tells it. What has no value is left out."""
    found: dict[str, Any] = {
        "status": report.health,
        "setup": _setup(report.setup, report.health),
        "user_healthcheck_error": report.healthcheck_error or report.defunct_reason,
        "restarts": report.restarts if report.restarts.count else None,
        "replicas": report.replicas or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def store_fields(durability: Durability | None) -> dict[str, Any]:
    """Return True if the store has answered lately; nothing where there is none."""
    if durability is None:
        return {}
    if durability.fault:
        return {"store": {"status": "unavailable", "error": durability.fault}}
    return {"store": {"status": "available"}}


def _setup(report: SetupReport, health: Health) -> dict[str, Any] | None:
    if health is Health.UNKNOWN:  # it has not started
        return None
    setup: dict[str, Any] = {"started_at": timestamp(report.started_at)}
    if health is Health.STARTING:
        setup["status"] = "starting"
    else:
        if report.completed_at is not None:
            setup["completed_at"] = timestamp(report.completed_at)
        setup["status"] = "failed" if report.failed else "succeeded"
    setup["logs"] = report.logs
    return setup
