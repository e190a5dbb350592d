"""What the variables mean, and which of their sources counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from geartrain.domain.predictions.events import DEFAULT_CAPACITY
from geartrain.project.checks import check_config, error
from geartrain.project.config import read_config
from geartrain.project.errors import ProjectError
from geartrain.project.repository import Repository
from geartrain.project.settings import read_settings
from geartrain.project.source import ModelSource, find_model
from geartrain.project.variables import (
    DEFAULT_STREAM_HISTORY,
    DEFAULT_WEBHOOK_INTERVAL,
    Variables,
    resolve,
)
from geartrain.server import ServeOptions, WebhookOptions
from geartrain.service.models.deployment import Limits
from geartrain.service.webhooks import DEFAULT_INTERVAL

EVERY = {
    "COG_SETUP_TIMEOUT": ("30", "setup_timeout", 30.0),
    "COG_WEIGHTS": ("weights.bin", "weights", "weights.bin"),
    "COG_MAX_CONCURRENCY": ("4", "max_concurrency", 4),
    "COG_STREAM_HISTORY_CAPACITY": ("16", "stream_history", 16),
    "COG_THROTTLE_RESPONSE_INTERVAL": ("2.5", "webhook_interval", 2.5),
    "WEBHOOK_AUTH_TOKEN": ("t0ken", "webhook_token", "t0ken"),
    "COG_USER_AGENT": ("mine/1", "user_agent", "mine/1"),
    "PORT": ("8123", "port", 8123),
    "COG_LOG_LEVEL": ("debug", "log_level", "debug"),
    "RUST_LOG": ("warn,coglet=error", "log_level", "error"),
    "LOG_FORMAT": ("console", "log_format", "console"),
}
OTHER = {
    "COG_SETUP_TIMEOUT": "60",
    "COG_WEIGHTS": "other.bin",
    "COG_MAX_CONCURRENCY": "5",
    "COG_STREAM_HISTORY_CAPACITY": "17",
    "COG_THROTTLE_RESPONSE_INTERVAL": "3.5",
    "WEBHOOK_AUTH_TOKEN": "other",
    "COG_USER_AGENT": "other/1",
    "PORT": "8124",
    "COG_LOG_LEVEL": "off",
    "RUST_LOG": "off",
    "LOG_FORMAT": "json",
}


def write(folder: Path, cog_yaml: str = "", settings: str = "") -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "run.py").write_text("class Runner:\n    async def run(self) -> str: ...\n")
    (folder / "cog.yaml").write_text(cog_yaml)
    (folder / "geartrain.yaml").write_text(settings)
    return folder


def found(folder: Path, **environ: str) -> ModelSource:
    return find_model(str(folder), environ=environ)


# the layers


@pytest.mark.parametrize("name", EVERY)
def test_c1_variable_of_cog_yaml_reaches_the_server(tmp_path: Path, name: str) -> None:
    text, field, value = EVERY[name]
    source = found(write(tmp_path, f"environment: ['{name}={text}']"))
    assert getattr(source.variables, field) == value
    assert [each.partition(":")[0] for each in source.variables.origins.values()] == ["cog.yaml environment"]
    assert source.environment == {name: text}  # the worker has it as before


@pytest.mark.parametrize("name", EVERY)
def test_c1_environment_comes_before_cog_yaml(tmp_path: Path, name: str) -> None:
    text, field, value = EVERY[name]
    source = found(write(tmp_path, f"environment: ['{name}={OTHER[name]}', OTHER=1]"), **{name: text})
    assert getattr(source.variables, field) == value
    assert [each.partition(":")[0] for each in source.variables.origins.values()] == ["environment"]
    assert source.environment == {"OTHER": "1"}  # so that the worker has the value of the environment too


@pytest.mark.parametrize("name", EVERY)
def test_c1_empty_variable_is_not_set(tmp_path: Path, name: str) -> None:
    text, field, value = EVERY[name]
    source = found(write(tmp_path, f"environment: ['{name}={text}']"), **{name: " "})
    assert getattr(source.variables, field) == value
    assert found(write(tmp_path, f"environment: ['{name}=']")).variables == Variables()


def test_settings_of_geartrain_come_before_cog_yaml(tmp_path: Path) -> None:
    folder = write(tmp_path, "environment: [COG_SETUP_TIMEOUT=1, COG_WEIGHTS=w]", "environment: [COG_SETUP_TIMEOUT=2]")
    source = found(folder)
    assert (source.variables.setup_timeout, source.variables.weights) == (2, "w")
    assert source.variables.origins == {
        "COG_SETUP_TIMEOUT": "geartrain.yaml environment",
        "COG_WEIGHTS": "cog.yaml environment",
    }
    assert source.environment == {"COG_SETUP_TIMEOUT": "2", "COG_WEIGHTS": "w"}


@pytest.mark.parametrize(
    ("environ", "slots", "section", "variable", "expected"),
    [
        ("5", "4", "3", "2", (5, "environment")),
        ("", "4", "3", "2", (4, "geartrain.yaml slots")),
        ("", "", "3", "2", (3, "cog.yaml concurrency.max")),
        ("many", "", "3", "2", (3, "cog.yaml concurrency.max")),
        ("", "", "", "2", (2, "cog.yaml environment")),
        ("0", "", "", "2", (2, "cog.yaml environment")),
        ("", "", "", "", (None, None)),
    ],
)
def test_c1_concurrency_is_said_in_four_places(
    tmp_path: Path, environ: str, slots: str, section: str, variable: str, expected: tuple[int | None, str | None]
) -> None:
    lines = [f"concurrency: {{max: {section}}}"] * bool(section)
    lines += [f"environment: [COG_MAX_CONCURRENCY={variable}]"] * bool(variable)
    folder = write(tmp_path, "\n".join(lines), f"slots: {slots}" if slots else "")
    source = found(folder, COG_MAX_CONCURRENCY=environ)
    assert (source.max_concurrency, source.variables.origins.get("COG_MAX_CONCURRENCY")) == expected


def test_c1_level_of_the_environment_comes_before_rust_log_of_cog_yaml(tmp_path: Path) -> None:
    folder = write(tmp_path, "environment: [RUST_LOG=debug]")
    assert found(folder, COG_LOG_LEVEL="warn").variables.log_level == "warn"


def test_c1_options_come_before_cog_yaml(tmp_path: Path) -> None:
    names = ("COG_SETUP_TIMEOUT", "COG_STREAM_HISTORY_CAPACITY", "COG_THROTTLE_RESPONSE_INTERVAL", "WEBHOOK_AUTH_TOKEN")
    source = found(write(tmp_path, "environment:\n" + "".join(f"- {name}={EVERY[name][0]}\n" for name in names)))
    assert ServeOptions(source=source).variables_of(source) == source.variables
    webhooks = WebhookOptions(interval=0.0, token="given")
    given = ServeOptions(source=source, setup_timeout=5.0, stream_history=0, webhooks=webhooks).variables_of(source)
    assert (given.setup_timeout, given.stream_history) == (5, 0)
    assert (given.webhook_interval, given.webhook_token) == (0, "given")
    assert ServeOptions(source=source, setup_timeout=0.0).variables_of(source).setup_timeout is None


@pytest.mark.parametrize(
    ("given", "own", "expected"),
    [
        (None, "", None),
        (5.0, "", 5.0),
        (5.0, "timeout: 90", 90.0),
        (None, "timeout: 90", 90.0),
        (5.0, "timeout: 0", None),
    ],
)
def test_limit_of_a_run_is_the_models_own_or_that_of_the_option(
    tmp_path: Path, given: float | None, own: str, expected: float | None
) -> None:
    folder = write(tmp_path, "run: run.py:Runner\ntrain: run.py:Runner", f"priority_levels: 2\n{own}")
    source = found(folder)
    options = ServeOptions(source=source, limits=Limits(queue=3, run_timeout=given))
    assert options.limits_of(source) == Limits(queue=3, run_timeout=expected, priorities=source.priorities)
    training = source.training()
    assert training is not None
    assert options.limits_of(training) == Limits(queue=3)


def test_c1_models_of_a_repository_have_their_own(tmp_path: Path) -> None:
    write(tmp_path / "cats", "environment: [COG_SETUP_TIMEOUT=1, COG_WEIGHTS=cats]")
    write(tmp_path / "dogs", "environment: [COG_SETUP_TIMEOUT=2]")
    repository = Repository(tmp_path, environ={"COG_USER_AGENT": "all/1"})
    sources = [repository.read(name).versions["1"] for name in ("cats", "dogs")]
    said = [source.variables for source in sources if isinstance(source, ModelSource)]
    assert [(each.setup_timeout, each.weights, each.user_agent) for each in said] == [
        (1, "cats", "all/1"),
        (2, None, "all/1"),
    ]


def test_c1_runner_and_training_named_by_cog_yamls_environment(tmp_path: Path) -> None:
    text = "environment: [COG_PREDICT_TYPE_STUB=cats.py:Tom, COG_TRAIN_TYPE_STUB=cats.py:train]"
    folder = write(tmp_path, text)
    with pytest.raises(ProjectError, match=r"cog.yaml: `environment`: COG_PREDICT_TYPE_STUB names cats.py, and there"):
        found(folder)
    (folder / "cats.py").write_text("class Tom: ...\ndef train() -> str: ...\n")
    source = found(folder)
    assert (source.runner, source.train) == ("cats.py:Tom", "cats.py:train")
    assert found(write(tmp_path, f"run: run.py\n{text}")).runner == "run.py"  # a key of its own comes first


# the values


def test_defaults_are_those_of_the_service() -> None:
    assert resolve({}) == (Variables(), ())
    assert DEFAULT_STREAM_HISTORY == DEFAULT_CAPACITY
    assert DEFAULT_WEBHOOK_INTERVAL == DEFAULT_INTERVAL


@pytest.mark.parametrize(
    ("text", "seconds", "warned"),
    [("", 0.5, False), ("2", 2, False), (" 0.25 ", 0.25, False), ("0", 0, False), ("-1", 0.5, True), ("x", 0.5, True)],
)
def test_webhook_interval(text: str, seconds: float, warned: bool) -> None:
    variables, warnings = resolve({"COG_THROTTLE_RESPONSE_INTERVAL": text})
    assert (variables.webhook_interval, bool(warnings)) == (seconds, warned)


def test_webhook_token() -> None:
    assert resolve({"WEBHOOK_AUTH_TOKEN": " t0ken\n"})[0].webhook_token == "t0ken"
    for text in ("two\nlines", "é"):
        variables, (warning,) = resolve({"WEBHOOK_AUTH_TOKEN": text})
        assert variables.webhook_token is None
        assert warning == "WEBHOOK_AUTH_TOKEN is passed over: it has characters that a header cannot hold"


WRONG = [
    ("COG_SETUP_TIMEOUT", "soon", "it is no number of seconds"),
    ("COG_SETUP_TIMEOUT", "nan", "it is no number of seconds"),
    ("COG_MAX_CONCURRENCY", "0", "it is not a whole number of at least 1"),
    ("COG_STREAM_HISTORY_CAPACITY", "-1", "it is no number of events"),
    ("COG_STREAM_HISTORY_CAPACITY", "9" * 5000, "it is no number of events"),
    ("COG_THROTTLE_RESPONSE_INTERVAL", "-1", "it is no number of seconds"),
    ("COG_USER_AGENT", "é", "it has characters that a header cannot hold"),
]


@pytest.mark.parametrize(("name", "text", "fault"), WRONG)
def test_wrong_variable_of_the_environment_is_passed_over(tmp_path: Path, name: str, text: str, fault: str) -> None:
    right, field, value = EVERY[name]
    source = found(write(tmp_path, f"environment: ['{name}={right}']"), **{name: text})
    assert source.warnings == (f"{name}={text} is passed over: {fault}",)
    assert getattr(source.variables, field) == value


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        *WRONG,
        ("COG_LOG_LEVEL", "loud", "it is no log level"),
        ("LOG_FORMAT", "xml", "it is no log format"),
        ("PORT", "70000", "it is no port"),
    ],
)
def test_c1_wrong_variable_of_a_file_is_an_error(tmp_path: Path, name: str, text: str, fault: str) -> None:
    folder = write(tmp_path, f"environment:\n- OTHER=1\n- '{name}={text}'")
    with pytest.raises(ProjectError) as caught:
        found(folder)
    start, _, fix = caught.value.message.partition("; ")
    assert start == f"{folder}/cog.yaml: `environment[1]` sets {name}={text}: {fault}"
    assert fix.startswith("write ")
    with pytest.raises(ProjectError, match=rf"geartrain.yaml: `environment.{name}` sets {name}="):
        read_settings(write(tmp_path, "", f"environment: {{{name}: '{text}'}}"))


def test_c1_wrong_secret_of_a_file_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match="sets WEBHOOK_AUTH_TOKEN: it has characters") as caught:
        read_config(write(tmp_path, "environment: ['WEBHOOK_AUTH_TOKEN=sécret']"))
    assert "sécret" not in caught.value.message


# for a person


def test_c1_doctor_finds_a_wrong_variable_with_its_line(tmp_path: Path) -> None:
    assert check_config(write(tmp_path, "run: run.py\nenvironment: [COG_SETUP_TIMEOUT=soon]")) == [
        error(
            "cog.yaml:2: `environment[0]` sets COG_SETUP_TIMEOUT=soon: it is no number of seconds",
            "write for example COG_SETUP_TIMEOUT=300, or 0 for no limit",
        )
    ]


def test_description_has_each_value_and_its_origin(tmp_path: Path) -> None:
    text = "concurrency: {max: 3}\nenvironment: [COG_SETUP_TIMEOUT=90, WEBHOOK_AUTH_TOKEN=s3cret, COG_WEIGHTS=w]"
    assert found(write(tmp_path, text), COG_WEIGHTS="w2", RUST_LOG="warn").variables.describe() == [
        "COG_LOG_LEVEL: warn (environment: RUST_LOG)",
        "COG_MAX_CONCURRENCY: 3 (cog.yaml concurrency.max)",
        "COG_SETUP_TIMEOUT: 90 s (cog.yaml environment)",
        "COG_STREAM_HISTORY_CAPACITY: 1024 events (default)",
        "COG_THROTTLE_RESPONSE_INTERVAL: 0.5 s (default)",
        "COG_USER_AGENT: geartrain (default)",
        "COG_WEIGHTS: w2 (environment)",
        "GEARTRAIN_STORE: none (default)",
        "GEARTRAIN_STORE_KEY_FILE: none (default)",
        "LOG_FORMAT: console on a terminal, else json (default)",
        "PORT: 5000 (default)",
        "WEBHOOK_AUTH_TOKEN: set (cog.yaml environment)",
    ]
    assert "s3cret" not in repr(found(write(tmp_path, text)).variables)
