"""A model of MLflow: a folder with `MLmodel`, run by `mlflow.pyfunc`.

Bodies of `/invocations` are read and written by MLflow's own scoring server; tensors are columns of a data frame, or
arrays.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from geartrain.authoring.requests import JSON_TYPE, Request, Response, Tensors
from geartrain.backends.interface import BackendError
from geartrain.backends.libraries import require
from geartrain.domain.signature.types import DeclaredTensor
from geartrain.domain.tensors.tensor import VARIABLE
from geartrain.ipc.messages import BackendChoice
from geartrain.worker.errors import ClientError, describe_error
from geartrain.worker.loading.loader import LoadedRunner, LoadError
from geartrain.worker.loading.open_signature import any_output, whole

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
    if batching and batching.get("max_size") != 1:
        raise LoadError("take `batching` out of geartrain.yaml: a model of MLflow takes one request at a time")
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
    opened = whole(model.run, "any", "request", output=any_output(), inputs=model.inputs, outputs=model.outputs)
    return LoadedRunner(
        instance=model,
        run=model.run,
        setup=model.setup,
        setup_takes=frozenset(),
        healthcheck=None,
        is_async=False,
        is_generator=False,
        signature=opened.signature,
        max_concurrency=None,
        parameters=opened.parameters,
        compose=opened.compose,
        platform="mlflow",
    )


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

    def setup(self) -> None:
        """Load the model."""
        import mlflow.pyfunc

        self._model = mlflow.pyfunc.load_model(str(self._folder), model_config=self._options or None)

    def run(self, request: Request | Tensors) -> Response | Tensors:
        """Predict: a body of `/invocations`, or tensors."""
        from mlflow.exceptions import MlflowException

        try:
            if isinstance(request, Request):
                return self._invoke(request)
            taken = {name: value for name, value in request.parameters.items() if name in self._params}
            return _tensors_of(self._model.predict(self._data_of(request), params=taken or None))
        except RecursionError as error:
            raise ClientError("the body is nested too deeply") from error
        except MlflowException as error:
            status = error.get_http_status_code()
            if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            if isinstance(request, Tensors):
                raise ClientError(error.message) from error
            return Response({"error_code": error.error_code, "message": error.message}, status=status)

    # bodies

    def _invoke(self, request: Request) -> Response:
        """Answer a body. Raises `MlflowException`."""
        from mlflow.pyfunc import scoring_server

        kind = request.media_type or JSON_TYPE
        params, is_unified = None, False
        if kind == _CSV:
            data = scoring_server.parse_csv_input(io.StringIO(_text(request)), self._schema)
        elif kind == JSON_TYPE:
            parsed = scoring_server._parse_json_data(_text(request), self._model.metadata, self._schema)  # noqa: SLF001
            data, params, is_unified = parsed.data, parsed.params, parsed.is_unified_llm_input
        elif kind == _PARQUET:
            data = scoring_server.parse_parquet_input(io.BytesIO(request.body))
        else:
            types = ", ".join(scoring_server.CONTENT_TYPES)
            return Response(f"This predictor takes {types}, and not {kind}.", status=415)
        found = self._model.predict(data, params=params)
        text = io.StringIO()
        if is_unified:
            scoring_server.unwrapped_predictions_to_json(found, text)
        else:
            scoring_server.predictions_to_json(found, text)
        return Response(text.getvalue(), JSON_TYPE)

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
