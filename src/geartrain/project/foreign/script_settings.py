"""Settings of other servers that have no effect here, in a script or its environment: found without running it."""

from __future__ import annotations

import ast
import pathlib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

from geartrain.domain.predictions.request_context import ForwardedFields

_WORKERS: Final = "write `replicas` into geartrain.yaml"
_DEVICES: Final = "write `devices` into geartrain.yaml"
_TIME: Final = "write `timeout` into geartrain.yaml"
_SIZE: Final = "use --max-body-size"
_NO_SERVER: Final = "geartrain serves this model"
_SHARES_NONE: Final = "requests to such a script share no calls"
_NONE_SAID: Final = {"False", "None", "1"}  # values that say what holds anyway

_FORWARDING: Final = ("http_header_forward_pattern", "grpc_header_forward_pattern")
_NO_PATTERN: Final = "write it as a regular expression of Python, as a text in the file"

Keywords = Mapping[str, str]
"""Sentences by the keyword of a call; `*` is for the others."""

_CALLS: Final[Mapping[str, Mapping[str, Keywords]]] = {
    "litserve": {
        "LitServer": {
            "accelerator": _DEVICES,
            "devices": _DEVICES,
            "workers_per_device": _WORKERS,
            "timeout": _TIME,
            "max_payload_size": _SIZE,
            "healthcheck_path": "it is /health",
            "info_path": "there is none",
            "shutdown_path": "there is none",
            "model_metadata": "metadata are those of the model",
            "track_requests": "see /metrics",
            "callbacks": _NO_SERVER,
            "loggers": _NO_SERVER,
            "middlewares": _NO_SERVER,
        }
    },
    "kserve": {
        "ModelServer": {
            "workers": _WORKERS,
            "http_port": "use --port",
            "grpc_port": "use --grpc-port",
            "max_threads": _WORKERS,
            "max_asyncio_workers": _WORKERS,
            "enable_grpc": "use --grpc-port",
        }
    },
    "pytriton": {
        "TritonConfig": {
            "http_port": "use --port",
            "grpc_port": "use --grpc-port",
            "*": "Triton is not started",
        },
        "ModelConfig": {
            "response_cache": "write `cache` into geartrain.yaml",
            "model_warmup": "write `warmup` into geartrain.yaml",
        },
        "bind": {
            "model_version": "a model has the version 1",
            "strict": "results are always checked",
            "trace_config": "see the options of traces",
        },
    },
}
_VARIABLES: Final[Mapping[str, Keywords]] = {
    "sagemaker": {
        "SAGEMAKER_MODEL_SERVER_WORKERS": _WORKERS,
        "SAGEMAKER_TS_MIN_WORKERS": _WORKERS,
        "SAGEMAKER_TS_MAX_WORKERS": _WORKERS,
        "SAGEMAKER_MODEL_SERVER_TIMEOUT": _TIME,
        "SAGEMAKER_TS_RESPONSE_TIMEOUT": _TIME,
        "SAGEMAKER_TS_BATCH_SIZE": _SHARES_NONE,
        "SAGEMAKER_TS_MAX_BATCH_DELAY": _SHARES_NONE,
        "SAGEMAKER_MAX_REQUEST_SIZE": _SIZE,
        "SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT": "an answer is JSON without an `Accept`",
    }
}


def remarks_of(path: pathlib.Path, backend: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a sentence for each setting of a script of `backend`; none for a file that is no Python."""
    variables = _VARIABLES.get(backend, {})
    found = [f"{name} is passed over: {why}" for name, why in variables.items() if environ.get(name)]
    calls = _CALLS.get(backend)
    return (*found, *(() if calls is None else first_uses(path, partial(_stated, calls=calls))))


def first_uses(path: pathlib.Path, uses: Callable[[ast.Module], Iterable[tuple[int, str, str]]]) -> tuple[str, ...]:
    """Return a sentence for the first use of each name in a file; none for a file that is no Python.

    `uses` gives the line, the name and the reason of each use.
    """
    found: dict[str, str] = {}
    for line, name, why in sorted(uses(_parsed(path))):
        found.setdefault(name, f"{path.name}:{line}: {name}: {why}")
    return tuple(found.values())


def forwarded_of(path: pathlib.Path) -> ForwardedFields | None:
    """Return the header fields that a script for PyTriton makes parameters; None for none."""
    found = {
        keyword.arg: pattern
        for _, called, keyword in _keywords(_parsed(path))
        if called == "TritonConfig" and keyword.arg in _FORWARDING and (pattern := _pattern(keyword.value))
    }
    return ForwardedFields(*map(found.get, _FORWARDING)) if found else None


def _parsed(path: pathlib.Path) -> ast.Module:
    """Parse a file; an empty module for one that is no Python."""
    try:
        with warnings.catch_warnings():  # the worker's import shows them
            warnings.simplefilter("ignore")
            return ast.parse(path.read_bytes(), path.name)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def _pattern(value: ast.expr) -> re.Pattern[str] | None:
    """Compile a pattern, whose case does not count; None for another expression, or an empty text."""
    text = value.value if isinstance(value, ast.Constant) else None
    try:
        return re.compile(text, re.IGNORECASE) if isinstance(text, str) and text else None
    except re.error:
        return None


def _keywords(tree: ast.Module) -> Iterator[tuple[int, str, ast.keyword]]:
    """Yield the line, the name of the function and each keyword of the calls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            for keyword in node.keywords:
                yield node.lineno, called, keyword


def _stated(tree: ast.Module, calls: Mapping[str, Keywords]) -> Iterator[tuple[int, str, str]]:
    """Yield line, name and sentence of each keyword."""
    for line, called, keyword in _keywords(tree):
        known = calls.get(called, {})
        why = known.get(keyword.arg or "", known.get("*", "") if keyword.arg else "")
        if why and keyword.arg in _FORWARDING:
            why = "" if _pattern(keyword.value) else _NO_PATTERN
        if why and ast.unparse(keyword.value) not in _NONE_SAID:
            yield line, f"`{keyword.arg}` of {called}() is passed over", why
