"""Images of containers: the Dockerfile, the folder that an image is built of, and the program that builds it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any, Final, Literal

import msgspec

from geartrain.platforms.pod import MODELS, USER
from geartrain.project.config import CONFIG_NAME, kind_of, parse, read_text
from geartrain.project.digest import is_passed_over
from geartrain.project.errors import ProjectError
from geartrain.project.formats import CODE
from geartrain.project.repository import Repository
from geartrain.project.source import ModelSource

_IMAGE_ENVIRONMENT: Final = "/opt/geartrain"  # the virtual environment in the image
_IMAGE_PYTHON: Final = f"{_IMAGE_ENVIRONMENT}/bin/python"
_PIP: Final = f"{_IMAGE_PYTHON} -m pip install --no-cache-dir --disable-pip-version-check"
_ASKS: Final = (
    "import os, urllib.request as r; "
    "r.urlopen('http://127.0.0.1:' + os.environ.get('PORT', '5000') + '/livez', timeout=4)"
)
_PIP_SECRET: Final = "--mount=type=secret,id=pip,target=/etc/pip.conf"  # noqa: S105 - an option, without a secret


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of an image. `copies` are pairs of paths, for the stage that installs and for the image itself.

    `python`: the version; `install`: the arguments of pip; `run`: commands for a shell, before the models are copied.
    `build_arguments` are those of the stage that installs, beside BUILD_PACKAGES.
    """

    python: str
    system_packages: Sequence[str] = ()
    build_arguments: Sequence[str] = ()
    build_copies: Sequence[tuple[str, str]] = ()
    install: Sequence[Sequence[str]] = ()
    run: Sequence[str] = ()
    copies: Sequence[tuple[str, str]] = ()
    gpu: bool = False
    arguments: Sequence[str] = (MODELS,)  # of `geartrain serve`
    comment: Sequence[str] = ()


def write_dockerfile(recipe: Recipe) -> str:
    """Return the text. It needs nothing of BuildKit but mounts of secrets, which buildah and podman have as well."""
    return "\n".join([*_comment(recipe.comment), *_system(recipe), *_build(recipe), *_image(recipe)]) + "\n"


def _comment(lines: Iterable[str]) -> list[str]:
    return [f"# {line}" for line in lines]


def _system(recipe: Recipe) -> list[str]:
    lines = [f"ARG BASE=docker.io/library/python:{recipe.python}-slim", "", "FROM ${BASE} AS system"]
    if recipe.system_packages:
        lines.append(f"RUN {_install_packages(shlex.join(recipe.system_packages))}")
    return lines


def _build(recipe: Recipe) -> list[str]:
    return [
        "",
        "FROM system AS build",
        "# Packages of Debian for packages without a wheel; empty for none.",
        "ARG BUILD_PACKAGES=build-essential",
        f'RUN if [ -n "$BUILD_PACKAGES" ]; then {_install_packages("$BUILD_PACKAGES")}; fi',
        f"RUN python3 -m venv {_IMAGE_ENVIRONMENT}",
        *(f"ARG {each}" for each in recipe.build_arguments),
        *_copies(recipe.build_copies),
        "WORKDIR /build",
        *(f"RUN {_PIP_SECRET} {_PIP} {' '.join(words)}" for words in recipe.install),
    ]


