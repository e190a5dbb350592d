"""Loads and unloads that bring the models of a server to the state on disk.

`Survey` looks at the disk, `Attempts` remembers what has been loaded, and `differences` compares the two.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol


class ModelsOnDisk(Protocol):
    """A folder of models, or a model alone. All of it may block."""

    def candidates(self) -> list[str]:
        """The names of what may be a model."""

    def digest(self, name: str) -> str:
        """The digest of a model's files; "" where there is nothing."""

    def holds_model(self, name: str) -> bool:
        """True if what lies there is a model."""


class Attempt(NamedTuple):
    """The last load of a model, whether it succeeded or not, or the last decision not to load it.

    `at` is the time at which the digest was begun, of `time.monotonic`.
    """

    digest: str
    at: float


class Attempts:
    """The last attempt at each model, by name. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._last: dict[str, Attempt] = {}

    def note(self, name: str, attempt: Attempt) -> None:
        """Remember an attempt, unless a later one is known."""
        known = self._last.get(name)
        if known is None or known.at <= attempt.at:
            self._last[name] = attempt

    def forget(self, name: str) -> None:
        """Forget a model that has gone, so that it is loaded when it comes back."""
        self._last.pop(name, None)

    def all(self) -> Mapping[str, Attempt]:
        """Return a copy of what is remembered."""
        return self._last.copy()


class Sight(NamedTuple):
    """A model as it was seen on disk. `digest` is None if there was none.

    `at` is the time at which the digest was begun, of `time.monotonic`. `is_settled`: the look before saw the same.
    """

    digest: str | None
    at: float
    is_settled: bool


class Differences(NamedTuple):
    """The models to load, or to load anew, and those to unload, each in the order of their names."""

    load: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()


def differences(disk: Mapping[str, Sight], attempts: Mapping[str, Attempt]) -> Differences:
    """Return the needed loads and unloads. Models that still change, or were loaded after they were seen, stay."""
    load, remove = [], []
    for name, sight in sorted(disk.items()):
        attempt = attempts.get(name)
        if not sight.is_settled or (attempt is not None and attempt.at >= sight.at):
            continue
        if sight.digest is None:
            if attempt is not None:
                remove.append(name)
        elif attempt is None or attempt.digest != sight.digest:
            load.append(name)
    return Differences(tuple(load), tuple(remove))


class Survey:
    """Looks at the models on disk, all of them or some. It blocks, and belongs to one thread."""

    def __init__(self, models: ModelsOnDisk, attempts: Attempts) -> None:
        self._models = models
        self._attempts = attempts
        self._seen: dict[str, Sight] = {}
        self._verdicts: dict[str, tuple[str, bool]] = {}  # by digest, because to find out means opening files

    def look(self, names: Iterable[str] | None = None) -> Mapping[str, Sight]:
        """Look at these models, at all there may be by default; return how each of all was last seen."""
        known = self._attempts.all()
        if names is None:
            names = {*self._models.candidates(), *self._seen, *known}
        for name in names:
            at = time.monotonic()
            digest, before = self._digest(name), self._seen.get(name)
            is_settled = before is not None and before.digest == digest
            if digest is None and is_settled and name not in known:
                del self._seen[name]  # it has never been one, or is dealt with
                continue
            self._seen[name] = Sight(digest, at, is_settled)
        return self._seen.copy()

    def unsettled(self) -> set[str]:
        """Return the models that were changing when they were last seen."""
        return {name for name, sight in self._seen.items() if not sight.is_settled}

    def _digest(self, name: str) -> str | None:
        """Return a model's digest; None if there is no model, or none that can be read."""
        try:
            digest = self._models.digest(name)
            verdict = self._verdicts.get(name)
            if verdict is None or verdict[0] != digest:
                verdict = self._verdicts[name] = (digest, bool(digest) and self._models.holds_model(name))
        except OSError:
            return None
        return digest if verdict[1] else None
