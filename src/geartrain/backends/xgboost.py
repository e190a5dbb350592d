"""Models of XGBoost, in its JSON and in UBJSON.

A file that the estimators of XGBoost have saved says so, and is asked as the estimator: `predict` of a classifier gives
labels. Any other is a Booster, whose `predict` gives what its objective says.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from geartrain.backends import options
from geartrain.backends.interface import BackendError, TensorSpec
from geartrain.backends.libraries import require
from geartrain.backends.tabular import Method, TabularBackend

_ESTIMATORS: Final = {"classifier": "XGBClassifier", "regressor": "XGBRegressor", "ranker": "XGBRanker"}
_APIS: Final = ("estimator", "booster")


class XgBoostBackend(TabularBackend):
    """An estimator of XGBoost, or a Booster. NaN stands for a value that is missing."""

    platform = "xgboost_json"
    default_datatype = "FP32"
    options: ClassVar[frozenset[str]] = TabularBackend.options | {"api"}

    def open(self, threads: int | None) -> Mapping[str, Method]:
        """Choose by what the file says of itself, or as `api` says."""
        xgboost = require("xgboost", extra="xgboost")
        if self.path.suffix.lower() == ".ubj":
            self.platform = "xgboost_ubj"
        try:
            self._booster = xgboost.Booster(model_file=self.path)
        except (xgboost.core.XGBoostError, ValueError, OSError) as error:
            raise self.not_read(error, "model of XGBoost", b"{") from error
        api = options.text(self.given, "api", choices=_APIS)
        kind = _estimator_type(self._booster)
        if api == "estimator" and kind is None:
            raise BackendError("`parameters.api` is estimator, and no estimator of XGBoost has saved the file")
        if kind is None or api == "booster":
            return self._as_booster(xgboost, threads)
        require("sklearn", extra="xgboost")
        estimator = getattr(xgboost, _ESTIMATORS[kind])(n_jobs=threads)
        estimator.load_model(self.path)
        methods: dict[str, Method] = {"predict": estimator.predict}
        if kind == "classifier":
            methods["predict_proba"] = estimator.predict_proba
        return {**methods, "margin": functools.partial(estimator.predict, output_margin=True)}

    def features(self) -> tuple[TensorSpec, ...]:
        """A table of numbers."""
        return self.rows(self._booster.num_features())

    def _as_booster(self, xgboost: Any, threads: int | None) -> Mapping[str, Method]:
        if threads is not None:
            self._booster.set_param({"nthread": threads})
        booster = self._booster
        config = json.loads(booster.save_config())
        if config["learner"]["gradient_booster"]["name"] == "gblinear":  # it cannot do without a DMatrix
            return {
                "predict": lambda table: booster.predict(xgboost.DMatrix(table)),
                "margin": lambda table: booster.predict(xgboost.DMatrix(table), output_margin=True),
            }
        return {
            "predict": booster.inplace_predict,
            "margin": functools.partial(booster.inplace_predict, predict_type="margin"),
        }


def _estimator_type(booster: Any) -> str | None:
    try:
        kind = json.loads(booster.attr("scikit_learn") or "{}").get("_estimator_type")
    except (ValueError, AttributeError):
        return None
    return kind if kind in _ESTIMATORS else None
