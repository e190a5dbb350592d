"""scikit-learn, XGBoost, LightGBM and CatBoost: real files, and answers that equal the library's to the last bit."""

from __future__ import annotations

import importlib.util
import pickle
import sys
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_diabetes, load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC

from geartrain.domain.tensors.tensor import TensorSpec
from geartrain.ipc.messages import BackendChoice
from geartrain.worker.loading.backend_runner import load_backend
from geartrain.worker.loading.loader import LoadedRunner, LoadError

X, Y = load_iris(return_X_y=True)
NAMES = load_iris().target_names[Y]
ROWS = X[::13]


def load(backend: str, path: Path, **options: Any) -> LoadedRunner:
    return load_backend(BackendChoice(backend, str(path), options))


def said(backend: str, path: Path, **options: Any) -> str:
    with pytest.raises(LoadError) as caught:
        load(backend, path, **options)
    return str(caught.value)


def outputs(runner: LoadedRunner) -> dict[str, tuple[str, tuple[int, ...]]]:
    fields = runner.signature.output.type.fields
    return {field.name: (field.type.datatype, field.type.shape) for field in fields}


def same(found: Any, expected: Any) -> bool:
    """Whether two arrays are equal to the last bit; texts by value."""
    if np.asarray(found).dtype.kind in "USO":
        return bool(np.array_equal(np.asarray(found, object), np.asarray(expected, object)))
    return bool((found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes()))


def own_step(rows: Any) -> Any:
    return rows


def texts(*values: str) -> Any:
    array = np.empty(len(values), object)
    array[:] = [value.encode() for value in values]
    return array


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tabular")


# scikit-learn


@pytest.fixture(scope="module")
def classifier(folder: Path) -> tuple[Any, Path]:
    model = LogisticRegression(max_iter=500).fit(X, NAMES)
    joblib.dump(model, folder / "iris.joblib")
    return model, folder / "iris.joblib"


def test_a_classifier_answers_as_the_library_does(classifier: tuple[Any, Path]) -> None:
    model, path = classifier
    runner = load("sklearn", path, outputs=["predict", "predict_proba", "decision_function"], threads=1)
    assert runner.platform == "sklearn_joblib"
    assert runner.instance.inputs == (TensorSpec("input", "FP64", (-1, 4)),)
    assert outputs(runner) == {
        "predict": ("BYTES", (-1,)),
        "predict_proba": ("FP64", (-1, 3)),
        "decision_function": ("FP64", (-1, 3)),
    }
    assert runner.batching is not None
    found = runner.run(input=ROWS)
    for name, value in found.items():
        assert same(value, getattr(model, name)(ROWS))
    assert {name: value.shape for name, value in runner.run(input=ROWS[:0]).items()} == {
        "predict": (0,),
        "predict_proba": (0, 3),
        "decision_function": (0, 3),
    }
    runner.instance.close()


def test_the_usual_question_is_the_default(classifier: tuple[Any, Path], folder: Path) -> None:
    assert list(outputs(load("sklearn", classifier[1]))) == ["predict"]
    joblib.dump(StandardScaler().fit(X), folder / "scale.joblib")
    assert outputs(load("sklearn", folder / "scale.joblib")) == {"transform": ("FP64", (-1, 4))}
    assert said("sklearn", classifier[1], outputs=["transform"]).endswith(
        "`parameters.outputs` is 'transform'; write some of predict, predict_proba, decision_function"
    )


@pytest.mark.parametrize("suffix", [".pkl", ".skops"])
def test_pickles_and_skops_are_read_too(classifier: tuple[Any, Path], folder: Path, suffix: str) -> None:
    from skops import io

    model, path = classifier[0], folder / f"iris{suffix}"
    path.write_bytes(pickle.dumps(model)) if suffix == ".pkl" else io.dump(model, path)
    runner = load("sklearn", path)
    assert runner.platform == {".pkl": "sklearn_pickle", ".skops": "sklearn_skops"}[suffix]
    assert same(runner.run(input=ROWS)["predict"], model.predict(ROWS))


def test_skops_wants_to_know_whom_to_trust(folder: Path) -> None:
    from skops import io

    model = make_pipeline(FunctionTransformer(own_step), LinearRegression()).fit(X, Y)
    path = folder / "log.skops"
    io.dump(model, path)
    unknown = io.get_untrusted_types(file=path)
    assert unknown
    assert said("sklearn", path).endswith(
        f"if you trust them, write `trusted: [{', '.join(sorted(unknown))}]` below `parameters:` in geartrain.yaml"
    )
    runner = load("sklearn", path, trusted=unknown)
    assert same(runner.run(input=ROWS)["predict"], model.predict(ROWS))


