"""The text of a Dockerfile: of the server alone, and of a server with models."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from geartrain.platforms.pod import MODELS, USER

_ENVIRONMENT: Final = "/opt/geartrain"  # the virtual environment in the image
_PYTHON: Final = f"{_ENVIRONMENT}/bin/python"
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
        "# What packages without a wheel need; empty for none.",
        "ARG BUILD_PACKAGES=build-essential",
        f'RUN if [ -n "$BUILD_PACKAGES" ]; then {_install_packages("$BUILD_PACKAGES")}; fi',
        f"RUN python3 -m venv {_ENVIRONMENT}",
        *(f"ARG {each}" for each in recipe.build_arguments),
        *_copies(recipe.build_copies),
        "WORKDIR /build",
        *(
            f"RUN {_PIP_SECRET} {_PYTHON} -m pip install --no-cache-dir --disable-pip-version-check {' '.join(words)}"
            for words in recipe.install
        ),
    ]


def _image(recipe: Recipe) -> list[str]:
    variables = {
        "PATH": f"{_ENVIRONMENT}/bin:$PATH",
        "HOST": "0.0.0.0",  # noqa: S104 - in a container
        "HOME": "/tmp",  # noqa: S108 - as above
        "XDG_CACHE_HOME": "/tmp/cache",  # noqa: S108 - as above
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if recipe.gpu:
        variables |= {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    written = [f'{name}="{value}"' for name, value in variables.items()]
    check = json.dumps([_PYTHON, "-c", _ASKS])
    return [
        "",
        "FROM system",
        f"COPY --from=build {_ENVIRONMENT} {_ENVIRONMENT}",
        "ENV " + " \\\n    ".join(written),
        *(f"RUN {command}" for command in recipe.run),
        *_copies(recipe.copies),
        f"WORKDIR {MODELS}",
        f"USER {USER}:{USER}",
        "EXPOSE 5000",
        f"HEALTHCHECK --interval=30s --timeout=5s --start-period=10m --retries=3 CMD {check}",
        "STOPSIGNAL SIGTERM",
        f"CMD {json.dumps(['geartrain', 'serve', *recipe.arguments])}",
    ]


def _copies(pairs: Iterable[tuple[str, str]]) -> list[str]:
    return [f"COPY {json.dumps([source, target])}" for source, target in pairs]


def _install_packages(names: str) -> str:
    return f"apt-get update && apt-get install -y --no-install-recommends {names} && rm -rf /var/lib/apt/lists/*"
