"""What `geartrain doctor` finds out: a finding for each thing that can be wrong, and the fix it names."""

from __future__ import annotations

import errno
import re
import shutil
import socket
import sys
import sysconfig
import tempfile
import textwrap
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pytest

from geartrain.cli import machine
from geartrain.cli.machine import Torch
from geartrain.project.checks import (
    Finding,
    check_code,
    check_config,
    check_packages,
    check_python,
    error,
    ok,
    warning,
)
from geartrain.project.source import ModelSource

NUMPY = metadata.version("numpy")
PIP = f"{sys.executable} -m pip install"


def config(folder: Path, text: str) -> list[Finding]:
    (folder / "run.py").touch()
    (folder / "cog.yaml").write_text(textwrap.dedent(text))
    return check_config(folder)


# cog.yaml


def test_no_cog_yaml_is_fine(tmp_path: Path) -> None:
    assert check_config(tmp_path) == [ok("cog.yaml: there is none, and none is needed")]


def test_cog_yaml_with_every_key_that_is_heeded_is_fine(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "r.txt").touch()
    text = """
        run: run.py:Runner
        train: train.py
        concurrency: {max: 4, default_target: 2}
        environment: [A=b]
        build:
          python_version: "3.12"
          python_packages: [numpy]
          python_requirements: r.txt
        """
    assert config(tmp_path, text) == [ok("cog.yaml")]


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("- run.py", error("cog.yaml: expected keys such as `run: run.py:Runner`, found a list")),
        ("run: run.py\nrnu: x", error("cog.yaml:2: there is no key `rnu`", "write `run`")),
        ("concurency:\n  max: 4", error("cog.yaml:1: there is no key `concurency`", "write `concurrency`")),
        ("build:\n  gpus: true", error("cog.yaml:2: there is no key `build.gpus`", "write `gpu`")),
        (
            "python_packages: [numpy]",
            error("cog.yaml:1: there is no key `python_packages`", "it belongs below `build:`"),
        ),
        ("timeout: 4", error("cog.yaml:1: there is no key `timeout`", "it belongs into geartrain.yaml")),
        ("max: 4", error("cog.yaml:1: there is no key `max`", "it belongs below `concurrency:`")),
        (
            "concurrency:\n  environment: [A=b]",
            error("cog.yaml:2: there is no key `concurrency.environment`", "it belongs at the left edge"),
        ),
        (
            "owner: me",
            warning("cog.yaml:1: there is no key `owner`; it is passed over", "remove it, or make it a comment"),
        ),
        (
            "run: run.py\n\nrun: run.py",
            error("cog.yaml:3: `run` is there twice, and the last one wins", "keep one of them"),
        ),
        (
            "run: 5",
            error("cog.yaml:1: `run` is the number 5", "write a file and a class, such as `run: run.py:Runner`"),
        ),
        (
            "\nconcurrency:\n  max: many",
            error("cog.yaml:2: `concurrency.max` is the text 'many'", "write a whole number of at least 1"),
        ),
        ("environment: [A]", error("cog.yaml:1: `environment[0]` is `A`, without a value", "write `- A=VALUE`")),
        ("run: rnu.py:Runner", error("cog.yaml:1: `run` names rnu.py, and there is no such file", "write run.py")),
        ("train: lib/t.py:train", error("cog.yaml:1: `train` names lib/t.py, and there is no such file")),
        ("build: yes", error("cog.yaml:1: `build` is true", "write its keys indented below it")),
        (
            "build:\n  python_version: 3.10",
            error(
                "cog.yaml:2: `build.python_version` is the number 3.1, and YAML takes 3.10 for 3.1", "put it in quotes"
            ),
        ),
        (
            "build:\n  python_packages: numpy",
            error(
                "cog.yaml:2: `build.python_packages` is the text 'numpy'",
                "write a list of lines such as `- numpy==2.1.0`",
            ),
        ),
        (
            "build:\n  python_requirements: [numpy]",
            error(
                "cog.yaml:2: `build.python_requirements` is a list",
                "write the name of a file, such as requirements.txt",
            ),
        ),
        (
            "build:\n  python_requirements: r.txt",
            error("cog.yaml:2: `build.python_requirements` names r.txt, and there is no such file"),
        ),
        ("predict: run.py", warning("cog.yaml:1: `predict` is the older name of `run`", "write `run`")),
        (
            "image: x\nbuild: {gpu: true}",
            warning(
                "cog.yaml: `build.gpu`, `image`: only for building an image, and passed over here",
                "install what the model needs of it on this machine",
            ),
        ),
        ("image: x", warning("cog.yaml: `image`: only for building an image, and passed over here")),
    ],
)
def test_cog_yaml_is_told_with_line_and_fix(tmp_path: Path, text: str, finding: Finding) -> None:
    assert config(tmp_path, text) == [finding]


