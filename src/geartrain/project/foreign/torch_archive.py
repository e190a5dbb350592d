"""An archive for TorchServe, or the folder of one: its own version, and its settings that have no effect here."""

from __future__ import annotations

import lzma
import pathlib
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from geartrain.project.foreign.config_files import decode_yaml

_MANIFEST: Final = "MAR-INF/MANIFEST.json"
_CONFIG: Final = "model-config.yaml"
_VERSION: Final = "1.0"  # of a folder without a manifest, as torch-model-archiver gives it
_MOST: Final = 1024 * 1024  # bytes of such a file
_SEQUENCES: Final = "requests of a sequence are no queue of their own; write `replicas: 1`"
_WORKERS: Final = "write `replicas` into geartrain.yaml"
_DEVICES: Final = "write `devices` into geartrain.yaml"
_PROCESS: Final = "each worker is one process"
_TIME: Final = "write `timeout` into geartrain.yaml"
_QUEUE: Final = "write `queue` into geartrain.yaml"
_RESTART: Final = "use --restart"
_REMARKS: Final[Mapping[str, str]] = {
    "responseTimeout": _TIME,
    "clientTimeoutInMills": _TIME,
    "startupTimeout": "set COG_SETUP_TIMEOUT",
    "deviceType": _DEVICES,
    "deviceIds": _DEVICES,
    "parallelType": _PROCESS,
    "parallelLevel": _PROCESS,
    "torchrun": _PROCESS,
    "jobQueueSize": _QUEUE,
    "useJobTicket": _QUEUE,
    "maxRetryTimeoutInSec": _RESTART,
    "maxRetryTimeoutInMin": _RESTART,
    "sequenceBatching": _SEQUENCES,
    "maxNumSequence": _SEQUENCES,
    "maxSequenceJobQueueSize": _SEQUENCES,
    "sequenceMaxIdleMSec": _SEQUENCES,
    "sequenceTimeoutMSec": _SEQUENCES,
    "continuousBatching": "requests of `stopping_criteria` run one at a time",
    "asyncCommunication": "async handlers are not served",
    "useVenv": "the handler runs in the server's own environment",
}
_OF_MODEL: Final[Mapping[str, str]] = {
    "envelope": "bodies come to the handler as they are",
    "requirementsFile": "install what it names where geartrain runs",
}


def facts_of(path: pathlib.Path) -> tuple[str, tuple[str, ...]]:
    """Return the `modelVersion` of an archive or its folder, and sentences about settings that have no effect.

    A folder without a manifest has the version 1.0. A file that cannot be read is left to the worker.
    """
    try:
        if path.is_file() and zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                return _facts(partial(_packed, archive))
        return _facts(partial(_laid, path if path.is_dir() else path.parent))
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, NotImplementedError, RuntimeError):
        return _VERSION, ()


def _packed(archive: zipfile.ZipFile, name: str) -> bytes | None:
    """Return a file of an archive; None for one that is not there, or is too large."""
    found = archive.NameToInfo.get(name)
    return archive.read(found) if found is not None and found.file_size <= _MOST else None


def _laid(folder: pathlib.Path, name: str) -> bytes | None:
    """Return a file of a folder, as `_packed` does; one above the folder is not there."""
    file = folder / name
    if ".." in file.parts or not file.is_relative_to(folder) or not file.is_file() or file.stat().st_size > _MOST:
        return None
    return file.read_bytes()


def _facts(read: Callable[[str], bytes | None]) -> tuple[str, tuple[str, ...]]:
    manifest = _decoded(_MANIFEST, read(_MANIFEST))
    model = manifest.get("model")
    model = model if isinstance(model, dict) else {}
    config = str(model.get("configFile") or _CONFIG)
    remarks = [f"{_MANIFEST}: `model.{key}` is passed over: {why}" for key, why in _OF_MODEL.items() if model.get(key)]
    remarks += _of_config(config, _decoded(config, read(config)))
    return str(model.get("modelVersion") or _VERSION), tuple(remarks)


def _of_config(name: str, config: Mapping[str, Any]) -> Iterator[str]:
    workers = [key for key in ("minWorkers", "maxWorkers") if isinstance(config.get(key), int) and config[key] > 1]
    for key in workers:
        yield f"{name}: `{key}` is passed over: {_WORKERS}"
    for key, why in _REMARKS.items():
        if config.get(key):
            yield f"{name}: `{key}` is passed over: {why}"


def _decoded(name: str, content: bytes | None) -> Mapping[str, Any]:
    """Return the keys of a file; none for one that is not there, or is wrong."""
    if content is None:
        return {}
    try:
        found = msgspec.json.decode(content) if name == _MANIFEST else decode_yaml(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
