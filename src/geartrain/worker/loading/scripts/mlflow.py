"""A model of MLflow: a folder with `MLmodel`, run by `mlflow.pyfunc`.

Bodies of `/invocations` are read and written by MLflow's own scoring server; tensors are columns of a data frame, or
arrays.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from geartrain.authoring.requests import JSON_TYPE, Request, Response, Tensors
from geartrain.authoring.scope import batch_item
from geartrain.backends.interface import BackendError
from geartrain.backends.libraries import require
from geartrain.domain.signature.types import DeclaredTensor
from geartrain.domain.tensors.tensor import VARIABLE
from geartrain.ipc.messages import BackendChoice
from geartrain.worker.errors import ClientError, describe_error
from geartrain.worker.loading.loader import LoadedRunner, LoadError, load_instance
from geartrain.worker.loading.open_signature import TensorsOf
from geartrain.worker.loading.scripts.shared_calls import NotCutError, SharedCalls, finish

FILE: Final = "MLmodel"
_FLAVOR: Final = "python_function"
_CSV: Final = "text/csv"
_PARQUET: Final = "application/vnd.apache.parquet"
_DATATYPES: Final = {
    "boolean": "BOOL",
    "integer": "INT32",
    "long": "INT64",
    "float": "FP32",
    "double": "FP64",
    "string": "BYTES",
    "binary": "BYTES",
    "datetime": "BYTES",
}
"""The datatypes of columns."""
INPUT: Final = "input-0"
OUTPUT: Final = "output-1"
"""The names of tensors that have none, as MLServer calls them."""


def load_mlflow(choice: BackendChoice, batching: Mapping[str, Any] | None) -> LoadedRunner:
    """Read `MLmodel`; the model is loaded by `setup()`. Raises `LoadError`."""
    folder = Path(choice.path)
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ["_MLFLOW_IS_IN_SERVING_ENVIRONMENT"] = "true"  # set by its own server, too
    try:
        for module in ("pandas", "mlflow.pyfunc"):
            require(module, extra="mlflow")
        model = MlflowModel(folder, choice.options)
    except BackendError as error:
        raise LoadError(f"{folder.name}: {error}") from error
    except Exception as error:
        raise LoadError(f"{folder / FILE}: {describe_error(error)}") from error
    shares = bool(batching and batching.get("max_size") != 1)
    run: Callable[..., Any] = model.run_batch if shares else model.run
    runner = load_instance(model, run, folder, owner=f"the model {folder.name}", batching=batching if shares else None)
    signature = msgspec.structs.replace(runner.signature, open_inputs=model.inputs, open_outputs=model.outputs)
    compose = runner.compose.declaring(model.inputs) if isinstance(runner.compose, TensorsOf) else runner.compose
    return runner._replace(signature=signature, compose=compose, platform="mlflow")


class _Asked(NamedTuple):
    """A request whose body is read: the input of the model, and the function that makes the answer of its output."""

    data: Any
    params: Mapping[str, Any] | None
    answer: Callable[[Any], Response | Tensors]
    is_alone: bool = False  # chats and prompts share no call


class MlflowModel:
    """A model and its signature.

    Attributes:
        inputs: the tensors of the signature; none where it has other types, or is not there.
        outputs: likewise.
    """

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        """`options` are the `model_config` that the model is loaded with. Raises `ValueError`, `MlflowException`."""
        from mlflow.models import Model

        self._folder = folder
        self._options = dict(options)
        metadata = Model.load(str(folder))
        if _FLAVOR not in metadata.flavors:
            flavors = ", ".join(metadata.flavors) or "none"
            raise ValueError(f"it has no flavor {_FLAVOR}, which a model needs to be served; it has {flavors}")
        self._schema = metadata.get_input_schema()
        params = metadata.get_params_schema()
        self._params = frozenset(each.name for each in params.params) if params is not None else frozenset[str]()
        self.inputs = _declared(self._schema, INPUT)
        self.outputs = _declared(metadata.get_output_schema(), OUTPUT)
        self._model: Any = None
        self._shared = SharedCalls(_key_of, self._one, self._many, fits=_has_rows)

    def setup(self) -> None:
        """Load the model."""
        import mlflow.pyfunc

        self._model = mlflow.pyfunc.load_model(str(self._folder), model_config=self._options or None)

    def run(self, request: Request | Tensors) -> Response | Tensors:
        """Predict: a body of `/invocations`, or tensors."""
        try:
            asked = self._read(request)
            return asked if isinstance(asked, Response) else asked.answer(self._predict(asked.data, asked.params))
        except Exception as error:  # noqa: BLE001 - those without a status are raised again
            return _refused(request, error)

    def run_batch(self, requests: list[Request | Tensors]) -> list[Response | Tensors | Exception]:
        """Predict for several requests: those of the same columns, and of the same parameters, share a call."""
        results: list[Any] = [None] * len(requests)
        asked = {}
        for place, request in enumerate(requests):
            results[place] = found = self._safely(place, request, partial(self._read, request))
            if isinstance(found, _Asked):
                asked[place] = found
        outputs = finish(self._shared.answer(list(asked.values())))
        for (place, each), output in zip(asked.items(), outputs, strict=True):
            make = partial(_raise if isinstance(output, Exception) else each.answer, output)
            results[place] = self._safely(place, requests[place], make)
        return results

    def _safely(self, place: int, request: Request | Tensors, make: Callable[[], Any]) -> Any:
        """Call `make` for the request in a place of the batch; return its result, or the answer to its exception."""
        with batch_item(place):
            try:
                return make()
            except Exception as error:  # noqa: BLE001 - it is that of one request
                try:
                    return _refused(request, error)
                except Exception as raised:  # noqa: BLE001 - likewise
                    return raised

    def _predict(self, data: Any, params: Mapping[str, Any] | None) -> Any:
        return self._model.predict(data, params=params)

    async def _one(self, asked: _Asked) -> Any:
        return self._predict(asked.data, asked.params)

    async def _many(self, requests: Sequence[_Asked], _: Sequence[int]) -> list[Any]:
        parts = [each.data for each in requests]
        return _cut(self._predict(_join(parts), requests[0].params), [_rows_of(each) for each in parts])

    # bodies

    def _read(self, request: Request | Tensors) -> _Asked | Response:
        """Read a request; return the answer to one that cannot be read. Raises `MlflowException`, `ClientError`."""
        if isinstance(request, Tensors):
            taken = {name: value for name, value in request.parameters.items() if name in self._params}
            return _Asked(self._data_of(request), taken or None, _tensors_of)
        from mlflow.pyfunc import scoring_server

        kind = request.media_type or JSON_TYPE
        if kind == _CSV:
            return _Asked(scoring_server.parse_csv_input(io.StringIO(_text(request)), self._schema), None, _body_of)
        if kind == JSON_TYPE:
            parsed = scoring_server._parse_json_data(_text(request), self._model.metadata, self._schema)  # noqa: SLF001
            is_chat = parsed.is_unified_llm_input
            return _Asked(parsed.data, parsed.params, _chat_of if is_chat else _body_of, is_chat)
        if kind == _PARQUET:
            return _Asked(scoring_server.parse_parquet_input(io.BytesIO(request.body)), None, _body_of)
        types = ", ".join(scoring_server.CONTENT_TYPES)
        return Response(f"This predictor takes {types}, and not {kind}.", status=415)

    # tensors

    def _data_of(self, tensors: Tensors) -> Any:
        """Return the input of the model. Raises `ClientError`."""
        import pandas as pd

        schema = self._schema
        if self.inputs and not schema.is_tensor_spec():
            kinds = {each.name: each.type for each in schema.inputs}
            return pd.DataFrame({name: _column(name, array, kinds.get(name)) for name, array in tensors.items()})
        if schema is not None and schema.is_tensor_spec():
            wanted = dict(zip((each.name for each in self.inputs), schema.inputs, strict=False))
            found = {
                name: _typed(name, array, getattr(wanted.get(name), "type", None)) for name, array in tensors.items()
            }
        else:
            found = {name: _texts(array) for name, array in tensors.items()}
        if schema is not None and schema.has_input_names():
            return found
        if len(found) == 1:
            (only,) = found.values()
            return only.tolist() if schema is not None and not schema.is_tensor_spec() else only
        return pd.DataFrame({name: _flat(name, array).tolist() for name, array in found.items()})


def _refused(request: Request | Tensors, error: Exception) -> Response:
    """Return the answer to an error of the client's; raise any other one."""
    from mlflow.exceptions import MlflowException

    if isinstance(error, RecursionError):
        raise ClientError("the body is nested too deeply") from error
    if not isinstance(error, MlflowException):
        raise error
    status = error.get_http_status_code()
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise error
    if isinstance(request, Tensors):
        raise ClientError(error.message) from error
    return Response({"error_code": error.error_code, "message": error.message}, status=status)