def test_broken_yaml_is_told_with_its_line(tmp_path: Path) -> None:
    (found,) = config(tmp_path, "run: run.py\nenvironment: [A=b")
    assert found.level == "error"
    assert found.text.startswith("cog.yaml:2: not valid YAML: ")


def test_everything_wrong_is_told_at_once(tmp_path: Path) -> None:
    levels = [
        finding.level for finding in config(tmp_path, "run: 1\ntrain: 2\nconcurrency: 3\nenvironment: 4\nbuidl: 5")
    ]
    assert levels == ["error"] * 5


# the model's file


def code(folder: Path, text: str, runner: str = "run.py") -> list[Finding]:
    (folder / "run.py").write_text(textwrap.dedent(text))
    return check_code(ModelSource(name="pets", root=folder, runner=runner))


def test_older_names_are_told_with_the_newer_ones(tmp_path: Path) -> None:
    text = """\
        from cog import BasePredictor, Input, emit_metric

        class Predictor(BasePredictor):
            def setup(self) -> None: ...

            def predict(self) -> str: ...
        """
    assert code(tmp_path, text) == [
        warning("run.py:1: BasePredictor is the older name of BaseRunner, and works as before", "write BaseRunner"),
        warning(
            "run.py:1: emit_metric is the older name of self.record_metric(), and works as before",
            "write self.record_metric()",
        ),
        warning("run.py:6: predict() is the older name of run(), and works as before", "write run()"),
    ]


@pytest.mark.parametrize(
    ("text", "runner", "lines"),
    [
        ("import cog\nclass P(cog.BasePredictor):\n    def predict(self) -> str: ...", "run.py", [2, 3]),
        ("class P:\n    async def predict(self) -> str: ...", "run.py:P", [2]),
        ("class P:\n    def predict(self) -> str: ...", "run.py", []),  # who knows what that is for
        ("from sklearn import BasePredictor", "run.py", []),
        ("from geartrain import BaseRunner\nclass R(BaseRunner):\n    def run(self) -> str: ...", "run.py", []),
        ("def broken(", "run.py", []),
        ("", "package.module:Runner", []),
    ],
)
def test_only_what_is_surely_older_is_told(tmp_path: Path, text: str, runner: str, lines: list[int]) -> None:
    assert [int(finding.text.split(":")[1]) for finding in code(tmp_path, text, runner)] == lines


# packages


def packages(folder: Path, requirements: str = "", cog_yaml: str = "") -> list[Finding]:
    (folder / "requirements.txt").write_text(textwrap.dedent(requirements))
    (folder / "cog.yaml").write_text(cog_yaml)
    return check_packages(folder)


def test_nothing_wanted_nothing_said(tmp_path: Path) -> None:
    assert check_packages(tmp_path) == []
    assert packages(tmp_path, "# none\n\n") == []