def _image(recipe: Recipe) -> list[str]:
    variables = {
        "PATH": f"{_IMAGE_ENVIRONMENT}/bin:$PATH",
        "HOST": "0.0.0.0",  # noqa: S104 - in a container
        "HOME": "/tmp",  # noqa: S108 - as above
        "XDG_CACHE_HOME": "/tmp/cache",  # noqa: S108 - as above
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if recipe.gpu:
        variables |= {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    written = [f'{name}="{value}"' for name, value in variables.items()]
    check = json.dumps([_IMAGE_PYTHON, "-c", _ASKS])
    return [
        "",
        "FROM system",
        f"COPY --from=build {_IMAGE_ENVIRONMENT} {_IMAGE_ENVIRONMENT}",
        "ENV " + " \\\n    ".join(written),
        *(f"RUN {command}" for command in recipe.run),
        _sagemaker(recipe.arguments),
        *_copies(recipe.copies),
        f"WORKDIR {MODELS}",
        f"USER {USER}:{USER}",
        "EXPOSE 5000",
        f"HEALTHCHECK --interval=30s --timeout=5s --start-period=10m --retries=3 CMD {check}",
        "STOPSIGNAL SIGTERM",
        f"CMD {json.dumps(['geartrain', 'serve', *recipe.arguments])}",
    ]


def _sagemaker(arguments: Iterable[str]) -> str:
    """Return the line that makes the program `serve`: SageMaker gives no other command."""
    script = f"#!/bin/sh\\nexec {_IMAGE_PYTHON} -m geartrain.cli.sagemaker {shlex.join(arguments)}\\n"
    path = f"{_IMAGE_ENVIRONMENT}/bin/serve"
    return f"RUN printf {shlex.quote(script.replace('%', '%%'))} >{path} && chmod 755 {path}"


def _copies(pairs: Iterable[tuple[str, str]]) -> list[str]:
    return [f"COPY {json.dumps([source, target])}" for source, target in pairs]


def _install_packages(names: str) -> str:
    return f"apt-get update && apt-get install -y --no-install-recommends {names} && rm -rf /var/lib/apt/lists/*"


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


_NAME: Final = "geartrain"
_TAG: Final = "py3-none-any"
_NOT_IN_WHEEL: Final = frozenset({".pyc", ".pyo"})
_DATE: Final = (2020, 1, 1, 0, 0, 0)  # of each file: the same package is the same wheel


def write_wheel(folder: pathlib.Path) -> pathlib.Path:
    """Write the wheel into a folder and return its path. Source: the binary distribution format of PyPA."""
    package = pathlib.Path(__file__).parents[1]
    installed = metadata.distribution(_NAME)
    info = f"{_NAME}-{installed.version}.dist-info"
    contents = {
        f"{_NAME}/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and path.suffix not in _NOT_IN_WHEEL
    }
    contents[f"{info}/METADATA"] = (installed.read_text("METADATA") or "").encode()
    contents[f"{info}/entry_points.txt"] = (installed.read_text("entry_points.txt") or "").encode()
    contents[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: {_NAME}\nRoot-Is-Purelib: true\nTag: {_TAG}\n".encode()
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in contents.items())
    contents[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    wheel = folder / f"{_NAME}-{installed.version}-{_TAG}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents.items():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return wheel


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


Builder = Literal["docker", "podman", "buildah"]

_BUILDERS: Final[Mapping[Builder, tuple[str, ...]]] = {
    "docker": ("docker", "build"),
    "podman": ("podman", "build", "--format", "docker"),  # that of OCI has no health check
    "buildah": ("buildah", "build", "--format", "docker"),
}
_ENVIRONMENT: Final = "pyvenv.cfg"
_IGNORE: Final = ".dockerignore"
_MODEL: Final = "model"  # in the context
_WHEELS: Final = "wheels"
_REQUIREMENTS: Final = "requirements"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """An image to build: the folder with the models, their requirements, and their options."""

    root: pathlib.Path
    builds: Sequence[tuple[pathlib.Path, BuildSettings]]
    extras: Sequence[str]
    arguments: Sequence[str]

    @property
    def passed_over(self) -> list[str]:
        """The keys of `cog.yaml` that have no effect."""
        return sorted({key for _, build in self.builds for key in build.passed_over})


def _extra_of(backend: str) -> str:
    """Return the extra of geartrain with the library of a backend."""
    return "triton" if backend in CODE else backend.replace("_", "-")


def plan(source: ModelSource | Repository, target: str) -> Plan:
    """Read what an image of these models needs; raises ProjectError."""
    if isinstance(source, Repository):
        found = [version for name in source.names() for version in source.read(name).versions.values()]
        for version in found:
            if isinstance(version, ProjectError):
                raise version
        sources = [version for version in found if isinstance(version, ModelSource)]
        root, arguments = source.root, [MODELS]
        names = source.names()
        if len(names) == 1:
            arguments.append(f"--model-name={names[0]}")
    else:
        sources, root = [source], source.root
        inside = "" if pathlib.Path(target).is_dir() else f"/{source.runner}"
        arguments = [f"{MODELS}{inside}", f"--model-name={source.name}"]
    _check_weights(sources)
    folders = dict.fromkeys(each.root for each in sources)
    return Plan(
        root=root,
        builds=[(folder, read_build(folder)) for folder in folders],
        extras=sorted(
            {_extra_of(each.backend) for each in sources if each.backend is not None}
            | {"remote" for each in sources if each.weights}
        ),
        arguments=arguments,
    )


def _check_weights(sources: Sequence[ModelSource]) -> None:
    """Raise ProjectError for weights that would have to be put into the folder of a model, which an image keeps."""
    for source in sources:
        for each in source.weights:
            if each.dest:
                raise ProjectError(
                    f"{source.root}: `weights` puts {each.dest} into the model's folder, which cannot be written in an "
                    "image; leave `dest` out, and take the path as `weights` of setup()"
                )


def write_context(wanted: Plan, folder: pathlib.Path) -> None:
    """Write the Dockerfile and what it copies into an empty folder; raises ProjectError where needs do not go together.

    Files of models are linked where that can be, not copied.
    """
    if folder.resolve().is_relative_to(wanted.root.resolve()):
        raise ProjectError(f"--context: {folder} lies in the folder of the models; name one elsewhere")
    (folder / _WHEELS).mkdir(parents=True)
    wheel = write_wheel(folder / _WHEELS)
    (folder / _REQUIREMENTS).mkdir()
    installs = [_installs(wheel.name, wanted.extras)]
    for number, (root, build) in enumerate(wanted.builds):
        place = f"{_REQUIREMENTS}/{number}"
        words = list(build.python_packages)
        if build.requirements:
            _copy_requirements(root, folder / place)
            words += ["-r", f"/build/{place}/{build.requirements}"]
        if words:
            installs.append([_quoted(word) for word in words])
    link_tree(wanted.root, folder / _MODEL)
    _write_ignore(wanted.root, folder)
    builds = [build for _, build in wanted.builds]
    recipe = Recipe(
        python=_one_python(builds),
        system_packages=sorted({name for build in builds for name in build.system_packages}),
        build_copies=[(f"{_WHEELS}/", f"/build/{_WHEELS}/"), (f"{_REQUIREMENTS}/", f"/build/{_REQUIREMENTS}/")],
        install=installs,
        run=[command.replace("\n", "; ") for build in builds for command in build.run],
        copies=[(f"{_MODEL}/", f"{MODELS}/")],
        gpu=any(build.gpu for build in builds),
        arguments=wanted.arguments,
    )
    (folder / "Dockerfile").write_text(write_dockerfile(recipe))


def _installs(wheel: str, extras: Sequence[str]) -> list[str]:
    wanted = f"[{','.join(extras)}]" if extras else ""
    return [f"'/build/{_WHEELS}/{wheel}{wanted}'"]


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def _one_python(builds: Sequence[BuildSettings]) -> str:
    versions = sorted({build.python for build in builds if build.python})
    if len(versions) > 1:
        raise ProjectError(
            f"the models want Python {' and '.join(versions)}, and an image has one; "
            "write the same `build.python_version` into their cog.yaml, or build an image of each"
        )
    return versions[0] if versions else f"{sys.version_info.major}.{sys.version_info.minor}"


def _copy_requirements(root: pathlib.Path, place: pathlib.Path) -> None:
    """Copy the texts of a folder, which may include each other."""
    for path in sorted(root.rglob("*.txt")):
        inner = path.relative_to(root)
        if path.is_file() and not any(map(is_passed_over, inner.parts)):
            (place / inner).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place / inner)


def link_tree(source: pathlib.Path, target: pathlib.Path, above: frozenset[pathlib.Path] = frozenset()) -> None:
    """Have the files of a folder in another one as well, but for what is hidden, caches and virtual environments.

    Links are followed, but not into a folder that they lie in: `above` are those, without links.
    """
    above |= {source.resolve()}
    target.mkdir()
    for entry in sorted(os.scandir(source), key=lambda each: each.name):
        if is_passed_over(entry.name) and entry.name != _IGNORE:
            continue
        path = pathlib.Path(entry.path)
        if entry.is_dir():
            if not (path / _ENVIRONMENT).exists() and path.resolve() not in above:
                link_tree(path, target / entry.name, above)
        elif entry.is_file() and entry.name != _IGNORE:
            _link(path, target / entry.name)


def _link(path: pathlib.Path, target: pathlib.Path) -> None:
    real = path.resolve()
    try:
        target.hardlink_to(real)
    except OSError:  # on another file system, or not allowed
        shutil.copy2(real, target)
    mode = real.stat().st_mode
    if not mode & 0o004:
        target.unlink()
        shutil.copy2(real, target)
        target.chmod(mode | 0o044)  # the user of the image is another one


def _write_ignore(root: pathlib.Path, folder: pathlib.Path) -> None:
    """Have what the folder of the models leaves out left out here, where it lies one folder deeper."""
    try:
        lines = (root / _IGNORE).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    (folder / _IGNORE).write_text("".join(f"{line}\n" for line in _deeper(lines)))


def _deeper(lines: Sequence[str]) -> Iterator[str]:
    for line in map(str.strip, lines):
        if line and not line.startswith("#"):
            mark = "!" if line.startswith("!") else ""
            yield f"{mark}{_MODEL}/{line.removeprefix('!').removeprefix('/')}"


def find_builder(wanted: Builder | None = None) -> Builder:
    """Return the image builder of this machine; raise ProjectError without one."""
    if wanted is not None:
        if shutil.which(wanted) is None:
            raise ProjectError(f"--builder: there is no program {wanted} here")
        return wanted
    for name in _BUILDERS:
        if shutil.which(name) is not None and (name != "docker" or _answers("docker")):
            return name
    raise ProjectError(
        "no running docker, no podman and no buildah on this machine: install one (Debian: apt install buildah), "
        "or write what an image is built of with --context FOLDER"
    )


def _answers(program: str) -> bool:
    """True if the daemon behind docker can be had."""
    try:
        return subprocess.run([program, "version"], check=False, capture_output=True, timeout=20).returncode == 0  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return False


def build_command(
    builder: Builder, context: pathlib.Path, tag: str, *, build_args: Sequence[str], pip_config: pathlib.Path | None
) -> list[str]:
    """Return the command that builds an image."""
    secret = [] if pip_config is None else ["--secret", f"id=pip,src={pip_config.absolute()}"]
    arguments = [word for each in build_args for word in ("--build-arg", each)]
    return [*_BUILDERS[builder], "--tag", tag, *arguments, *secret, str(context)]