def test_regressors_clusterers_and_single_precision(folder: Path) -> None:
    table, target = load_diabetes(return_X_y=True)
    several = LinearRegression().fit(table, np.stack([target, -target], axis=1))
    joblib.dump(several, folder / "several.joblib")
    runner = load("sklearn", folder / "several.joblib", datatype="FP32")
    assert (runner.instance.inputs[0].datatype, outputs(runner)) == ("FP32", {"predict": ("FP64", (-1, 2))})
    single = table[:5].astype(np.float32)
    assert same(runner.run(input=single)["predict"], several.predict(single))
    clusters = KMeans(3, n_init=1, random_state=0).fit(X)
    joblib.dump(clusters, folder / "clusters.joblib")
    runner = load("sklearn", folder / "clusters.joblib", outputs=["predict", "transform"])
    assert outputs(runner) == {"predict": ("INT32", (-1,)), "transform": ("FP64", (-1, 3))}
    assert same(runner.run(input=ROWS)["transform"], clusters.transform(ROWS))


def test_a_pipeline_that_begins_with_texts_takes_texts(folder: Path) -> None:
    model = make_pipeline(TfidfVectorizer(), MultinomialNB()).fit(["good day", "bad night"], ["yes", "no"])
    joblib.dump(model, folder / "texts.joblib")
    runner = load("sklearn", folder / "texts.joblib")
    assert runner.instance.inputs == (TensorSpec("input", "BYTES", (-1,)),)
    assert runner.run(input=texts("good", "night"))["predict"].tolist() == ["yes", "no"]
    with pytest.raises(ValueError, match="input 'input' is text, and its bytes are not valid UTF-8"):
        runner.run(input=np.array([b"\xff"], object))


def test_columns_of_several_types_make_a_table(folder: Path) -> None:
    import pandas as pd

    table = pd.DataFrame({"age": [1.0, 2.0, 3.0, 4.0], "city": ["Oslo", "Rome", "Oslo", "Rome"]})
    columns = ColumnTransformer(
        [("n", StandardScaler(), ["age"]), ("c", OneHotEncoder(sparse_output=True), ["city"])], sparse_threshold=1
    )
    model = make_pipeline(columns, LinearRegression()).fit(table, [1.0, 3.0, 2.0, 5.0])
    joblib.dump(model, folder / "columns.joblib")
    declared = [
        {"name": "age", "datatype": "FP64", "shape": [-1]},
        {"name": "city", "datatype": "BYTES", "shape": [-1]},
    ]
    runner = load("sklearn", folder / "columns.joblib", inputs=declared)
    assert outputs(runner) == {"predict": ("FP64", (-1,))}  # no made-up row will do: the city is not known
    found = runner.run(age=np.array([2.5, 4.0]), city=texts("Rome", "Oslo"))["predict"]
    assert same(found, model.predict(pd.DataFrame({"age": [2.5, 4.0], "city": ["Rome", "Oslo"]})))
    assert runner.batching is not None
    declared[0]["shape"] = [-1, 2]
    assert said("sklearn", folder / "columns.joblib", inputs=declared).endswith(
        "`parameters.inputs`: 'age' has the shape [-1, 2]; write [-1]: a column"
    )
    joblib.dump(columns.fit(table), folder / "sparse.joblib")
    runner = load("sklearn", folder / "sparse.joblib", inputs=[{**declared[0], "shape": [-1]}, declared[1]])
    assert runner.run(age=np.array([2.5]), city=texts("Rome"))["transform"].shape == (1, 3)


def test_the_classes_beside_a_pickle_are_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = folder / "own"
    place.mkdir()
    (place / "own_steps.py").write_text(
        "class Twice:\n    def __init__(self): self.by = 2\n    def transform(self, rows): return rows * self.by\n"
    )
    monkeypatch.syspath_prepend(str(place))
    joblib.dump(importlib.import_module("own_steps").Twice(), place / "twice.joblib")
    monkeypatch.undo()
    sys.modules.pop("own_steps")
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert load("sklearn", place / "twice.joblib").run(input=ROWS)["transform"].tolist() == (ROWS * 2).tolist()
    sys.modules.pop("own_steps")
    (folder / "twice.joblib").write_bytes((place / "twice.joblib").read_bytes())
    sys.path.remove(str(place))
    assert said("sklearn", folder / "twice.joblib").endswith(
        "it needs the module 'own_steps': install the package, or put own_steps.py beside the file"
    )