@pytest.mark.parametrize(
    ("line", "findings"),
    [
        ("numpy", [ok("requirements.txt: 1 package, installed as wanted")]),
        (f"numpy=={NUMPY} \\\n  --hash=sha256:00", [ok("requirements.txt: 1 package, installed as wanted")]),
        ("NumPy >= 1.0  # arrays", [ok("requirements.txt: 1 package, installed as wanted")]),
        ("numpy\npillow", [ok("requirements.txt: 2 packages, installed as wanted")]),
        ("numpy==0.1", [warning(f"installed in another version: numpy {NUMPY}, wanted ==0.1", f"{PIP} numpy==0.1")]),
        ("no-such-thing>=2", [error("not installed here: no-such-thing>=2", f"{PIP} 'no-such-thing>=2'")]),
        ("no-such-thing[a]", [error("not installed here: no-such-thing[a]", f"{PIP} 'no-such-thing[a]'")]),
        ("no-such-thing; python_version < '3'", []),
        ("cog==0.9.4", []),  # the worker has its own
        ("--extra-index-url https://example.com\n-e .\n./local\nhttps://example.com/a.whl", []),
        (
            "no-such-thing @ https://example.com/a.whl",
            [
                error(
                    "not installed here: no-such-thing @ https://example.com/a.whl",
                    f"{PIP} 'no-such-thing @ https://example.com/a.whl'",
                )
            ],
        ),
    ],
)
def test_requirements_are_compared_with_what_is_installed(tmp_path: Path, line: str, findings: list[Finding]) -> None:
    assert packages(tmp_path, line) == findings


def test_line_that_is_no_requirement_is_told(tmp_path: Path) -> None:
    (found,) = packages(tmp_path, "\nnumpy=1.0\n")
    assert found.text.startswith("requirements.txt:2: 'numpy=1.0' is no requirement: ")
    assert (found.level, found.fix) == ("warning", "write numpy==1.0")


def test_requirements_may_include_others(tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("-r requirements.txt\nno-such-thing")  # in a circle, too
    assert packages(tmp_path, "-r more.txt")[0].level == "error"


def test_cog_yaml_may_list_packages_and_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "needs.txt").write_text("pillow")
    text = "build: {python_packages: [numpy, 5], python_requirements: needs.txt}"
    expected = "build.python_packages and needs.txt: 2 packages, installed as wanted"
    assert packages(tmp_path, "no-such-thing", text) == [ok(expected)]


@pytest.mark.parametrize("text", ["", "build: 1", "build: {python_version: 3.1}", "build: [", "- list"])
def test_our_python_is_fine_unless_told_otherwise(tmp_path: Path, text: str) -> None:
    (tmp_path / "cog.yaml").write_text(text)
    assert check_python(tmp_path).level == "ok"


def test_python_is_compared_as_far_as_it_is_written(tmp_path: Path) -> None:
    ours = ".".join(map(str, sys.version_info[:3]))
    for version in (ours, ours.rpartition(".")[0]):
        (tmp_path / "cog.yaml").write_text(f"build: {{python_version: '{version}'}}")
        assert check_python(tmp_path) == ok(f"Python {ours}")
    (tmp_path / "cog.yaml").write_text("build: {python_version: '3.8.1'}")
    wanted = warning(
        f"Python {ours}: cog.yaml has `build.python_version: 3.8.1`", "make geartrain's environment with python3.8"
    )
    assert check_python(tmp_path) == wanted


# the machine

PLAIN = {  # what an interpreter says that was built by ./configure && make
    "CONFIG_ARGS": "'--prefix=/home/ada/.pyenv/versions/3.11.7' '--enable-shared' 'CPPFLAGS=-I/home/ada/include'",
    "PGO_PROF_GEN_FLAG": "-fprofile-generate",
    "PGO_PROF_USE_FLAG": "-fprofile-use -fprofile-correction",
    "PROFILE_TASK": "-m test --pgo --timeout=1200",
    "PY_CORE_CFLAGS": "-Wsign-compare -DNDEBUG -g -fwrapv -O3 -Wall -std=c11 -fPIC -DPy_BUILD_CORE",
    "Py_DEBUG": 0,
    "installed_base": "/home/ada/.pyenv/versions/3.11.7",
    "py_version": "3.11.7",
}
CLANG = {"PGO_PROF_USE_FLAG": "-fprofile-instr-use=code.profclangd"}
SLOW = warning(
    "Python 3.11.7 was configured without --enable-optimizations: what runs in it takes up to a third longer",
    "make geartrain's environment with a distribution's Python, or build this one with --enable-optimizations",
)


