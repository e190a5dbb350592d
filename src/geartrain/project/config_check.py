"""A look at every key of a `cog.yaml`: what a server passes over, what it would refuse, and what was mistyped."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from geartrain.project.config import CONFIG_NAME, faults, kind_of, parse, read_text
from geartrain.project.errors import ProjectError
from geartrain.project.findings import Finding, closest, error, ok, warning
from geartrain.project.settings import SETTINGS_KEYS, SETTINGS_NAME

RUNTIME_KEYS: Final = frozenset({"concurrency", "environment", "predict", "run", "train"})
BUILD_KEYS: Final = frozenset({"build", "image", "tests", "weights"})
SECTIONS: Final = {
    "build": frozenset(
        {
            "cog_runtime",
            "cuda",
            "cudnn",
            "environment",
            "fast",
            "gpu",
            "pre_install",
            "python_overrides",
            "python_packages",
            "python_requirements",
            "python_version",
            "run",
            "sdk_version",
            "system_packages",
        }
    ),
    "concurrency": frozenset({"default_target", "max"}),
}
_HEEDED: Final = frozenset({"python_packages", "python_requirements", "python_version"})  # by this command
_HARMLESS: Final = frozenset({"build.cog_runtime", "build.fast", "build.sdk_version", "image", "tests"})
_KEY: Final = re.compile(r"`(\w+)[^`]*`")

Place = tuple[str, ...]


def check_config(root: Path) -> list[Finding]:
    """Check the `cog.yaml` in a folder; a single good finding if it has no faults."""
    path = root / CONFIG_NAME
    try:
        text = read_text(path)
        if text is None:
            return [ok(f"{CONFIG_NAME}: there is none, and none is needed")]
        document = parse(path, text)
    except ProjectError as fault:
        where, _, sentence = fault.message.removeprefix(str(path)).partition(": ")
        return [error(f"{CONFIG_NAME}{where}: {sentence}")]
    found = list(_Check(path, text, document).findings())
    return found or [ok(CONFIG_NAME)]


def build_section(root: Path) -> Mapping[Any, Any]:
    """Return the section `build`, empty if it cannot be read."""
    path = root / CONFIG_NAME
    try:
        section = parse(path, read_text(path) or "").get("build")
    except ProjectError:
        return {}
    return section if isinstance(section, dict) else {}


class _Check:
    """One `cog.yaml`."""

    def __init__(self, path: Path, text: str, document: Mapping[object, object]) -> None:
        self._path = path
        self._root = path.parent
        self._document = document
        self._lines: dict[Place, int] = {}
        self._repeated: list[tuple[Place, int]] = []
        _note_lines(text, self._lines, self._repeated)

    def findings(self) -> Iterator[Finding]:
        """Give all there is to say, in the order of what matters."""
        for place, line in self._repeated:
            yield error(
                f"{CONFIG_NAME}:{line}: {_key(place)} is there twice, and the last one wins", "keep one of them"
            )
        yield from self._unknown()
        yield from self._wrong()
        yield from self._missing_files()
        yield from self._build()
        yield from self._older()
        yield from self._passed_over()

    def _at(self, *place: str) -> str:
        line = self._lines.get(place) or self._lines.get(place[:1])
        return CONFIG_NAME if line is None else f"{CONFIG_NAME}:{line}"

    def _unknown(self) -> Iterator[Finding]:
        yield from self._unknown_in((), self._document, RUNTIME_KEYS | BUILD_KEYS)
        for name, keys in SECTIONS.items():
            section = self._document.get(name)
            if isinstance(section, dict):
                yield from self._unknown_in((name,), section, keys)

    def _unknown_in(self, above: Place, section: Mapping[Any, Any], known: frozenset[str]) -> Iterator[Finding]:
        for key in section:
            name = str(key)
            if name in known:
                continue
            text = f"{self._at(*above, name)}: there is no key {_key((*above, name))}"
            home = next((other for other, keys in SECTIONS.items() if name in keys), None)
            meant = closest(name, known)
            if not above and home is not None:
                yield error(text, f"it belongs below `{home}:`")
            elif not above and name in SETTINGS_KEYS:
                yield error(text, f"it belongs into {SETTINGS_NAME}")
            elif above and name in RUNTIME_KEYS | BUILD_KEYS:
                yield error(text, "it belongs at the left edge")
            elif meant is not None:
                yield error(text, f"write `{meant}`")
            else:
                yield warning(f"{text}; it is passed over", "remove it, or make it a comment")

    def _wrong(self) -> Iterator[Finding]:
        for fault in faults(self._path, self._document):
            sentence = fault.message.removeprefix(f"{self._path}: ")
            key = _KEY.search(sentence)
            text, _, fix = sentence.rpartition("; ")
            where = self._at(key[1]) if key else CONFIG_NAME
            yield error(f"{where}: {text or fix}", fix if text else "")

    def _missing_files(self) -> Iterator[Finding]:
        for key in ("run", "predict", "train"):
            value = self._document.get(key)
            if not isinstance(value, str):
                continue
            location = value.strip().partition(":")[0]
            if location.endswith(".py") and not (self._root / location).is_file():
                yield self._no_file(location, key)

    def _no_file(self, location: str, *place: str) -> Finding:
        path = Path(location)
        there = {entry.stem: entry for entry in (self._root / path).parent.glob(f"*{path.suffix}")}
        meant = closest(path.stem, there)
        fix = "" if meant is None else f"write {path.with_name(there[meant].name)}"
        return error(f"{self._at(*place)}: {_key(place)} names {location}, and there is no such file", fix)

    def _build(self) -> Iterator[Finding]:
        section = self._document.get("build")
        if section is None:
            return
        if not isinstance(section, dict):
            yield error(f"{self._at('build')}: `build` is {kind_of(section)}", "write its keys indented below it")
            return
        version = section.get("python_version")
        if version is not None and not isinstance(version, str):
            text = f"{self._at('build', 'python_version')}: `build.python_version` is {kind_of(version)}"
            yield error(f"{text}, and YAML takes 3.10 for 3.1", "put it in quotes")
        packages = section.get("python_packages")
        if packages is not None and not _is_texts(packages):
            text = f"{self._at('build', 'python_packages')}: `build.python_packages` is {kind_of(packages)}"
            yield error(text, "write a list of lines such as `- numpy==2.1.0`")
        requirements = section.get("python_requirements")
        if requirements is not None and not isinstance(requirements, str):
            text = f"{self._at('build', 'python_requirements')}: `build.python_requirements` is {kind_of(requirements)}"
            yield error(text, "write the name of a file, such as requirements.txt")
        elif requirements is not None and not (self._root / requirements).is_file():
            yield self._no_file(requirements, "build", "python_requirements")

    def _older(self) -> Iterator[Finding]:
        if "predict" in self._document:
            yield warning(f"{self._at('predict')}: `predict` is the older name of `run`", "write `run`")

    def _passed_over(self) -> Iterator[Finding]:
        """Tell of keys that only concern a build: their author may expect them to have an effect."""
        build = self._document.get("build")
        below = [f"build.{key}" for key in build if key in SECTIONS["build"]] if isinstance(build, dict) else []
        names = [*below, *(str(key) for key in self._document if key in BUILD_KEYS and key != "build")]
        names = [name for name in names if name.partition(".")[2] not in _HEEDED]
        if names:
            keys = ", ".join(f"`{name}`" for name in names)
            fix = "" if set(names) <= _HARMLESS else "install what the model needs of it on this machine"
            yield warning(f"{CONFIG_NAME}: {keys}: only for building an image, and passed over here", fix)


def _key(place: Place) -> str:
    return f"`{'.'.join(place)}`"


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _note_lines(text: str, lines: dict[Place, int], repeated: list[tuple[Place, int]]) -> None:
    """Note the line of each key, and of those below it, and which of them were there before."""
    import yaml

    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        return
    for key, value in root.value:
        place = (str(key.value),)
        _note(place, key.start_mark.line + 1, lines, repeated=repeated)
        if isinstance(value, yaml.MappingNode):
            for inner, _ in value.value:
                _note((*place, str(inner.value)), inner.start_mark.line + 1, lines, repeated=repeated)


def _note(place: Place, line: int, lines: dict[Place, int], *, repeated: list[tuple[Place, int]]) -> None:
    if place in lines:
        repeated.append((place, line))
    lines[place] = line
