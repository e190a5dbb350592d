"""The geartrain that is running, as a wheel: what an image is built with needs no index that has it."""

from __future__ import annotations

import base64
import hashlib
import pathlib
import zipfile
from importlib import metadata
from typing import Final

_NAME: Final = "geartrain"
_TAG: Final = "py3-none-any"
_PASSED_OVER: Final = frozenset({".pyc", ".pyo"})
_DATE: Final = (2020, 1, 1, 0, 0, 0)  # of each file: the same package is the same wheel


def write_wheel(folder: pathlib.Path) -> pathlib.Path:
    """Write the wheel into a folder and return its path. Source: the binary distribution format of PyPA."""
    package = pathlib.Path(__file__).parents[1]
    installed = metadata.distribution(_NAME)
    info = f"{_NAME}-{installed.version}.dist-info"
    contents = {
        f"{_NAME}/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and path.suffix not in _PASSED_OVER
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