def _raise(error: Exception) -> None:
    raise error


def _body_of(result: Any) -> Response:
    """Return the answer to a body."""
    from mlflow.pyfunc import scoring_server

    text = io.StringIO()
    scoring_server.predictions_to_json(result, text)
    return Response(text.getvalue(), JSON_TYPE)


def _chat_of(result: Any) -> Response:
    """Return the answer to a chat or a prompt."""
    from mlflow.pyfunc import scoring_server

    text = io.StringIO()
    scoring_server.unwrapped_predictions_to_json(result, text)
    return Response(text.getvalue(), JSON_TYPE)


def _text(request: Request) -> str:
    """Return a body. Raises `MlflowException` unless it is UTF-8."""
    from mlflow.exceptions import MlflowException

    try:
        return request.body.decode()
    except UnicodeDecodeError as error:
        raise MlflowException.invalid_parameter_value(f"The body is not UTF-8: {error}") from None


def _declared(schema: Any, unnamed: str) -> tuple[DeclaredTensor, ...]:
    """Return the tensors of a schema; none for one with a type that no tensor has, or with columns without names."""
    if schema is None:
        return ()
    found = []
    for each in schema.inputs:
        if schema.is_tensor_spec():
            from geartrain.worker import arrays

            datatype, shape = arrays.datatype_of(each.type), tuple(each.shape)
        else:
            datatype, shape = _DATATYPES.get(getattr(each.type, "name", ""), ""), (VARIABLE,)
        name = each.name or unnamed
        if not datatype or (each.name is None and len(schema.inputs) > 1):
            return ()
        found.append(DeclaredTensor(str(name), datatype, shape, optional=not getattr(each, "required", True)))
    return tuple(found) if schema.is_tensor_spec() or unnamed == OUTPUT or schema.has_input_names() else ()