@pytest.mark.parametrize(
    "build",
    [
        pytest.param({}, id="pyenv"),
        pytest.param({"CONFIG_ARGS": "", "installed_base": "/usr/local"}, id="plain configure"),
        pytest.param(CLANG, id="pyenv on a Mac"),
        pytest.param({"CONFIG_ARGS": "'--with-lto'", "installed_base": "/opt/python"}, id="LTO alone"),
    ],
)
def test_interpreter_without_optimizations_is_told(build: dict[str, object]) -> None:
    assert machine.check_interpreter(PLAIN | build) == [SLOW]


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(
            {
                "CONFIG_ARGS": "'--enable-shared' '--prefix=/usr' '--with-computed-gotos' 'CC=x86_64-linux-gnu-gcc'",
                "PGO_PROF_USE_FLAG": "",
                "installed_base": "/usr",
            },
            id="Debian, Ubuntu",
        ),
        pytest.param(
            {"CONFIG_ARGS": "'--prefix=/usr' '--enable-optimizations'", "installed_base": "/usr"}, id="Fedora"
        ),
        pytest.param({"CONFIG_ARGS": "'--prefix=/usr'", "installed_base": "/usr"}, id="make profile-opt, in a package"),
        pytest.param({"installed_base": "/usr/drte/python"}, id="somebody's package"),
        pytest.param(
            {
                "CONFIG_ARGS": "'--build=x86_64-linux-gnu' '--enable-optimizations' '--with-lto'",
                "installed_base": "/usr/local",
            },
            id="docker",
        ),
        pytest.param({"CONFIG_ARGS": "'--prefix=/install' '--enable-optimizations' '--with-lto'"} | CLANG, id="uv"),
        pytest.param({"CONFIG_ARGS": "'--enable-framework' '--enable-optimizations'"} | CLANG, id="python.org"),
        pytest.param({"PGO_PROF_USE_FLAG": " ", "installed_base": "/opt/conda"}, id="conda takes the flags away"),
        pytest.param({"CONFIG_ARGS": "'--enable-bolt'"}, id="BOLT"),
        pytest.param({"CONFIG_ARGS": "'PROFILE_TASK=-m test --pgo'"}, id="a profile was meant"),
        pytest.param({"PY_CORE_CFLAGS": "-O3 -fprofile-use -fprofile-correction"}, id="GCC's flag"),
        pytest.param({"CFLAGS": "-O3 -fprofile-instr-use=code.profclangd"} | CLANG, id="Clang's flag"),
        pytest.param({"CONFIG_ARGS": None}, id="no arguments known"),
        pytest.param({"PGO_PROF_USE_FLAG": None}, id="no flag known"),
    ],
)
def test_interpreter_that_may_be_optimized_is_not_accused(build: dict[str, object]) -> None:
    known = {name: value for name, value in (PLAIN | build).items() if value is not None}
    assert machine.check_interpreter(known) == []


def test_debug_build_is_told_once() -> None:
    assert machine.check_interpreter(PLAIN | {"Py_DEBUG": 1}) == [
        warning(
            "Python 3.11.7 is a debug build: it checks itself at every step, and whatever runs in it is much slower",
            "make geartrain's environment with a release build, such as a distribution's Python",
        )
    ]


def test_interpreter_that_says_nothing_of_its_build_is_not_accused(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = {"EXT_SUFFIX": ".cp311-win_amd64.pyd", "installed_base": "C:\\Python311", "py_version": "3.11.7"}
    assert machine.check_interpreter(windows) == []

    def missing() -> dict[str, object]:
        raise ModuleNotFoundError("No module named '_sysconfigdata__linux_x86_64-linux-gnu'")

    monkeypatch.setattr(sysconfig, "get_config_vars", missing)
    assert machine.check_interpreter(machine.build_variables()) == []


def test_temporary_folder_is_tried(tmp_path: Path) -> None:
    found = machine.check_temporary_folder({"TMPDIR": str(tmp_path)})
    assert found.text.startswith(f"{tmp_path}, for temporary files: ")
    assert list(tmp_path.iterdir()) == []
    assert machine.check_temporary_folder({}).text.startswith(f"{tempfile.gettempdir()}, for temporary files: ")


def test_temporary_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert machine.check_temporary_folder({"TMPDIR": f"{tmp_path}/no"}) == error(
        f"TMPDIR={tmp_path}/no: No such file or directory", "name a folder that can be written to, or unset TMPDIR"
    )


def test_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("usage", (), {"free": 5 << 20})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert machine.check_temporary_folder({"TMPDIR": str(tmp_path)}) == warning(
        f"{tmp_path}, for temporary files: 5 MiB free", "make room, or name a folder with more of it in TMPDIR"
    )


def test_port_in_use_is_an_error_if_it_was_asked_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = machine.check_port(port, 5000)
        assert found.level == "error"
        assert found.text == f"port {port}: something else listens there (Address already in use)"
        assert found.fix.startswith("geartrain serve --port 50")
        assert machine.check_port(None, port).level == "warning"
    assert machine.check_port(port, 5000) == ok(f"port {port}: free")


def test_port_is_looked_at_where_the_server_listens() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        assert machine.check_port(port, 5000, "::1").level == "error"
        assert machine.check_port(port, 5000, "127.0.0.1") == ok(f"port {port}: free")


def test_port_that_needs_rights_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **_options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket, "create_server", refuse)
    assert machine.check_port(80, 5000).text == "port 80: this user may not listen on it"


