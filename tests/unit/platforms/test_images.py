"""The Dockerfiles, and what images are built of. `tools/try_image.sh` builds and runs one."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import re
import stat
import zipfile
from pathlib import Path
from typing import Any, Final

import dockerfile
import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from geartrain.cli import serve
from geartrain.cli.commands import app
from geartrain.platforms.image import BuildSettings, find_builder, plan, read_build, write_context, write_wheel
from geartrain.project.errors import ProjectError
from geartrain.project.served import find_served
from tools.make_deploy import ROOT
from tools.make_deploy import dockerfile as server_dockerfile

RUNNER: Final = "def run(text: str = '') -> str:\n    return text\n"
KNOWN: Final = {"ARG", "FROM", "RUN", "COPY", "WORKDIR", "ENV", "USER", "EXPOSE", "HEALTHCHECK", "STOPSIGNAL", "CMD"}
BUILDER: Final = (
    '#!/bin/sh\nprintf "%s\\n" "$@" > "$RECORD"\nfor last; do :; done\nls "$last" >> "$RECORD"\nexit {code}\n'
)


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def serve_options(words: list[str]) -> dict[str, Any]:
    assert words[:2] == ["geartrain", "serve"]
    return typer.main.get_command(serve.app).make_context("serve", words[2:]).params


def faults(text: str, context: Path) -> list[str]:
    """What is wrong with a Dockerfile, which the parser of BuildKit reads."""
    try:
        commands = dockerfile.parse_string(text)
    except (dockerfile.GoParseError, ValueError) as error:
        return [str(error)]
    found = [f"there is no {each.cmd}" for each in commands if each.cmd.upper() not in KNOWN]
    stages = [number for number, each in enumerate(commands) if each.cmd.upper() == "FROM"]
    if len(stages) < 3:
        found.append("it is not built in stages")
    last = commands[stages[-1] :] if stages else commands
    by_name = {each.cmd.upper(): each for each in last}
    user = by_name["USER"].value[0] if "USER" in by_name else "root"
    if not re.fullmatch(r"[1-9]\d*:[1-9]\d*", user):
        found.append(f"it runs as {user}")
    for name in ("HEALTHCHECK", "CMD"):
        if name not in by_name or '["' not in by_name[name].original:
            found += [f"{name} is no list of words"]
    for each in commands:
        found += instruction_faults(each, context)
    return found


def instruction_faults(each: Any, context: Path) -> list[str]:
    found = []
    line = " ".join(each.value)
    if each.cmd.upper() == "COPY" and not any(flag.startswith("--from=") for flag in each.flags):
        found += [f"{name} is not there to be copied" for name in each.value[:-1] if not (context / name).exists()]
    if "apt-get install" in line and not ("--no-install-recommends" in line and "rm -rf /var/lib/apt/lists" in line):
        found.append("lists or recommended packages of Debian stay in the image")
    if "pip install" in line and "--no-cache-dir" not in line:
        found.append("the cache of pip stays in the image")
    if each.cmd.upper() == "ARG" and line.startswith("BASE=") and not re.search(r":3\.\d+(\.\d+)?-slim$", line):
        found.append("the base has no version, or is not slim")
    return found


def context_of(target: Path, folder: Path) -> str:
    write_context(plan(find_served(str(target)), str(target)), folder)
    text = (folder / "Dockerfile").read_text()
    assert faults(text, folder) == []
    return text


def test_weights_are_fetched_where_the_image_runs(tmp_path: Path) -> None:
    model = tmp_path / "cats"
    model.mkdir()
    (model / "run.py").write_text("def run() -> str: ...\n")
    (model / "geartrain.yaml").write_text("weights: [s3://bucket/cats.bin]\n")
    assert "[remote]" in context_of(model, tmp_path / "context")
    (model / "geartrain.yaml").write_text("weights: {w/cats.bin: s3://bucket/cats.bin}\n")
    with pytest.raises(ProjectError, match=r"cats: `weights` puts w/cats\.bin into the model's folder, .*leave `dest`"):
        plan(find_served(str(model)), str(model))


def command_of(text: str) -> dict[str, Any]:
    [command] = [each for each in dockerfile.parse_string(text) if each.cmd.upper() == "CMD"]
    return serve_options(list(command.value))


def test_the_servers_own() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert text == server_dockerfile()
    assert faults(text, ROOT) == []
    assert command_of(text)["model"] == "/models"


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("USER 10001:10001", "", "it runs as root"),
        ("USER 10001:10001", "USER geartrain", "it runs as geartrain"),
        ("HEALTHCHECK", "HEALTHCHEC", "there is no HEALTHCHEC"),
        ('CMD ["geartrain", "serve", "/models"]', "CMD geartrain serve /models", "CMD is no list of words"),
        ("--no-cache-dir ", "", "the cache of pip stays in the image"),
        ("--no-install-recommends ", "", "lists or recommended packages"),
        ("-slim", "", "the base has no version, or is not slim"),
        ('"src/"', '"sources/"', "sources/ is not there to be copied"),
        ("FROM system AS build\n", "", "it is not built in stages"),
    ],
)
def test_mutants_are_refused(old: str, new: str, fault: str) -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert old in text
    assert fault in " ".join(faults(text.replace(old, new), ROOT))


def test_compose_fits_the_server() -> None:
    [service] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"].values()
    options = serve_options(service["command"])
    assert service["ports"] == [f"127.0.0.1:{options['port']}:{options['port']}"]
    assert (service["read_only"], service["cap_drop"], service["tmpfs"]) == (True, ["ALL"], ["/tmp"])  # noqa: S108
    assert f"USER {service['user']}\n" in (ROOT / "Dockerfile").read_text()
    assert int(service["stop_grace_period"].removesuffix("s")) > options["shutdown_grace"] + 10
    assert (ROOT / "deploy" / service["build"]["context"] / "Dockerfile").is_file()
    assert service["volumes"][0].endswith(f":{options['model']}:ro")


def test_a_model_with_all_that_cog_yaml_says(tmp_path: Path) -> None:
    config = """
        run: run.py:run
        build:
          python_version: "3.12"
          gpu: true
          system_packages: [ffmpeg, libgl1]
          python_requirements: needs/all.txt
          python_packages: ["tqdm>=4; python_version<'4'"]
          run: [echo one, {command: "echo two\\necho three"}]
          cuda: "12.4"
    """
    files = {"cog.yaml": config, "run.py": RUNNER, "needs/all.txt": "-r more.txt\n", "needs/more.txt": "six\n"}
    root = write(
        tmp_path / "cats", **files, **{".env": "SECRET=1", ".git/HEAD": "x", "venv/pyvenv.cfg": "", "big.bin": "w"}
    )
    write(root, **{".dockerignore": "# no\n*.mp4\n/data\n!data/kept\n", "__pycache__/x.pyc": ""})
    (root / "self").symlink_to(root)
    folder = tmp_path / "context"
    text = context_of(root, folder)
    assert "ARG BASE=docker.io/library/python:3.12-slim" in text
    assert "install -y --no-install-recommends ffmpeg libgl1 &&" in text
    assert "NVIDIA_VISIBLE_DEVICES" in text
    assert "RUN echo one\nRUN echo two; echo three\n" in text
    assert "'-r' '/build/requirements/0/needs/all.txt'" in text
    assert "'tqdm>=4; python_version<'\\''4'\\'''" in text
    assert command_of(text)["model_name"] == "cats"
    copied = {str(path.relative_to(folder / "model")) for path in (folder / "model").rglob("*") if path.is_file()}
    assert copied == {"cog.yaml", "run.py", "needs/all.txt", "needs/more.txt", "big.bin"}
    assert (folder / "model" / "big.bin").samefile(root / "big.bin"), "weights are copied"
    assert (folder / ".dockerignore").read_text() == "model/*.mp4\nmodel/data\n!model/data/kept\n"
    assert plan(find_served(str(root)), str(root)).passed_over == ["build.cuda"]


def test_a_folder_of_models_and_a_file(tmp_path: Path) -> None:
    models = write(
        tmp_path / "models", **{"cats/run.py": RUNNER, "dogs/1/run.py": RUNNER, "cats/requirements.txt": "six"}
    )
    text = context_of(models, tmp_path / "first")
    assert (command_of(text)["model"], command_of(text)["model_name"]) == ("/models", "")
    assert "'-r' '/build/requirements/0/requirements.txt'" in text
    text = context_of(models / "cats" / "run.py", tmp_path / "second")
    assert (command_of(text)["model"], command_of(text)["model_name"]) == ("/models/run.py", "cats")
    file = write(tmp_path / "onnx", **{"tree.cbm": "CBM1"}) / "tree.cbm"
    text = context_of(file, tmp_path / "third")
    assert re.search(r"geartrain-[\w.]+-py3-none-any\.whl\[catboost\]'", text)
    assert command_of(text)["model"] == "/models/tree.cbm"
    for name, python in (("cats", "3.11"), ("dogs", "3.12")):
        write(models / name, **{"cog.yaml": f"run: run.py:run\nbuild: {{python_version: '{python}'}}\n"})
    write(models / "dogs", **{"run.py": RUNNER})
    (models / "dogs" / "1" / "run.py").unlink()
    with pytest.raises(ProjectError, match=r"the models want Python 3\.11 and 3\.12, and an image has one"):
        write_context(plan(find_served(str(models)), str(models)), tmp_path / "fourth")
    with pytest.raises(ProjectError, match="lies in the folder of the models"):
        write_context(plan(find_served(str(file)), str(file)), file.parent / "context")


def test_files_that_only_their_owner_may_read_can_be_read_in_the_image(tmp_path: Path) -> None:
    root = write(tmp_path / "cats", **{"run.py": RUNNER})
    (root / "run.py").chmod(0o600)
    context_of(root, tmp_path / "context")
    assert stat.S_IMODE((tmp_path / "context" / "model" / "run.py").stat().st_mode) == 0o644
    assert stat.S_IMODE((root / "run.py").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("build", "message"),
    [
        ("[a]", "`build` is a list; write its keys indented"),
        ("{python_version: 3.1}", "`build.python_version` is the number 3.1; write it in quotes"),
        ("{python_version: '2.7'}", "`build.python_version` is '2.7'; write a version"),
        ("{python_requirements: none.txt}", "names none.txt, which is not in"),
        ("{python_requirements: ../secret.txt}", r"names ../secret.txt, which is not in"),
        ("{python_packages: six}", "`build.python_packages` is the text 'six'; write a list"),
        ("{system_packages: ['x; rm -rf /']}", "`build.system_packages` is the text"),
        ("{run: [3]}", "`build.run` is the number 3; write a list of commands"),
    ],
)
def test_what_is_wrong_below_build_is_named(tmp_path: Path, build: str, message: str) -> None:
    write(
        tmp_path,
        **{"secret.txt": "six", "model/run.py": RUNNER, "model/cog.yaml": f"run: run.py:run\nbuild: {build}\n"},
    )
    with pytest.raises(ProjectError, match=message):
        read_build(tmp_path / "model")


def test_nothing_is_needed(tmp_path: Path) -> None:
    assert read_build(tmp_path) == BuildSettings()


def test_the_wheel_is_the_running_package(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path)
    first = wheel.read_bytes()
    assert write_wheel(tmp_path).read_bytes() == first
    with zipfile.ZipFile(wheel) as archive:
        [info] = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        for name, digest, size in csv.reader(archive.read(f"{info}/RECORD").decode().splitlines()):
            if digest:
                data = archive.read(name)
                found = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                assert (digest, int(size)) == (f"sha256={found}", len(data)), name
        assert b"\nRequires-Dist: msgspec" in archive.read(f"{info}/METADATA")
        assert b"geartrain = geartrain.cli.main:main" in archive.read(f"{info}/entry_points.txt")
        assert archive.read("geartrain/platforms/image.py") == Path(write_wheel.__code__.co_filename).read_bytes()
        assert not [name for name in archive.namelist() if name.endswith(".pyc")]


# the command


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, and a folder that alone is searched for programs that build."""
    (tmp_path / "bin").mkdir()
    for name in ("ls", "sh"):
        (tmp_path / "bin" / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("RECORD", str(tmp_path / "record"))
    return write(tmp_path / "cats", **{"run.py": RUNNER})


def builder(model: Path, name: str, code: int = 0) -> None:
    path = model.parent / "bin" / name
    path.write_text(BUILDER.format(code=code))
    path.chmod(0o755)


def build(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["build", *(str(word) for word in words)], prog_name="geartrain", terminal_width=200)


def recorded(model: Path) -> list[str]:
    return (model.parent / "record").read_text().splitlines()


@pytest.mark.parametrize("name", ["docker", "podman", "buildah"])
def test_whatever_is_there_builds(model: Path, name: str) -> None:
    builder(model, name)
    config = model / "pip.conf"
    config.touch()
    words = ["--build-arg", "BASE=base:1", "--build-arg", "BUILD_PACKAGES=", "--pip-config", str(config)]
    result = build(model, "-t", "registry.example.com/cats:1", *words)
    assert result.exit_code == 0, result.output
    seen = recorded(model)
    oci = [] if name == "docker" else ["--format", "docker"]
    secret = ["--secret", f"id=pip,src={config}"]
    assert seen[: len(oci) + 9] == ["build", *oci, "--tag", "registry.example.com/cats:1", *words[:4], *secret]
    assert {"Dockerfile", "model", "requirements", "wheels"} <= set(seen)
    assert not Path(seen[len(oci) + 9]).exists(), "what it was built of stays behind"


def test_what_a_builder_answers_is_the_exit_code(model: Path) -> None:
    builder(model, "docker", code=1)  # its daemon is not there
    builder(model, "podman", code=0)
    builder(model, "buildah", code=3)
    assert find_builder() == "podman"
    assert build(model, "-t", "cats", "--builder", "buildah").exit_code == 1
    assert build(model, "-t", "cats").exit_code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-t", "cats"], "no running docker, no podman and no buildah on this machine: install one"),
        (["-t", "cats", "--builder", "podman"], "--builder: there is no program podman here"),
        ([], "--tag is missing, or is no name of an image"),
        (["-t", "-x y"], "--tag is missing, or is no name of an image"),
        (["--context", "."], "--context: . is not empty"),
    ],
)
def test_what_cannot_be_built_is_said(
    model: Path, words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    result = build(model, *words)
    assert (result.exit_code, message in result.stderr) == (1, True), result.stderr


def test_the_context_alone(model: Path) -> None:
    write(model, **{"cog.yaml": json.dumps({"run": "run.py:run", "build": {"cudnn": "9"}})})
    result = build(model, "--context", model.parent / "context")
    assert result.exit_code == 0, result.output
    assert "passed over of cog.yaml: build.cudnn" in result.stderr
    assert faults((model.parent / "context" / "Dockerfile").read_text(), model.parent / "context") == []
