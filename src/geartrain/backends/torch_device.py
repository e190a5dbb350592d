"""Kinds of PyTorch files; the device and the threads of a model; arrays there and back.

Programs in TorchScript and of torch.export are zip archives, and so are files with nothing but weights. Their lists of
contents tell them apart.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from geartrain.backends.arrays import numpy_type
from geartrain.backends.foreign import what_is
from geartrain.backends.interface import BackendError
from geartrain.backends.options import Options, text, usable_cpus, whole_number, wrong
from geartrain.domain.tensors.tensor import ARRAY_NAMES

if TYPE_CHECKING:
    import numpy as np

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


_DATATYPES = {name: datatype for datatype, name in ARRAY_NAMES.items()}


def choose_device(torch: Any, options: Options) -> str:
    """Return the device that `device` says, `auto` being a GPU if there is one; raise `BackendError`."""
    wanted = text(options, "device") or "auto"
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    found = re.fullmatch(r"cpu|cuda(?::(\d+))?", wanted)
    if found is None:
        raise wrong("device", wanted, "write auto, cpu, cuda, or cuda:0 and so on")
    if wanted == "cpu":
        return wanted
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(found[1] or 0) >= count:
        raise wrong("device", wanted, f"this PyTorch ({torch.__version__}) finds {count or 'no'} GPUs here; write auto")
    return wanted


def set_threads(torch: Any, options: Options) -> int:
    """Give operations on the processor as many threads as `threads` says, or as this process has processors."""
    threads = whole_number(options, "threads") or usable_cpus()
    torch.set_num_threads(threads)
    return threads


def to_torch(torch: Any, array: np.ndarray, device: str) -> Any:
    """Return the tensor of an array, in the array's own memory where that is possible."""
    import numpy as np

    if array.dtype.name == ARRAY_NAMES["BF16"]:
        return (
            torch.from_numpy(np.require(array.view(np.int16), requirements=["C", "W"])).view(torch.bfloat16).to(device)
        )
    return torch.from_numpy(np.require(array, requirements=["C", "W"])).to(device)


def to_numpy(torch: Any, tensor: Any) -> np.ndarray:
    """Return the array of a tensor, in the tensor's own memory where that is possible."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype != torch.bfloat16:
        array: np.ndarray = tensor.numpy()
        return array
    bits: np.ndarray = tensor.view(torch.int16).numpy()
    return bits.view(numpy_type("BF16"))


def datatype_of(what: str, dtype: Any) -> str:
    """Return the datatype of a type of PyTorch; raise `BackendError` that begins with `what`."""
    name = str(dtype).removeprefix("torch.")
    if name not in _DATATYPES:
        raise BackendError(f"{what} is {name}, for which the Open Inference Protocol has no datatype")
    return _DATATYPES[name]