def test_variables_that_have_no_effect_are_told() -> None:
    environ = {"COG_MAX_CONCURENCY": "4", "COG_WEIGHTS": "w", "COG_SOMETHING_ELSE": "", "HOME": "/"}
    assert machine.check_variables(environ, {"PORT": "80", "HF_HOME": "/hf", "COG_SETUP_TIMEOT": "1"}) == [
        warning("the variable COG_MAX_CONCURENCY is set, and nothing reads it", "set COG_MAX_CONCURRENCY"),
        warning("`environment` sets COG_SETUP_TIMEOT, and nothing reads it", "write COG_SETUP_TIMEOUT"),
    ]


def test_port_that_the_server_would_not_start_with_is_an_error() -> None:
    assert machine.check_variables({"PORT": "8080"}, {}) == machine.check_variables({"PORT": ""}, {}) == []
    (finding,) = machine.check_variables({"PORT": "http"}, {})
    assert finding == error("PORT=http: it is no port", "write a number from 0 to 65535, such as PORT=5000")


# The hardware


CSV = "NVIDIA H100 80GB HBM3, 81559, 550.54.15\n"
TABLE = "| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15    CUDA Version: 12.4 |\n"


def driver(arguments: Sequence[str]) -> str:
    return CSV if arguments else TABLE


def nothing(_: Sequence[str]) -> str:
    return ""


def test_gpus_are_told_with_memory_driver_and_torch() -> None:
    assert machine.check_gpus(driver, Torch("2.13.0+cu124", cuda="12.4")) == [
        ok("GPU 0: NVIDIA H100 80GB HBM3, 79.65 GiB, driver 550.54.15 for CUDA 12.4"),
        ok("torch 2.13.0+cu124, built for CUDA 12.4"),
    ]


def test_torch_without_cuda_beside_a_gpu_is_a_warning() -> None:
    *_, finding = machine.check_gpus(driver, Torch("2.13.0+cpu"))
    assert finding.level == "warning"
    assert finding.text == "torch 2.13.0+cpu, built for processors alone, no CUDA: it cannot use the GPU"


def test_torch_with_cuda_without_a_gpu_is_told() -> None:
    assert machine.check_gpus(nothing, Torch("2.13.0", cuda="12.4")) == [
        ok("GPU: none of NVIDIA's here"),
        ok('torch 2.13.0, built for CUDA 12.4, and there is no GPU: device="cuda" fails'),
    ]


def test_build_of_torch_is_read_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise AssertionError")
    text = "__version__ = '9.1+cu999'\ncuda: Optional[str] = '99.9'\nhip: Optional[str] = None\n"
    (tmp_path / "torch" / "version.py").write_text(text)
    (tmp_path / "torch-9.1.dist-info").mkdir()
    (tmp_path / "torch-9.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert machine.find_torch() == Torch("9.1+cu999", cuda="99.9")


def test_memory_is_what_the_server_may_use() -> None:
    assert re.fullmatch(r"memory: [\d.]+ [KMGT]?i?B free of [\d.]+ [GT]iB.*", machine.check_memory().text)
