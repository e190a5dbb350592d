"""Functions that a script for SageMaker may leave out, as SageMaker's containers have them.

Where the script has no `model_fn`, its model's files tell the container: that of Hugging Face loads a pipeline, and
that of PyTorch a file of TorchScript. Those of scikit-learn and XGBoost load nothing by themselves.
"""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from geartrain.authoring.devices import own_device
from geartrain.authoring.requests import BINARY_TYPE, JSON_TYPE
from geartrain.backends.libraries import require
from geartrain.worker.errors import ClientError
from geartrain.worker.loading.scripts.answers import plain

CSV_TYPE: Final = "text/csv"
NPY_TYPE: Final = "application/x-npy"
TEXTS: Final = frozenset({JSON_TYPE, CSV_TYPE, "application/jsonlines", "application/x-jsonlines", "text/plain"})
_UNSUPPORTED: Final = 415
_TASK: Final = "HF_TASK"
_CONFIG: Final = "config.json"
_TORCH_FILE: Final = "model.pt"
_TORCH_SUFFIXES: Final = frozenset({".pt", ".pth"})
_TASKS: Final = {  # by the ending of an architecture; the last one that fits, as there
    "TapasForQuestionAnswering": "table-question-answering",
    "ForQuestionAnswering": "question-answering",
    "ForTokenClassification": "token-classification",
    "ForSequenceClassification": "text-classification",
    "ForMultipleChoice": "multiple-choice",
    "ForMaskedLM": "fill-mask",
    "ForCausalLM": "text-generation",
    "ForConditionalGeneration": "text2text-generation",
    "MTModel": "text2text-generation",
    "EncoderDecoderModel": "text2text-generation",
    "GPT2LMHeadModel": "text-generation",
}
_BY_FEATURES: Final = frozenset(  # tasks whose pipelines have no tokenizer
    {
        "automatic-speech-recognition",
        "image-segmentation",
        "image-classification",
        "audio-classification",
        "object-detection",
        "zero-shot-image-classification",
    }
)


class UnsupportedFormatError(Exception):
    """A content type that a script does not take; as `sagemaker_inference.errors` has it."""

    status_code = _UNSUPPORTED

    def __init__(self, content_type: str, **_: Any) -> None:
        super().__init__(f"Content type {content_type} is not supported by this framework.")


class Defaults(NamedTuple):
    """The functions of a container."""

    model_fn: Callable[..., Any]
    input_fn: Callable[..., Any]
    predict_fn: Callable[..., Any]
    output_fn: Callable[..., Any]


def defaults_of(folder: Path, model_fn: Callable[..., Any] | None) -> Defaults:
    """Return the functions for a model; `model_fn` is that of the script.

    Raises `ValueError` for a folder whose model no container loads by itself.
    """
    if model_fn is not None:
        return Defaults(model_fn, decode, _predict, encode)
    is_torch = not os.environ.get(_TASK) and (folder / _TORCH_FILE).is_file()
    if not is_torch and (os.environ.get(_TASK) or (folder / _CONFIG).is_file()):
        return Defaults(_load_pipeline, _decode_for_pipeline, _ask_pipeline, _encode_of_pipeline)
    if is_torch or _torch_files(folder):
        return Defaults(_load_torch_script, _decode_tensor, _predict, encode)
    raise ValueError(
        "it has no function model_fn(model_dir), and beside it is nothing that SageMaker loads without one:"
        f" {_TORCH_FILE} of TorchScript, or a model of transformers with {_CONFIG}. Write model_fn; the containers of"
        " scikit-learn and XGBoost need it, too"
    )


# any container


def decode(body: str | bytes, content_type: str) -> Any:
    """Read an array: of JSON, CSV or numpy. Raises `UnsupportedFormatError`."""
    import numpy as np

    if content_type == JSON_TYPE:
        return np.array(json.loads(body))
    if content_type == CSV_TYPE:
        return np.array([[float(cell) for cell in row] for row in csv.reader(io.StringIO(_text(body))) if row])
    if content_type == NPY_TYPE:
        return np.load(io.BytesIO(body if isinstance(body, bytes) else body.encode()), allow_pickle=False)
    raise UnsupportedFormatError(content_type)


def encode(made: Any, accept: str) -> tuple[Any, str]:
    """Write an array: as JSON, CSV or numpy. Raises `UnsupportedFormatError`."""
    if accept == JSON_TYPE:
        return json.dumps(plain(made)), JSON_TYPE
    import numpy as np

    array = np.asarray(plain(made))
    buffer = io.BytesIO()
    if accept == CSV_TYPE:
        np.savetxt(buffer, np.atleast_1d(array), delimiter=",", fmt="%s")
    elif accept in {NPY_TYPE, BINARY_TYPE}:
        np.save(buffer, array, allow_pickle=False)
    else:
        raise UnsupportedFormatError(accept)
    return buffer.getvalue(), accept


