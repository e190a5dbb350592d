"""Estimators of scikit-learn, and of what follows its interface, as joblib, pickle and skops write them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from geartrain.backends import options
from geartrain.backends.interface import BackendError, TensorSpec
from geartrain.backends.libraries import require
from geartrain.backends.tabular import INPUT, Method, TabularBackend, use_folder
from geartrain.domain.tensors.tensor import VARIABLE

_ARCHIVE: Final = b"PK\x03\x04"  # such a file is never unpickled: `--no-pickle` relies on it
METHODS: Final = ("predict", "transform", "predict_proba", "decision_function")


class SklearnBackend(TabularBackend):
    """An estimator: what it can be asked are its methods."""

    platform = "sklearn_joblib"
    options: ClassVar[frozenset[str]] = TabularBackend.options | {"trusted"}

    _limits: Any = None

    def open(self, threads: int | None) -> Mapping[str, Method]:
        """Loading a pickle runs code that is in it; a file of skops is data, and only that."""
        require("sklearn", extra="sklearn")
        self._estimator = self._skops() if self.begins(_ARCHIVE) else self._pickle()
        # A model that was trained on a DataFrame gets arrays here: nothing that a client could do about it.
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        methods = {name: getattr(self._estimator, name) for name in METHODS if hasattr(self._estimator, name)}
        if not methods or isinstance(self._estimator, type):
            kind = type(self._estimator).__name__
            raise BackendError(f"it holds a {kind}, which has none of the methods {', '.join(METHODS)}")
        if threads is not None:
            self._limit(threads)
        return methods

    def features(self) -> tuple[TensorSpec, ...]:
        """A table of numbers; of texts where the first step of a pipeline turns texts into numbers."""
        if self._takes_texts():
            return (TensorSpec(INPUT, "BYTES", (VARIABLE,)),)
        return self.rows(getattr(self._estimator, "n_features_in_", None))

    def likely(self, name: str) -> TensorSpec:
        """Labels are of the type of the classes; there is a probability for each."""
        kind = getattr(getattr(self._estimator, "classes_", None), "dtype", None)
        if name == "predict" and kind is not None and kind.kind in "USO":
            return TensorSpec(name, "BYTES", (VARIABLE,))
        return super().likely(name)

    def _pickle(self) -> Any:
        self.platform = "sklearn_pickle" if self.path.suffix.lower() in {".pkl", ".pickle"} else "sklearn_joblib"
        use_folder(self.path)
        joblib = require("joblib", extra="sklearn")
        try:
            return joblib.load(self.path)
        except ModuleNotFoundError as error:
            name = (error.name or "").partition(".")[0]
            raise BackendError(
                f"it needs the module {name!r}: install the package, or put {name}.py beside the file"
            ) from error
        except AttributeError as error:
            raise BackendError(
                f"it names a class that is not there: {error}; was it made by other versions?"
            ) from error
        except Exception as error:
            raise self.not_read(error, "file of joblib or pickle", b"\x80") from error

    def _skops(self) -> Any:
        self.platform = "sklearn_skops"
        skops = require("skops.io", extra="sklearn")
        trusted = options.texts(self.given, "trusted") or ()
        try:
            found = skops.get_untrusted_types(file=self.path)
            unknown = sorted(set(found) - set(trusted))
            if not unknown:
                return skops.load(self.path, trusted=list(trusted))
        except Exception as error:
            raise self.not_read(error, "file of skops", _ARCHIVE) from error
        listed = ", ".join(unknown)
        raise BackendError(
            f"it holds types that skops does not know to be safe: {listed}; if you trust them, "
            f"write `trusted: [{listed}]` below `parameters:` in geartrain.yaml"
        )

    def _takes_texts(self) -> bool:
        with contextlib.suppress(Exception):  # an estimator of others need not have tags
            from sklearn.utils import get_tags

            first = self._estimator
            while getattr(first, "steps", None):  # of a pipeline
                first = first.steps[0][1]
            tags = get_tags(first).input_tags
            return bool(tags.string and not tags.two_d_array)
        return False

    def _limit(self, threads: int) -> None:
        """Have the estimators in it, and the libraries below them, use so many threads."""
        if hasattr(self._estimator, "get_params"):
            names = [name for name in self._estimator.get_params() if name.rpartition("__")[2] == "n_jobs"]
            self._estimator.set_params(**dict.fromkeys(names, threads))
        self._limits = require("threadpoolctl", extra="sklearn").threadpool_limits(limits=threads)

    def close(self) -> None:
        """Lift the limit on threads."""
        if self._limits is not None:
            self._limits.restore_original_limits()
