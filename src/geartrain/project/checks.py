"""Checks of a model on disk for geartrain doctor: its cog.yaml, its requirements, its code."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import re
import shlex
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion

from geartrain.project.config import CONFIG_NAME, faults, kind_of, parse, read_text
from geartrain.project.errors import ProjectError
from geartrain.project.settings import SETTINGS_KEYS, SETTINGS_NAME
from geartrain.project.source import ModelSource

Level = Literal["ok", "warning", "error"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was looked at. With an error the model cannot run as it is; `fix` says what to do."""

    level: Level
    text: str
    fix: str = ""


def ok(text: str) -> Finding:
    """All is well."""
    return Finding("ok", text)


def warning(text: str, fix: str = "") -> Finding:
    """It works, but perhaps not as intended."""
    return Finding("warning", text, fix)


def error(text: str, fix: str = "") -> Finding:
    """It cannot work."""
    return Finding("error", text, fix)


def closest(name: str, names: Iterable[str]) -> str | None:
    """Return the one of `names` that `name` may be a misspelling of."""
    return next(iter(difflib.get_close_matches(name, sorted(names), n=1)), None)


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


_USUAL: Final = "requirements.txt"
_PROVIDED: Final = frozenset({"cog", "geartrain"})  # the worker has its own
_COMMENT: Final = re.compile(r"(?:^|\s)#.*$")
_OPTION: Final = re.compile(r"\s--?[a-z].*$")  # such as --hash, after a requirement
_DEEPEST: Final = 8  # files that include each other

Found = tuple[str, Requirement]
"""Place of a requirement, and the requirement."""


def check_packages(root: Path) -> list[Finding]:
    """Compare `build.python_packages` and the requirements file of a model with what is installed."""
    build = build_section(root)
    findings: list[Finding] = []
    wanted = list(_wanted(root, build, findings))
    missing, other = [], []
    for _, requirement in wanted:
        version = _installed(requirement.name)
        if version is None:
            missing.append(_written(requirement))
        elif not _fits(requirement, version):
            other.append((f"{requirement.name} {version}, wanted {requirement.specifier}", _written(requirement)))
    if missing:
        findings.append(error(f"not installed here: {', '.join(missing)}", install(*missing)))
    if other:
        text = "; ".join(sentence for sentence, _ in other)
        findings.append(warning(f"installed in another version: {text}", install(*(name for _, name in other))))
    if wanted and not missing and not other:
        origin = " and ".join(dict.fromkeys(where.partition(":")[0] for where, _ in wanted))
        findings.append(ok(f"{origin}: {len(wanted)} package{'' if len(wanted) == 1 else 's'}, installed as wanted"))
    return findings


def check_python(root: Path) -> Finding:
    """Compare the running Python, which will run the model too, with `build.python_version`."""
    ours = ".".join(map(str, sys.version_info[:3]))
    wanted = build_section(root).get("python_version")
    if isinstance(wanted, str) and wanted.split(".") != ours.split(".")[: len(wanted.split("."))]:
        fix = f"make geartrain's environment with python{'.'.join(wanted.split('.')[:2])}"
        return warning(f"Python {ours}: cog.yaml has `build.python_version: {wanted}`", fix)
    return ok(f"Python {ours}")


def install(*requirements: str) -> str:
    """Return the command that installs packages where the worker finds them."""
    return shlex.join([sys.executable, "-m", "pip", "install", *requirements])


def _wanted(root: Path, build: Any, findings: list[Finding]) -> Iterator[Found]:
    packages = build.get("python_packages")
    for line in packages if isinstance(packages, list) else []:
        if isinstance(line, str):
            yield from _parsed("build.python_packages", line, findings)
    name = build.get("python_requirements")
    location = name if isinstance(name, str) else _USUAL
    yield from _of_file(root / location, location, findings)


def _of_file(path: Path, shown: str, findings: list[Finding], *, depth: int = 0) -> Iterator[Found]:
    """Read a requirements file and those that it includes; one that is not there asks for nothing."""
    try:
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    except (OSError, UnicodeDecodeError):
        return
    for number, line in enumerate(text.splitlines(), start=1):
        line = _COMMENT.sub("", line).strip()  # noqa: PLW2901 - what is left of it
        option, _, rest = line.partition(" ")
        if option in {"-r", "--requirement"} and depth < _DEEPEST:
            other = rest.strip()
            yield from _of_file(path.parent / other, other, findings, depth=depth + 1)
        elif line and not line.startswith(("-", ".", "/")) and "://" not in line.partition("@")[0]:
            yield from _parsed(f"{shown}:{number}", _OPTION.sub("", line), findings)


def _parsed(where: str, line: str, findings: list[Finding]) -> Iterator[Found]:
    try:
        requirement = Requirement(line)
    except InvalidRequirement as fault:
        fix = f"write {line.replace('=', '==')}" if re.fullmatch(r"[\w.-]+=[\w.]+", line) else ""
        findings.append(warning(f"{where}: {line!r} is no requirement: {str(fault).partition(chr(10))[0]}", fix))
        return
    if requirement.name.lower() not in _PROVIDED and (requirement.marker is None or requirement.marker.evaluate()):
        yield where, requirement


_PARTS: Final = {"mlflow": "mlflow-skinny"}
"""Packages that have all of another one that a model needs."""


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return _installed(_PARTS[name]) if name in _PARTS else None


def _fits(requirement: Requirement, version: str) -> bool:
    try:
        return requirement.specifier.contains(version, prereleases=True)
    except InvalidVersion:  # of a package older than the rules for versions: nothing can be said
        return True


def _written(requirement: Requirement) -> str:
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    source = f" @ {requirement.url}" if requirement.url else str(requirement.specifier)
    return f"{requirement.name}{extras}{source}"


_OLDER_NAMES: Final = {
    "BasePredictor": "BaseRunner",
    "CancellationException": "CancelationException",
    "emit_metric": "self.record_metric()",
}
_HOMES: Final = frozenset({"cog", "geartrain"})
_BASES: Final = frozenset({"BasePredictor", "BaseRunner"})


def check_code(source: ModelSource) -> list[Finding]:
    """Find outdated constructs in the file of a model; a file that cannot be parsed has none."""
    location, _, name = source.runner.partition(":")
    if not location.endswith(".py"):
        return []
    try:
        with warnings.catch_warnings():  # the worker's import shows them
            warnings.simplefilter("ignore")
            tree = ast.parse((source.root / location).read_bytes(), location)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = [*_older_imports(tree), *_older_methods(tree, name)]
    return [
        warning(f"{location}:{line}: {old} is the older name of {new}, and works as before", f"write {new}")
        for line, old, new in sorted(found)
    ]


def _older_imports(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] in _HOMES:
                for alias in names:
                    if alias.name in _OLDER_NAMES:
                        yield alias.lineno, alias.name, _OLDER_NAMES[alias.name]
            case ast.Attribute(value=ast.Name(id=home), attr=name) if home in _HOMES and name in _OLDER_NAMES:
                yield node.lineno, name, _OLDER_NAMES[name]


def _older_methods(tree: ast.Module, wanted: str) -> Iterator[tuple[int, str, str]]:
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or not (node.name == wanted or _bases(node) & _BASES):
            continue
        methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)}
        if "predict" in methods and "run" not in methods:  # both are an error, and the loader's to tell
            yield methods["predict"].lineno, "predict()", "run()"


def _bases(node: ast.ClassDef) -> set[str]:
    return {base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases}
