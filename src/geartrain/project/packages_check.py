"""Requirements of a model, compared with the environment of its worker: that of the server."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion

from geartrain.project.config_check import build_section
from geartrain.project.findings import Finding, error, ok, warning

_USUAL: Final = "requirements.txt"
_PROVIDED: Final = frozenset({"cog", "geartrain"})  # the worker has its own
_COMMENT: Final = re.compile(r"(?:^|\s)#.*$")
_OPTION: Final = re.compile(r"\s--?[a-z].*$")  # such as --hash, after a requirement
_DEEPEST: Final = 8  # files that include each other

Found = tuple[str, Requirement]
"""Where it stands, and what it asks for."""


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


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _fits(requirement: Requirement, version: str) -> bool:
    try:
        return requirement.specifier.contains(version, prereleases=True)
    except InvalidVersion:  # of a package older than the rules for versions: nothing can be said
        return True


def _written(requirement: Requirement) -> str:
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    source = f" @ {requirement.url}" if requirement.url else str(requirement.specifier)
    return f"{requirement.name}{extras}{source}"
