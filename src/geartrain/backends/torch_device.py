"""The device that a model of PyTorch runs on, and its threads; and arrays there and back."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from geartrain.backends.arrays import numpy_type
from geartrain.backends.cpus import usable_cpus
from geartrain.backends.interface import BackendError
from geartrain.backends.options import Options, text, whole_number, wrong
from geartrain.domain.tensors.tensor import ARRAY_NAMES

if TYPE_CHECKING:
    import numpy as np

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
