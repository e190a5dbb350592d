"""Readiness, metadata and statistics of models."""

from __future__ import annotations

from typing import Final

from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.lifecycle import Health, VersionState
from geartrain.domain.predictions.statistics import ModelStatistics
from geartrain.domain.remote.progress import Download
from geartrain.service.models.catalogue import Catalogue, normal, not_available
from geartrain.service.models.deployment import Deployment
from geartrain.service.models.entry import Version
from geartrain.service.models.waking import ModelAsleepError

_FAULTY: Final = frozenset({VersionState.FAILED, VersionState.REFUSED})


def is_ready(catalogue: Catalogue, name: str, version: str = "") -> bool:
    """True if a model version can take requests; False also for one that is not there."""
    try:
        number = normal(version) or _default_number(catalogue, name)
        return catalogue.entry(name).versions[number].is_ready
    except (GeartrainError, KeyError):
        return False


def _default_number(catalogue: Catalogue, name: str) -> str:
    try:
        return catalogue.find(name).version
    except ModelAsleepError:
        entry = catalogue.entry(name)
        return entry.wanted.default or entry.served()[-1]


def versions(catalogue: Catalogue, name: str) -> tuple[str, ...]:
    """Return the versions of a model that can be asked for, in the order of their numbers; raise `NOT_FOUND`."""
    available = catalogue.entry(name).available
    if not available:
        raise not_available(name)
    return tuple(available)


def describe(catalogue: Catalogue, name: str, version: str = "") -> tuple[Deployment, tuple[str, ...]]:
    """Return a model version whose inputs and outputs are asked for, and the versions to name with it.

    As `Catalogue.find` and `versions`, but a version whose setup has failed is found too: its signature was
    known before. Raises `NOT_FOUND` and `NOT_READY`. The signature of what is returned may not be known yet.
    """
    try:
        found = catalogue.find(name, version)
    except GeartrainError:
        failed = _failed(catalogue, name, version)
        if not failed:
            raise
        return failed[0], (failed[0].version,)
    return found, (found.version,) if version else versions(catalogue, name)


def _failed(catalogue: Catalogue, name: str, version: str) -> tuple[Deployment, ...]:
    """Return a model version that has been loaded, and whose setup has failed, if it is there."""
    try:
        found = catalogue.entry(name).deployment(normal(version))
    except GeartrainError:
        return ()
    return (found,) if found.loaded.is_set() and found.workers.health is Health.SETUP_FAILED else ()


def downloads(catalogue: Catalogue) -> tuple[tuple[str, Download], ...]:
    """Return the downloads of the models for which something has been looked for elsewhere, by name."""
    found = [(name, catalogue.entry(name).loading.download) for name in catalogue.names()]
    return tuple((name, download) for name, download in found if download.source)


def faults(catalogue: Catalogue) -> tuple[tuple[str, str], ...]:
    """Return name and version of what could not be loaded, or not again; the version is empty for a whole model."""
    found: list[tuple[str, str]] = []
    for name in catalogue.names():
        entry = catalogue.entry(name)
        if entry.fault:
            found.append((name, ""))
        found += [(name, number) for number in entry.numbers() if _has_fault(entry.versions[number])]
    return tuple(found)


def _has_fault(version: Version) -> bool:
    return version.state in _FAULTY or (version.is_loaded and bool(version.reason))


def statistics(catalogue: Catalogue, name: str = "", version: str = "") -> list[ModelStatistics]:
    """Return the counts of one model version, or of all that fit; raise `NOT_FOUND`."""
    if not name:
        entries = [catalogue.entry(known) for known in catalogue.names()]
        return [each for entry in entries for each in entry.statistics(entry.served())]
    entry = catalogue.entry(name)
    served = entry.served()
    if (version and normal(version) not in served) or not served:
        _ = catalogue.find(name, version)  # which says what is the matter
    return entry.statistics((normal(version),) if version else served)
