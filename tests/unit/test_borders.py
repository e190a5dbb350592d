"""What must not be loaded where, seen from a fresh interpreter; the contracts in pyproject.toml hold the rest."""

from __future__ import annotations

import ast
import importlib.metadata
import pathlib
import re
import subprocess
import sys

import geartrain

PACKAGE = pathlib.Path(geartrain.__file__).parent
TESTS = pathlib.Path(__file__).parents[1]


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter holds after `statement`."""
    script = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def packages_in(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_authoring_api_loads_no_other_package() -> None:
    heavy = {"asyncio", "httpx", "jsonschema_rs", "msgspec", "numpy", "pydantic", "starlette", "structlog", "typer"}
    clients = "{'AsyncClient', 'Client', 'map', 'map_async', 'tune'}"  # are loaded when they are asked for
    modules = loaded_by(f"import geartrain; [getattr(geartrain, name) for name in {{*geartrain.__all__}} - {clients}]")
    assert not packages_in(modules) & heavy
    others = {
        "apis",
        "bridge",
        "cli",
        "client",
        "ipc",
        "outbound",
        "project",
        "server",
        "service",
        "transport",
        "worker",
    }
    assert not {name.split(".")[1] for name in modules if name.startswith("geartrain.")} & others


def test_client_loads_nothing_of_the_server() -> None:
    modules = loaded_by("from geartrain import AsyncClient, Client; Client('http://127.0.0.1:1').close()")
    inside = {name.split(".")[1] for name in modules if name.startswith("geartrain.")}
    assert inside <= {"authoring", "client", "domain"}
    assert "numpy" not in modules


def test_a_plain_command_line_is_read_without_pydantic(tmp_path: pathlib.Path) -> None:
    """Typer's conversions import it, which takes as long as all else before the model is loaded."""
    (tmp_path / "run.py").write_text("def run(text: str) -> str:\n    return text\n")
    command = ["schema", str(tmp_path)]
    modules = loaded_by(f"from geartrain.cli.commands import app; app({command}, standalone_mode=False)")
    assert "typer" in modules
    assert "pydantic" not in packages_in(modules)


def worker_modules() -> list[str]:
    paths = sorted((PACKAGE / "worker").rglob("*.py"))
    names = [path.relative_to(PACKAGE).with_suffix("").parts for path in paths if not path.stem.startswith("__")]
    return [".".join(("geartrain", *parts)) for parts in names]


def test_worker_loads_nothing_of_the_server() -> None:
    modules = loaded_by(f"import {', '.join(worker_modules())}")
    web = {"h11", "httptools", "httpx", "jsonschema_rs", "rich", "starlette", "structlog", "typer", "uvicorn"}
    assert not packages_in(modules) & web
    assert not {name for name in modules if name.startswith("geartrain.bridge")}


def imported_by(path: pathlib.Path) -> set[str]:
    """The full names of all that a module imports, or imports from."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names}
    return names


def test_no_module_of_the_tests_imports_a_test_module() -> None:
    """What several of them need lies in modules that are no tests."""
    test_modules = {path.stem for path in TESTS.rglob("test_*.py")}
    mentioned = re.compile(rf"\b(?:{'|'.join(test_modules)})\b")
    found = {
        f"{path.relative_to(TESTS)}: {name}"
        for path in TESTS.rglob("*.py")
        if mentioned.search(path.read_text())  # to parse all of them takes seconds
        for name in imported_by(path)
        if not test_modules.isdisjoint(name.split("."))
    }
    assert not found


def test_version_is_the_packages() -> None:
    assert geartrain.__version__ == importlib.metadata.version("geartrain")
