"""The section `build` of `cog.yaml`: what has to be in an image beside the model."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from geartrain.project.config import CONFIG_NAME, kind_of, parse, read_text
from geartrain.project.errors import ProjectError

_PASSED_OVER: Final = frozenset({"cuda", "cudnn", "environment", "pre_install", "python_overrides"})
_PYTHON: Final = re.compile(r"3\.\d{1,2}(\.\d{1,2})?")
_PACKAGE: Final = re.compile(r"[a-z0-9][a-z0-9+.:~=-]*")  # of Debian, perhaps with a version
_USUAL_REQUIREMENTS: Final = "requirements.txt"


class BuildSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Build settings of a model. `python` is a version such as 3.12, "" if unset.

    `requirements` is a file in the model's folder, "" for none; `run` are commands for a shell. `passed_over` are keys
    that have no effect on an image of ours.
    """

    python: str = ""
    system_packages: tuple[str, ...] = ()
    python_packages: tuple[str, ...] = ()
    requirements: str = ""
    run: tuple[str, ...] = ()
    gpu: bool = False
    passed_over: tuple[str, ...] = ()


def read_build(folder: pathlib.Path) -> BuildSettings:
    """Read what `folder/cog.yaml` says below `build`; raises ProjectError with the key and the fix."""
    path = folder / CONFIG_NAME
    section = parse(path, read_text(path) or "{}").get("build") or {}
    if not isinstance(section, Mapping):
        raise ProjectError(f"{path}: `build` is {kind_of(section)}; write its keys indented below it")
    reader = _Section(path, section)
    requirements = reader.text("python_requirements", "write the name of a file, such as requirements.txt")
    if requirements:
        inside = (folder / requirements).resolve().is_relative_to(folder.resolve())
        if not inside or not (folder / requirements).is_file():
            raise ProjectError(f"{path}: `build.python_requirements` names {requirements}, which is not in {folder}")
    elif (folder / _USUAL_REQUIREMENTS).is_file():
        requirements = _USUAL_REQUIREMENTS
    python = reader.text("python_version", 'write it in quotes, such as "3.12"')
    if python and not _PYTHON.fullmatch(python):
        raise ProjectError(f'{path}: `build.python_version` is {python!r}; write a version such as "3.12"')
    return BuildSettings(
        python=python,
        system_packages=reader.packages(),
        python_packages=reader.texts("python_packages", "write a list of lines such as `- numpy==2.1.0`"),
        requirements=requirements,
        run=reader.texts("run", "write a list of commands, such as `- echo hello`"),
        gpu=section.get("gpu") is True,
        passed_over=tuple(f"build.{key}" for key in section if key in _PASSED_OVER),
    )


class _Section:
    """The keys below `build`."""

    def __init__(self, path: pathlib.Path, section: Mapping[Any, Any]) -> None:
        self._path = path
        self._section = section

    def text(self, key: str, fix: str) -> str:
        value = self._section.get(key)
        if value is None:
            return ""
        if not isinstance(value, str) or not value.isprintable():
            raise self._wrong(key, value, fix)
        return value.strip()

    def texts(self, key: str, fix: str) -> tuple[str, ...]:
        """Return a list of lines; one of `run` may be a group with a `command`."""
        value = self._section.get(key) or []
        if not isinstance(value, list):
            raise self._wrong(key, value, fix)
        found = []
        for each in value:
            line = each.get("command") if isinstance(each, Mapping) and key == "run" else each
            if not isinstance(line, str) or not line.strip() or (key != "run" and not line.isprintable()):
                raise self._wrong(key, line, fix)
            found.append(line.strip())
        return tuple(found)

    def packages(self) -> tuple[str, ...]:
        fix = "write a list of packages of Debian, such as `- ffmpeg`"
        found = self.texts("system_packages", fix)
        for name in found:
            if not _PACKAGE.fullmatch(name):
                raise self._wrong("system_packages", name, fix)
        return found

    def _wrong(self, key: str, found: object, fix: str) -> ProjectError:
        return ProjectError(f"{self._path}: `build.{key}` is {kind_of(found)}; {fix}")