def test_what_is_no_estimator_is_told(folder: Path) -> None:
    joblib.dump({"weights": [1]}, folder / "dict.joblib")
    assert "it holds a dict, which has none of the methods predict, transform" in said(
        "sklearn", folder / "dict.joblib"
    )
    joblib.dump(LinearSVC, folder / "class.joblib")
    assert "which has none of the methods" in said("sklearn", folder / "class.joblib")


def test_threads_reach_the_estimators_inside(folder: Path) -> None:
    model = make_pipeline(StandardScaler(), RandomForestClassifier(5, n_jobs=-1, random_state=0)).fit(X, Y)
    joblib.dump(model, folder / "forest.joblib")
    runner = load("sklearn", folder / "forest.joblib", threads=1)
    assert runner.instance._estimator[-1].n_jobs == 1
    assert same(runner.run(input=ROWS)["predict"], model.predict(ROWS))
    runner.instance.close()
    assert said("sklearn", folder / "forest.joblib", threads=0).endswith(
        "`parameters.threads` is 0; write a whole number of at least 1"
    )


# XGBoost


@pytest.fixture(scope="module")
def xgboost() -> Any:
    return pytest.importorskip("xgboost")


@pytest.mark.parametrize("suffix", [".json", ".ubj"])
def test_an_estimator_of_xgboost_answers_as_itself(folder: Path, xgboost: Any, suffix: str) -> None:
    model = xgboost.XGBClassifier(n_estimators=4, max_depth=3).fit(X, Y)
    path = folder / f"iris{suffix}"
    model.save_model(path)
    runner = load("xgboost", path, outputs=["predict", "predict_proba", "margin"], threads=1)
    assert runner.platform == f"xgboost_{suffix[1:]}"
    assert runner.instance.inputs == (TensorSpec("input", "FP32", (-1, 4)),)
    assert outputs(runner) == {
        "predict": ("INT64", (-1,)),
        "predict_proba": ("FP32", (-1, 3)),
        "margin": ("FP32", (-1, 3)),
    }
    found = runner.run(input=ROWS.astype(np.float32))
    assert same(found["predict"], model.predict(ROWS))
    assert same(found["predict_proba"], model.predict_proba(ROWS))
    assert same(found["margin"], model.predict(ROWS, output_margin=True))
    plain = load("xgboost", path, api="booster").run(input=ROWS.astype(np.float32))["predict"]
    assert same(plain, model.get_booster().inplace_predict(ROWS))


@pytest.mark.parametrize("booster", ["gbtree", "gblinear"])
def test_a_booster_of_xgboost_answers_with_its_objective(folder: Path, xgboost: Any, booster: str) -> None:
    data = xgboost.DMatrix(X, Y > 0)
    settings = {"objective": "binary:logistic", "booster": booster, "nthread": 1}
    if booster == "gblinear":
        settings["updater"] = "coord_descent"
    model = xgboost.train(settings, data, 3)
    model.save_model(folder / f"{booster}.json")
    runner = load("xgboost", folder / f"{booster}.json", threads=1, outputs=["predict", "margin"])
    found = runner.run(input=ROWS.astype(np.float32))
    assert same(found["predict"], model.predict(xgboost.DMatrix(ROWS)))
    assert same(found["margin"], model.predict(xgboost.DMatrix(ROWS), output_margin=True))
    assert "no estimator of XGBoost has saved the file" in said("xgboost", folder / f"{booster}.json", api="estimator")


# LightGBM


