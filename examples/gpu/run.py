"""A model on a GPU: warmed up before it takes requests, in batches of fixed sizes, and clear about where it runs."""

import os
from time import perf_counter

import numpy as np
import torch
from jaxtyping import Float32

from geartrain import BaseRunner, batched, current_scope

SIZES = (1, 8, 64)  # of batches: each is compiled and measured by the libraries of the GPU when it comes first
FEATURES = 4


class NoGpuError(RuntimeError):
    """This model needs a GPU, and cannot use one here."""


class Runner(BaseRunner):
    def setup(self) -> None:
        self.device = find_device(current_scope().device, needed=os.environ.get("NEED_GPU") == "yes")
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        torch.manual_seed(0)  # in the place of weights: torch.load(..., map_location=self.device, weights_only=True)
        network = torch.nn.Sequential(torch.nn.Linear(FEATURES, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
        self.network = network.to(self.device, self.dtype).eval()
        for size in SIZES:
            begin = perf_counter()
            self.forward(torch.zeros(size, FEATURES))
            print(f"warm-up with {size} rows: {(perf_counter() - begin) * 1000:.1f} ms")

    # A batch is filled up to the next of the sizes, so the GPU sees no size that was not warmed up.
    @batched(max_size=SIZES[-1], pad_to=SIZES)
    def run(self, x: Float32[np.ndarray, "rows 4"]) -> Float32[np.ndarray, "rows 10"]:
        probabilities = self.forward(torch.from_numpy(x))
        if self.device.type == "cuda":
            current_scope().record_metric("gpu_memory_peak", torch.cuda.max_memory_allocated(self.device))
        return probabilities

    @torch.inference_mode()
    def forward(self, x: torch.Tensor) -> np.ndarray:
        """Return probabilities. The copy to the CPU waits for the GPU, so times that are measured here are true."""
        rows = x.to(self.device, self.dtype, non_blocking=True)
        return self.network(rows).float().softmax(dim=1).cpu().numpy()


def find_device(wanted: str, *, needed: bool) -> torch.device:
    """Return the worker's GPU if torch can use it, and otherwise the CPU; raise if a GPU is needed."""
    if wanted != "cpu" and torch.cuda.is_available():
        device = torch.device(wanted)
        print(f"on {torch.cuda.get_device_name(device)}, with CUDA {torch.version.cuda}")
        return device
    if wanted == "cpu":
        reason = "no GPU is given to this worker: look at `nvidia-smi`, `--devices`, and `--gpus all` of docker"
    elif torch.version.cuda is None:
        reason = f"torch {torch.__version__} is a build for the CPU: install the one with CUDA"
    else:
        reason = f"torch's CUDA {torch.version.cuda} cannot use the driver: a newer driver, or an older torch"
    if needed:
        raise NoGpuError(f"{reason}. NEED_GPU=no serves it on the CPU")
    print(f"on the CPU, since {reason}")
    return torch.device("cpu")