def _predict(taken: Any, model: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        model.eval()
        first = next(model.parameters(), None)
        device = None if first is None else first.device
        kind = None if isinstance(taken, torch.Tensor) else torch.get_default_dtype()
        with torch.no_grad():
            return model(torch.as_tensor(taken, dtype=kind, device=device))
    predict = getattr(model, "predict", model)
    return predict(taken)


def _text(body: str | bytes) -> str:
    return body if isinstance(body, str) else bytes(body).decode()


# PyTorch's container


def _torch_files(folder: Path) -> list[Path]:
    """Return `model.pt`, or all files that may be the model in its place."""
    if (folder / _TORCH_FILE).is_file():
        return [folder / _TORCH_FILE]
    return sorted(each for each in folder.iterdir() if each.suffix in _TORCH_SUFFIXES and each.is_file())


def _load_torch_script(model_dir: str) -> Any:
    """Load a file of TorchScript. Raises `ValueError` for another one, and unless there is exactly one."""
    torch: Any = require("torch", extra="torch")
    files = _torch_files(Path(model_dir))
    if len(files) != 1:
        names = ", ".join(each.name for each in files)
        raise ValueError(f"there are several files of PyTorch ({names}): call one {_TORCH_FILE}, or write model_fn")
    (file,) = files
    try:
        return torch.jit.load(str(file), map_location=own_device())
    except RuntimeError as error:
        raise ValueError(
            f"{file.name} is not of TorchScript, and the script has no model_fn(model_dir): save it with"
            f" torch.jit.script(model).save({file.name!r}), or write model_fn ({str(error).splitlines()[0]})"
        ) from error


def _decode_tensor(body: str | bytes, content_type: str) -> Any:
    torch: Any = sys.modules["torch"]
    array = decode(body, content_type)
    return torch.as_tensor(array, dtype=torch.float32 if content_type in TEXTS else None)


# Hugging Face's container


def _load_pipeline(model_dir: str) -> Any:
    """Load a pipeline of transformers. Raises `ValueError` for a folder that does not tell its task."""
    transformers: Any = require("transformers", extra="transformers")
    task = os.environ.get(_TASK) or _task_of(Path(model_dir) / _CONFIG)
    part = "feature_extractor" if task in _BY_FEATURES else "tokenizer"
    return transformers.pipeline(task=task, model=model_dir, device=own_device(), **{part: model_dir})


def _task_of(config: Path) -> str:
    names = json.loads(config.read_text()).get("architectures") or [""]
    found = [task for ending, task in _TASKS.items() if str(names[0]).endswith(ending)]
    if not found:
        raise ValueError(f"{config.name} does not tell the task ({names[0] or 'no architecture'}): set {_TASK}")
    return found[-1]


def _decode_for_pipeline(body: str | bytes, content_type: str) -> Any:
    """Read a dict with `inputs`. Raises `ClientError`, `UnsupportedFormatError`."""
    if content_type == JSON_TYPE:
        return json.loads(body)
    if content_type == CSV_TYPE:
        rows = list(csv.DictReader(io.StringIO(_text(body))))
        if not rows or not {"inputs", "question", "context"} & rows[0].keys():
            raise ClientError("the first line of CSV has the names of columns: inputs, or question and context")
        return {"inputs": [row["inputs"] for row in rows] if "inputs" in rows[0] else rows}
    if content_type == NPY_TYPE:
        return decode(body, content_type)
    if content_type.startswith("image/"):
        from PIL import Image

        return {"inputs": Image.open(io.BytesIO(bytes(body) if not isinstance(body, str) else b"")).convert("RGB")}
    if content_type.startswith("audio/"):
        return {"inputs": body}
    raise UnsupportedFormatError(content_type)


def _ask_pipeline(data: Any, model: Any) -> Any:
    if not isinstance(data, dict):
        return model(data)
    inputs = data.pop("inputs", data)
    parameters = data.pop("parameters", None)
    return model(inputs) if parameters is None else model(inputs, **parameters)


def _encode_of_pipeline(made: Any, accept: str) -> tuple[Any, str]:
    """Write JSON or CSV; a picture is its PNG in base64. Raises `UnsupportedFormatError`."""
    if accept == CSV_TYPE:
        rows = made if isinstance(made, list) else [made]
        text = io.StringIO()
        writer = csv.DictWriter(text, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue(), accept
    return encode(made, accept)