def _flat(name: str, array: Any) -> Any:
    """Return the elements of a column, one for each row. Raises `ClientError`."""
    if array.ndim == 0 or array.size != array.shape[0]:
        raise ClientError(f"input '{name}' has the shape {list(array.shape)}: a column has one element in each row")
    return array.reshape(-1)


def _column(name: str, array: Any, kind: Any) -> Any:
    """Return a column of the type that the signature says. Raises `ClientError`."""
    import pandas as pd

    flat = _flat(name, array)
    if kind is None or kind.name == "binary":
        return flat
    if kind.name == "string":
        return _texts(flat)
    if kind.name == "datetime":
        try:
            return pd.to_datetime(_texts(flat))
        except ValueError as error:
            raise ClientError(f"input '{name}' is no time: {error}") from None
    return _typed(name, flat, kind.to_numpy())


def _typed(name: str, array: Any, kind: Any) -> Any:
    """Return an array with elements of a type of numpy. Raises `ClientError`."""
    if kind is None or kind.kind in "OUS":
        return _texts(array)
    try:
        return array.astype(kind, casting="same_kind")
    except TypeError:
        raise ClientError(f"input '{name}' is of {array.dtype}, and the model takes {kind}") from None


def _texts(array: Any) -> Any:
    """Return an array whose bytes are texts. Raises `ClientError` unless they are UTF-8."""
    if array.dtype.kind != "O":
        return array
    import numpy as np

    found = np.empty(array.size, object)
    try:
        found[:] = [each.decode() if isinstance(each, bytes) else each for each in array.ravel()]
    except UnicodeDecodeError as error:
        raise ClientError(f"an element of BYTES is no text in UTF-8: {error}") from None
    return found.reshape(array.shape)


