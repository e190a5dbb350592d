"""Models of LightGBM, in its text format: always a Booster, since the file knows nothing of the estimator."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

from geartrain.backends.interface import BackendError, TensorSpec
from geartrain.backends.libraries import require
from geartrain.backends.tabular import Method, TabularBackend

_BINARY: Final = frozenset({"binary", "cross_entropy"})
_MULTICLASS: Final = frozenset({"multiclass", "multiclassova", "softmax"})
_END: Final = b"\nend of trees"
_HALF: Final = 0.5


class LightGbmBackend(TabularBackend):
    """A Booster. NaN stands for a value that is missing."""

    platform = "lightgbm_text"

    def open(self, threads: int | None) -> Mapping[str, Method]:
        """`predict` is that of the Booster, so probabilities of a classifier; `label` is the number of the class."""
        lightgbm = require("lightgbm", extra="lightgbm")
        self._check_whole()
        try:
            booster = self._booster = lightgbm.Booster(model_file=self.path)
        except (lightgbm.basic.LightGBMError, ValueError, OSError) as error:
            raise self.not_read(error, "model of LightGBM", b"tree\n") from error
        predict = booster.predict if threads is None else functools.partial(booster.predict, num_threads=threads)
        methods: dict[str, Method] = {"predict": predict}
        objective = str(booster.params.get("objective", "")).partition(" ")[0]
        if objective in _BINARY:
            methods["label"] = lambda table: (predict(table) > _HALF).astype("int64")
        elif objective in _MULTICLASS:
            methods["label"] = lambda table: predict(table).argmax(axis=1)
        return {
            **methods,
            "raw_score": functools.partial(predict, raw_score=True),
            "leaf": functools.partial(predict, pred_leaf=True),
            "contributions": functools.partial(predict, pred_contrib=True),
        }

    def features(self) -> tuple[TensorSpec, ...]:
        """A table of numbers."""
        return self.rows(self._booster.num_feature())

    def frame(self, columns: dict[str, Any]) -> Any:
        """Its own tables have no names either."""
        import numpy as np

        return np.column_stack(list(columns.values()))

    def _check_whole(self) -> None:
        """The library takes what it gets of a file that was cut: it answers from fewer trees, or crashes."""
        try:
            text = self.path.read_bytes()
        except OSError as error:
            raise BackendError(f"it cannot be read: {error.strerror}") from error
        parts = {_END: True, b"\nend of parameters": b"\nparameters:" in text}
        for end, is_expected in parts.items():
            if is_expected and end not in text:
                what = ValueError(f"there is no line `{end.decode().strip()}`")
                raise self.not_read(what, "model of LightGBM", b"tree\n", b"tree\r\n")
