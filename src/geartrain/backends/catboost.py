"""Models of CatBoost, in its own format."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

from geartrain.backends.interface import BackendError, TensorSpec
from geartrain.backends.libraries import require
from geartrain.backends.tabular import Method, TabularBackend, one_column
from geartrain.domain.tensors.tensor import VARIABLE

_MAGIC: Final = b"CBM1"


class CatBoostBackend(TabularBackend):
    """A classifier, if the file knows of classes, or a regressor. NaN stands for a value that is missing."""

    platform = "catboost_cbm"

    def open(self, threads: int | None) -> Mapping[str, Method]:
        """`predict` gives the labels of a classifier, and the values of a regressor."""
        catboost = require("catboost", extra="catboost")
        model = self._model = catboost.CatBoost()
        try:
            if not self.begins(_MAGIC):  # the library takes other formats too, by what it is told
                raise ValueError("it does not begin with CBM1")
            model.load_model(str(self.path))
        except (catboost.CatBoostError, ValueError, OSError) as error:
            raise self.not_read(error, "model of CatBoost", _MAGIC) from error
        ask = functools.partial(model.predict, thread_count=-1 if threads is None else threads)
        raw = functools.partial(ask, prediction_type="RawFormulaVal")
        if not len(model.classes_):
            return {"predict": lambda table: one_column(ask(table))} | {"raw": raw}
        return {
            "predict": lambda table: one_column(ask(table, prediction_type="Class")),
            "predict_proba": functools.partial(ask, prediction_type="Probability"),
            "raw": raw,
        }

    def features(self) -> tuple[TensorSpec, ...]:
        """A table of numbers; a column for each feature where some are categories or texts."""
        names = self._model.feature_names_
        texts = {*self._model.get_cat_feature_indices(), *self._model.get_text_feature_indices()}
        if self._model.get_embedding_feature_indices():
            raise BackendError("it takes embeddings as features, which are not supported: write a run.py for it")
        if not texts:
            return self.rows(len(names))
        kinds = ["BYTES" if index in texts else "FP64" for index in range(len(names))]
        return tuple(TensorSpec(name, kind, (VARIABLE,)) for name, kind in zip(names, kinds, strict=True))

    def frame(self, columns: dict[str, Any]) -> Any:
        """A table of objects: numbers, and texts for categories."""
        import numpy as np

        table = np.empty((len(next(iter(columns.values()))), len(columns)), object)
        for index, column in enumerate(columns.values()):
            table[:, index] = column
        return table
