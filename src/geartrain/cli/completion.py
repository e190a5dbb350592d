"""Completion of a shell's words: models, and the inputs of a model, which is read and never run."""

from __future__ import annotations

import ast
import os
import pathlib
from collections.abc import Iterator
from typing import Final

import typer  # noqa: TC002 - typer reads the annotations

from geartrain.project.config import code_file
from geartrain.project.source import ProjectError, find_model

_MODEL_FILES: Final = (".onnx", ".pt", ".cbm", ".skops", ".joblib", ".ubj")
_METHODS: Final = {"run": ("run", "predict"), "train": ("train",)}
_GIVEN_UP: Final = 2.0  # seconds that a server has for an answer


def complete_model(incomplete: str) -> Iterator[str]:
    """Yield the models that a path may go on to, and the folders that may have some."""
    head, _, tail = incomplete.rpartition("/")
    folder = pathlib.Path(head or ("/" if incomplete.startswith("/") else "."))
    prefix = f"{head}/" if "/" in incomplete else ""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if not entry.name.startswith(tail) or entry.name.startswith((".", "__")):
            continue
        if entry.is_dir():
            is_model = code_file(pathlib.Path(entry.path)) is not None
            yield f"{prefix}{entry.name}" if is_model else f"{prefix}{entry.name}/"
        elif entry.name.endswith((".py", *_MODEL_FILES)):
            yield f"{prefix}{entry.name}"


def complete_input(context: typer.Context, incomplete: str) -> Iterator[str]:
    """Yield the inputs of the model that is named on the line, as `name=`."""
    if "=" in incomplete:
        return
    command = context.info_name or "run"
    for name in _inputs(_argument(context, "model"), command):
        if name.startswith(incomplete):
            yield f"{name}="


def complete_served_input(context: typer.Context, incomplete: str) -> Iterator[str]:
    """Yield the inputs of a served model, as `name=`; the server is asked."""
    url = _argument(context, "url")
    if "=" in incomplete or not url:
        return
    from geartrain.client import Client, ClientError  # only here is a server asked

    verify: bool | str = str(context.params["cacert"]) if context.params.get("cacert") else True
    key = context.params.get("key")
    try:
        with Client(url, key=key, verify=verify, timeout=_GIVEN_UP, retries=0) as client:
            fields = client.model(context.params.get("model")).signature().inputs
    except (ClientError, OSError):
        return
    for field in fields:
        if field.name.startswith(incomplete):
            yield f"{field.name}="


def _argument(context: typer.Context, name: str) -> str | None:
    """Return the command's one argument; behind an option that still waits for its value it is not parsed yet."""
    given: str | None = context.params.get(name)
    return given or next(iter(context.args), None)


def _inputs(model: str | None, command: str) -> list[str]:
    """Return the parameters of a runner, as its file has them; none where that cannot be told."""
    try:
        source = find_model(model, mode="train" if command == "train" else "predict")
        file, _, name = source.runner.partition(":")
        tree = ast.parse((source.root / file).read_text(encoding="utf-8"))
    except (ProjectError, OSError, SyntaxError, ValueError):
        return []
    function = _runner(tree, name, _METHODS.get(command, _METHODS["run"]))
    if function is None:
        return []
    arguments = function.args
    return [each.arg for each in (*arguments.args, *arguments.kwonlyargs) if each.arg not in {"self", "cls"}]


def _runner(tree: ast.Module, name: str, methods: tuple[str, ...]) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return the function that runs: of that name, of a usual name, or the method of a class."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in ((name,) if name else methods):
            return node
        if isinstance(node, ast.ClassDef) and name in {"", node.name}:
            for each in node.body:
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name in methods:
                    return each
    return None
