"""Kind of a PyTorch file: a program in TorchScript, one of torch.export, or no program at all.

Both are zip archives, and so are files with nothing but weights. Their lists of contents tell them apart.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Final, Literal

from geartrain.backends.foreign import what_is
from geartrain.backends.interface import BackendError

Kind = Literal["script", "export"]

_EXPECTED: Final = "a program of TorchScript (.pt) or torch.export (.pt2) is expected"
_ADVICE: Final = (
    "make one of the model with: torch.export.save(torch.export.export(model.eval(), (example,), "
    "dynamic_shapes=({0: torch.export.Dim('batch')},)), 'model.pt2')"
)


def kind_of(path: Path) -> Kind:
    """Return the kind of program in a file, whatever its name; raise `BackendError` if it is none, or cut."""
    other = what_is(path)
    if other == "is a pickle of Python":
        raise BackendError(f"this is a pickle of torch.save, weights or a Python object, and no program; {_ADVICE}")
    if other != "is a zip archive":
        raise BackendError(f"this {other or 'is another kind of file'}; {_EXPECTED}")
    try:
        names = _names(path)
    except zipfile.BadZipFile:
        raise BackendError("the file is cut, or damaged: its list of contents is missing") from None
    if any("/code/" in name for name in names):
        return "script"
    if any("/models/" in name or name == "serialized_exported_program.json" for name in names):
        return "export"
    if any("/aotinductor/" in name for name in names):
        raise BackendError(
            "this is compiled by AOTInductor, for one kind of machine; serve what torch.export gave, saved with "
            "torch.export.save, or write a run.py that loads it with torch._inductor.aoti_load_package"
        )
    if any(name.endswith("data.pkl") for name in names):
        raise BackendError(f"this is a file of torch.save, weights or a Python object, and no program; {_ADVICE}")
    raise BackendError(f"this is a zip archive of other things; {_EXPECTED}")


def was_traced(path: Path) -> bool:
    """True if a program in TorchScript holds the example that it was traced with."""
    return any(name.endswith("/traced_inputs.pkl") for name in _names(path))


def _names(path: Path) -> list[str]:
    """The names in an archive; raise `BadZipFile` if it is cut.

    Archives may lie in archives, uncompressed. Of a cut one, the list of an inner one may be the last that is left: it
    does not begin where the file does.
    """
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if min((entry.header_offset for entry in entries), default=0) > 0:
            raise zipfile.BadZipFile
        return [entry.filename for entry in entries]