def test_lightgbm_answers_as_its_booster(folder: Path) -> None:
    lightgbm = pytest.importorskip("lightgbm")
    model = lightgbm.LGBMClassifier(n_estimators=4, verbose=-1, num_threads=1).fit(X, Y)
    model.booster_.save_model(folder / "iris.txt")
    chosen = ["predict", "label", "raw_score", "leaf", "contributions"]
    runner = load("lightgbm", folder / "iris.txt", outputs=chosen, threads=1)
    assert (runner.platform, list(outputs(runner))) == ("lightgbm_text", chosen)
    assert runner.instance.inputs == (TensorSpec("input", "FP64", (-1, 4)),)
    found = runner.run(input=ROWS)
    assert same(found["predict"], model.predict_proba(ROWS))
    assert same(found["label"], model.predict(ROWS))
    assert same(found["raw_score"], model.predict(ROWS, raw_score=True))
    assert same(found["leaf"], model.predict(ROWS, pred_leaf=True))
    assert same(found["contributions"], model.predict(ROWS, pred_contrib=True))
    two = lightgbm.train({"objective": "binary", "verbose": -1, "num_threads": 1}, lightgbm.Dataset(X, Y > 0), 3)
    two.save_model(folder / "two.txt")
    found = load("lightgbm", folder / "two.txt", outputs=["predict", "label"], threads=1).run(input=ROWS)
    assert same(found["predict"], two.predict(ROWS))
    assert found["label"].tolist() == (Y[::13] > 0).astype(int).tolist()
    cut = folder / "cut.txt"
    cut.write_bytes((folder / "iris.txt").read_bytes()[:-2000])
    assert said("lightgbm", cut).startswith("cut.txt: it is no model of LightGBM, or it is cut (")


# CatBoost


def test_catboost_answers_as_the_library_does(folder: Path) -> None:
    catboost = pytest.importorskip("catboost")
    settings = {"iterations": 3, "verbose": 0, "thread_count": 1, "allow_writing_files": False}
    model = catboost.CatBoostClassifier(**settings).fit(X, NAMES)
    model.save_model(str(folder / "iris.cbm"))
    runner = load("catboost", folder / "iris.cbm", outputs=["predict", "predict_proba", "raw"], threads=1)
    assert outputs(runner)["predict"] == ("BYTES", (-1,))
    found = runner.run(input=ROWS)
    assert same(found["predict"], model.predict(ROWS).reshape(-1))
    assert same(found["predict_proba"], model.predict_proba(ROWS))
    assert same(found["raw"], model.predict(ROWS, prediction_type="RawFormulaVal"))
    mixed = catboost.CatBoostRegressor(**settings, cat_features=[1])
    mixed.fit([[1.0, "a"], [2.0, "b"], [3.0, "a"]], [1.0, 5.0, 2.0])
    mixed.save_model(str(folder / "mixed.cbm"))
    runner = load("catboost", folder / "mixed.cbm", threads=1)
    assert runner.instance.inputs == (TensorSpec("0", "FP64", (-1,)), TensorSpec("1", "BYTES", (-1,)))
    given = {"0": np.array([1.0, 2.0]), "1": texts("b", "a")}
    assert same(runner.run(**given)["predict"], mixed.predict([[1.0, "b"], [2.0, "a"]]))


# files that are wrong


@pytest.mark.parametrize("backend", ["sklearn", "xgboost", "lightgbm", "catboost"])
def test_a_foreign_or_missing_file_is_told_in_one_sentence(backend: str, tmp_path: Path) -> None:
    pytest.importorskip(backend)
    for name, content in {
        "empty": b"",
        "page": b"<!DOCTYPE html>",
        "pointer": b"version https://git-lfs.github.com",
    }.items():
        (tmp_path / name).write_bytes(content)
        sentence = said(backend, tmp_path / name)
        assert sentence.startswith(f"{name}: it is ")
        assert "\n" not in sentence
    assert said(backend, tmp_path / "gone").startswith("gone: it ")
    assert said(backend, tmp_path) == f"{tmp_path.name}: it is a folder, and a file is expected"


@pytest.mark.parametrize("part", [1, 100, 500])
def test_a_cut_file_is_told(part: int, classifier: tuple[Any, Path], tmp_path: Path) -> None:
    whole = classifier[1].read_bytes()
    (tmp_path / "cut.joblib").write_bytes(whole[: len(whole) * part // 1000])
    assert "it is no file of joblib or pickle, or it is cut" in said("sklearn", tmp_path / "cut.joblib")


@pytest.mark.parametrize(
    ("backend", "module"),
    [("sklearn", "sklearn"), ("xgboost", "xgboost"), ("lightgbm", "lightgbm"), ("catboost", "catboost")],
)
def test_a_library_that_is_not_installed_is_told_with_the_line(
    backend: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == module else real(name, *rest))
    (tmp_path / "model").write_bytes(b"")
    expected = f"model: {module} is not installed; install it with: pip install 'geartrain[{backend}]'"
    assert said(backend, tmp_path / "model") == expected
