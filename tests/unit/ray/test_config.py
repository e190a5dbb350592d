"""The config of Serve that `geartrain deploy ray` sends, its options, and what is wrong with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from geartrain.platforms.manifest import plain, write_yaml
from geartrain.project.errors import ProjectError
from geartrain.ray.config import ApplicationSpec, merged, name_of, serve_config
from geartrain.ray.options import Scale, absolute, check_options, read_scale


def test_the_config_that_is_printed_is_the_one_that_is_sent() -> None:
    config = serve_config(ApplicationSpec(models="s3://bucket/models", name="all", user_config={"revision": "2"}))
    assert yaml.safe_load(write_yaml([config])) == plain(config)


def test_a_range_follows_the_queue_and_a_number_does_not() -> None:
    fixed, scaled = (
        plain(serve_config(ApplicationSpec(models="m", name="m", scale=scale)))["applications"][0]["deployments"][0]
        for scale in (Scale(2, 2), Scale(1, 4))
    )
    assert fixed["num_replicas"] == 2
    assert "autoscaling_config" not in fixed
    assert "num_replicas" not in scaled
    assert scaled["autoscaling_config"] == {
        "min_replicas": 1,
        "max_replicas": 4,
        "upscale_delay_s": 30.0,
        "downscale_delay_s": 600.0,
        "policy": {"policy_function": "geartrain.ray.scaling:by_queue"},
    }


@pytest.mark.parametrize(("text", "scale"), [("3", (3, 3)), (2, (2, 2)), ("1:4", (1, 4)), ("4:4", (4, 4))])
def test_numbers_of_replicas_are_read(text: str | int, scale: tuple[int, int]) -> None:
    assert read_scale(text) == scale


@pytest.mark.parametrize("text", ["", "0", "0:4", "4:1", "1:", ":2", "-1", "one", "1:2:3", "99999"])
def test_what_is_no_number_of_replicas_is_refused(text: str) -> None:
    with pytest.raises(ProjectError, match="MIN:MAX"):
        read_scale(text)


@pytest.mark.parametrize("option", ["shared_memory", "wait_ready", "quux"])
def test_options_that_mean_nothing_on_ray_are_refused(option: str) -> None:
    with pytest.raises(ProjectError, match=f"knows no option {option}; it has .*keys.*queue"):
        check_options({option: True})


def test_replicas_do_not_share_a_file_of_sqlite() -> None:
    options = {"store": "sqlite:////srv/predictions.db"}
    check_options(options)
    with pytest.raises(ProjectError, match="up to 2 replicas; write postgres://"):
        check_options(options, Scale(1, 2))


@pytest.mark.parametrize("store", [{}, {"store": "sqlite:////srv/predictions.db"}])
def test_replicas_hand_over_only_what_a_common_store_has(store: dict[str, str]) -> None:
    token = {"cluster_token_file": "/srv/token"}
    with pytest.raises(ProjectError, match=r"cluster_token_file needs .* store=postgres://"):
        check_options({**token, **store})
    check_options({**token, "store": "postgres://geartrain@db/predictions"}, Scale(1, 2))


@pytest.mark.parametrize("wrong", [{"name": "a b"}, {"name": ""}, {"route_prefix": "x"}, {"route_prefix": "/x/"}])
def test_what_serve_would_refuse_is_refused_before(wrong: dict[str, Any]) -> None:
    with pytest.raises(ProjectError):
        serve_config(ApplicationSpec(**{"models": "m", "name": "m", **wrong}))


@pytest.mark.parametrize(
    ("models", "name"),
    [
        ("/srv/models/", "models"),
        ("digits/run.py:Runner", "run-py"),
        ("s3://bucket/all of them", "all-of-them"),
        ("hf://org/name", "name"),
        ("/", "geartrain"),
    ],
)
def test_an_application_is_named_by_its_models(models: str, name: str) -> None:
    assert name_of(models) == name


def test_paths_are_made_absolute_and_references_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.py").touch()
    monkeypatch.chdir(tmp_path)
    assert absolute("run.py:Runner") == f"{tmp_path}/run.py:Runner"
    assert absolute(tmp_path) == str(tmp_path)
    for elsewhere in ("s3://bucket/m", "package.module:name", "/only/on/the/nodes"):
        assert absolute(elsewhere) == elsewhere


def test_other_applications_stay() -> None:
    config = {"applications": [{"name": "mine", "args": 2}], "proxy_location": "EveryNode"}
    deployed: list[dict[str, Any]] = [{"name": "other"}, {"name": "mine", "args": 1}]
    found = merged(config, deployed)
    assert found["applications"] == [{"name": "other"}, {"name": "mine", "args": 2}]


def test_the_command_prints_without_ray() -> None:
    """Also where ray is installed, the config is written without it: it takes seconds to import."""
    program = "import sys; from geartrain.cli.main import main; sys.modules['ray'] = None; main()"
    command = [sys.executable, "-c", program, "deploy", "ray", "examples", "--option", "access_log=off", "--dry-run"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3], timeout=200
    )
    [application] = yaml.safe_load(done.stdout)["applications"]
    assert application["args"] == {"models": str(Path(__file__).parents[3] / "examples"), "access_log": "off"}
    done = subprocess.run([*command[:-1]], capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 1
    assert "pip install 'geartrain[ray]'" in done.stderr
