"""Names that a script for LitServe imports, where `litserve` is not installed."""

from __future__ import annotations

import json
from abc import ABC
from collections.abc import Iterator, Sequence
from typing import Any

from geartrain.worker.loading.scripts.script import tell


class LitSpec:
    """An API that LitServe offers beside its own."""

    def __init__(self, *_: Any, **__: Any) -> None: ...


class OpenAISpec(LitSpec):
    """OpenAI's chat completions."""


class OpenAIEmbeddingSpec(LitSpec):
    """OpenAI's embeddings."""


class ChatMessage:
    """A message, or a part of one."""

    def __init__(self, role: str = "assistant", content: Any = None, **others: Any) -> None:
        self.role = role
        self.content = content
        vars(self).update(others)

    def model_dump(self, *, exclude_none: bool = False, **_: Any) -> dict[str, Any]:
        """Return its members, without those that are None if that is wanted."""
        return {name: value for name, value in vars(self).items() if not (exclude_none and value is None)}


class Callback(ABC):  # noqa: B024 - as there
    """Is told of what happens to requests; it is not called here."""


class Logger(ABC):  # noqa: B024 - as there
    """Takes what `LitAPI.log` is given; it is not called here."""


class LitAPI:
    """A model: `setup`, `decode_request`, `batch`, `predict`, `unbatch` and `encode_response`."""

    request_timeout: float | None = None

    def __init__(
        self,
        max_batch_size: int = 1,
        batch_timeout: float = 0.0,
        api_path: str = "/predict",
        *,
        stream: bool = False,
        enable_async: bool = False,
        spec: Any = None,
        **_: Any,
    ) -> None:
        """`batch_timeout` is in seconds. Raises `ValueError` for a batch of no requests, or one that never waits."""
        if max_batch_size <= 0:
            raise ValueError("max_batch_size must be greater than 0")
        if batch_timeout < 0:
            raise ValueError("batch_timeout must not be negative")
        self.max_batch_size = max_batch_size
        self.batch_timeout = batch_timeout
        self.api_path = api_path
        self.stream = stream
        self.enable_async = enable_async
        self.spec = spec
        if spec is not None:
            self.stream = True
        self.device: str | None = None

    def setup(self, device: str) -> None:
        """Load the model."""

    def decode_request(self, request: Any, **_: Any) -> Any:
        """Read the input of `predict` in a request."""
        return request

    def batch(self, inputs: list[Any]) -> Any:
        """Join the inputs of several requests: arrays and tensors are stacked."""
        first = inputs[0]
        if hasattr(first, "__torch_function__"):
            import torch

            return torch.stack(inputs)
        if type(first).__name__ == "ndarray":
            import numpy as np

            return np.stack(inputs)
        return inputs

    def predict(self, x: Any, **_: Any) -> Any:
        """Run the model."""
        raise NotImplementedError("predict() is not written")

    def unbatch(self, output: Any) -> Any:
        """Cut the output of a batch into those of its requests; of a stream, each step of it."""
        return _steps(output) if self.stream else list(output)

    def encode_response(self, output: Any, **_: Any) -> Any:
        """Return the answer for an output."""
        return output

    def format_encoded_response(self, data: Any) -> Any:
        """Return a piece of a stream as text: an object becomes a line of JSON."""
        if isinstance(data, dict):
            return json.dumps(data) + "\n"
        return data.model_dump_json() + "\n" if hasattr(data, "model_dump_json") else data

    def log(self, key: str, value: Any) -> None:
        """Tell a value: here it is a line of the request's log."""
        tell(f"{key}: {value}")

    def health(self) -> bool:
        """True if the model is well."""
        return True


def _steps(output: Any) -> Iterator[list[Any]]:
    for step in output:
        yield list(step)


class LitServer:
    """The server of a model, which notes its models here."""

    def __init__(self, lit_api: LitAPI | Sequence[LitAPI], *arguments: Any, **settings: Any) -> None: ...

    def run(self, *arguments: Any, **settings: Any) -> None:
        """Listen; here it does nothing."""