# shared calls


def _key_of(asked: _Asked) -> Hashable | None:
    """Return the key of inputs that may be joined: all but their rows. None for those that share no call."""
    import numpy as np
    import pandas as pd

    data = asked.data
    if asked.is_alone or not isinstance(data, (pd.DataFrame, np.ndarray, Mapping)) or not _rows_of(data):
        return None
    kind: Hashable
    if isinstance(data, pd.DataFrame):
        if not data.index.equals(pd.RangeIndex(len(data))):
            return None
        kind = tuple((str(name), str(data[name].dtype)) for name in data.columns)
    elif isinstance(data, np.ndarray):
        kind = (str(data.dtype), data.shape[1:])
    else:
        kind = tuple((str(name), str(array.dtype), array.shape[1:]) for name, array in data.items())
    return type(data).__name__, kind, json.dumps(asked.params, sort_keys=True, default=repr)


def _rows_of(data: Any) -> int:
    """Return the rows of an input or an output; 0 without any, or where arrays by name have different ones."""
    if isinstance(data, Mapping):
        counts = {_rows_of(each) for each in data.values()}
        return counts.pop() if len(counts) == 1 else 0
    if getattr(data, "ndim", 0):
        return len(data)
    return len(data) if isinstance(data, list) else 0


def _has_rows(asked: _Asked, output: Any) -> bool:
    return _rows_of(output) == _rows_of(asked.data)


def _join(parts: Sequence[Any]) -> Any:
    """Join inputs of one key."""
    import numpy as np
    import pandas as pd

    first = parts[0]
    if isinstance(first, pd.DataFrame):
        return pd.concat(parts, ignore_index=True)
    if isinstance(first, Mapping):
        return {name: np.concatenate([each[name] for each in parts]) for name in first}
    return np.concatenate(parts)


def _cut(output: Any, rows: Sequence[int]) -> list[Any]:
    """Cut an output into those of inputs with so many rows each. Raises `NotCutError`."""
    if _rows_of(output) != sum(rows):
        raise NotCutError(f"predict() has returned {_rows_of(output)} rows for {sum(rows)} rows of inputs")
    found, start = [], 0
    for count in rows:
        found.append(_part(output, slice(start, start + count)))
        start += count
    return found


def _part(output: Any, rows: slice) -> Any:
    if isinstance(output, Mapping):
        return {name: _part(each, rows) for name, each in output.items()}
    return output.iloc[rows].reset_index(drop=True) if hasattr(output, "iloc") else output[rows]


# results


def _tensors_of(result: Any) -> Tensors:
    """Return a prediction as tensors: columns of a data frame, arrays by name, or one array."""
    if hasattr(result, "columns"):
        return Tensors({str(name): _array(result[name].to_numpy()) for name in result.columns})
    if isinstance(result, Mapping):
        return Tensors({str(name): _array(value) for name, value in result.items()})
    if isinstance(result, Sequence) and not isinstance(result, (str, bytes)) and _are_rows(result):
        import pandas as pd

        return _tensors_of(pd.DataFrame(list(result)))
    name = getattr(result, "name", None)
    return Tensors({str(name) if name is not None else OUTPUT: _array(result)})


def _are_rows(result: Sequence[Any]) -> bool:
    scalars = (str, int, float, bool, type(None))
    rows = [each for each in result if isinstance(each, Mapping)]
    return bool(rows) and len(rows) == len(result) and all(isinstance(v, scalars) for row in rows for v in row.values())


def _array(value: Any) -> Any:
    """Return an array that a tensor can have: elements that are neither numbers nor texts become JSON."""
    import numpy as np

    value = value.to_numpy() if hasattr(value, "to_numpy") else value
    array = np.asarray(value) if not isinstance(value, (str, bytes)) else np.array([value], object)
    if array.ndim == 0:
        array = array.reshape(1)
    if array.dtype.kind == "M":
        array = np.datetime_as_string(array).astype(object)
    if array.dtype.kind != "O":
        return array
    found = np.empty(array.size, object)
    found[:] = [each if isinstance(each, (str, bytes)) else json.dumps(each, default=str) for each in array.ravel()]
    return found.reshape(array.shape)
