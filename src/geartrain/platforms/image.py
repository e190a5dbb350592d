"""An image of models: the folder that it is built of, and the program that builds it."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec

from geartrain.platforms.dockerfile import Recipe, write_dockerfile
from geartrain.platforms.pod import MODELS
from geartrain.platforms.wheel import write_wheel
from geartrain.project.build_settings import BuildSettings, read_build
from geartrain.project.digest import is_passed_over
from geartrain.project.errors import ProjectError
from geartrain.project.repository import Repository
from geartrain.project.source import ModelSource

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
            {each.backend.replace("_", "-") for each in sources if each.backend is not None}
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
        "nothing here builds images: install docker, podman or buildah (Debian: apt install buildah), "
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
