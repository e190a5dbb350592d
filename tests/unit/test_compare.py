"""`benchmarks/compare.py`: the arithmetic of its table, what its arguments mean, and what it says to wrong ones."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
GIT = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@contextlib.contextmanager
def scripts() -> Iterator[None]:
    """Let the scripts be imported, as when one of them runs. Other tests have modules of their own with such names."""
    before = set(sys.modules)
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == BENCHMARKS:
            del sys.modules[name]


with scripts():
    import checkouts
    import compare
    import ratios
    import servers


def rate(name: str, old: list[float], new: list[float]) -> ratios.Series:
    return ratios.Series(ratios.Quantity(name=name, unit="answers/s", kind="rate"), old, new)


def cost(name: str, old: list[float], new: list[float]) -> ratios.Series:
    return ratios.Series(ratios.Quantity(name=name, unit="s", kind="cost"), old, new)


def detail(name: str, old: list[float], new: list[float]) -> ratios.Series:
    return ratios.Series(ratios.Quantity(name=name, unit="µs/answer", kind="detail"), old, new)


# the arithmetic


def test_sides_take_turns_at_being_first() -> None:
    turns = [side for number in range(4) for side in ratios.order(number)]
    assert turns == ["old", "new", "new", "old", "old", "new", "new", "old"]


def test_ratio_of_a_rate_is_new_by_old_and_of_a_cost_old_by_new() -> None:
    assert rate("r", [100, 200], [150, 200]).ratios == [1.5, 1.0]
    assert cost("c", [1.0, 2.0], [0.5, 4.0]).ratios == [2.0, 0.5]
    assert detail("d", [10.0], [20.0]).ratios == [0.5]


def test_ratio_is_the_median_of_the_rounds_and_not_the_ratio_of_the_medians() -> None:
    series = rate("r", [100, 1000, 10], [110, 900, 20])
    assert series.ratio == pytest.approx(1.1)


def test_table_has_medians_ratio_and_range_of_each_quantity_and_the_mean_of_the_rates() -> None:
    rows = ratios.rows(
        [
            rate("fast", [1000, 3000, 2000], [4000, 12000, 6000]),
            detail("fast, CPU", [10, 10, 10], [5, 5, 5]),
            rate("slow", [50], [50]),
            cost("start", [0.5], [0.4]),
        ]
    )
    assert rows == [
        ["fast", "answers/s", "2,000", "6,000", "4.000 ×", "3.000 to 4.000"],
        ["fast, CPU", "µs/answer", "10.0", "5.000", "2.000 ×", "2.000 to 2.000"],
        ["slow", "answers/s", "50.0", "50.0", "1.000 ×", "1.000 to 1.000"],
        ["start", "s", "0.500", "0.400", "1.250 ×", "1.250 to 1.250"],
        ["geometric mean of the rates", "", "", "", "2.000 ×", ""],
    ]
    assert {len(row) for row in rows} == {len(ratios.HEAD)}


def test_table_without_a_rate_has_no_mean() -> None:
    assert [row[0] for row in ratios.rows([cost("start", [1.0], [1.0])])] == ["start"]


def test_worse_is_a_mean_below_the_limit() -> None:
    series = [rate("a", [100, 100, 100], [80, 90, 100]), rate("b", [100, 100, 100], [100, 100, 100])]
    assert ratios.shortfalls(series, 0.94) == []  # the square root of 0.9 is above
    assert ratios.shortfalls(series, 0.95) == ["The geometric mean of the rates is 0.949, below 0.95."]


def test_worse_is_a_rate_or_a_cost_below_the_limit_in_every_round() -> None:
    better = rate("a", [100, 100], [200, 200])
    assert ratios.shortfalls([better, rate("b", [100, 100], [50, 98])], 0.97) == []
    assert ratios.shortfalls([better, rate("b", [100, 100], [50, 96])], 0.97) == [
        "b was below 0.97 in every round, 0.960 at best."
    ]
    assert ratios.shortfalls([cost("start", [1.0, 1.0], [2.0, 1.25])], 0.97) == [
        "start was below 0.97 in every round, 0.800 at best."
    ]
    assert ratios.shortfalls([detail("CPU", [1.0], [2.0])], 0.97) == []


def test_file_holds_every_value() -> None:
    data = json.loads(json.dumps(ratios.as_json([rate("a", [100, 50], [200, 50])])))
    quantity = {"name": "a", "unit": "answers/s", "kind": "rate", "old": [100, 50], "new": [200, 50]}
    assert data["quantities"] == [{**quantity, "ratios": [2.0, 1.0], "ratio": 1.5}]
    assert data["geometric_mean_of_rates"] == pytest.approx(1.5)


# rounds


class Fake:
    """Measures without a server: notes whose turn it is, and fails from a turn on."""

    def __init__(self, fails_from: int = 99) -> None:
        self.turns: list[str] = []
        self._fails_from = fails_from

    def take(self, measure: compare.Measure, server: servers.Server, seconds: int) -> compare.Values:
        self.turns.append(server.name)
        if len(self.turns) >= self._fails_from:
            raise RuntimeError("no answer")
        return {ratios.Quantity(name=measure.name, unit="answers/s", kind="rate"): float(len(self.turns))}


def measure(name: str, fake: Fake) -> compare.Measure:
    return compare.Measure(name=name, about="", model="noop", take=fake.take, loading=compare.predictions(1))


def contest(tmp_path: Path) -> compare.Contest:
    old, new = (checkouts.Checkout(name, "", tmp_path, tmp_path) for name in ("OLD", "NEW"))
    return compare.Contest(sides={"old": old, "new": new}, models=tmp_path)


def test_rounds_alternate_and_keep_each_value_on_its_side(tmp_path: Path) -> None:
    fake, ours = Fake(), contest(tmp_path)
    for number in range(2):
        ours.round(number, [measure("a", fake)], seconds=1)
    assert fake.turns == ["OLD", "NEW", "NEW", "OLD"]
    (series,) = ours.series([measure("a", fake)])
    assert (series.old, series.new) == ([1.0, 4.0], [2.0, 3.0])


def test_failed_measure_is_named_left_out_and_not_tried_again(tmp_path: Path) -> None:
    good, bad, ours = Fake(), Fake(fails_from=3), contest(tmp_path)
    measures = [measure("good", good), measure("bad", bad)]
    for number in range(3):
        ours.round(number, measures, seconds=1)
    assert len(bad.turns) == 3
    assert ours.failed == {"bad": "NEW, round 2: no answer"}
    assert [series.quantity.name for series in ours.series(measures)] == ["good"]


@pytest.mark.parametrize(
    ("rate_of_new", "fails_from", "least", "status"),
    [(50.0, 99, None, 0), (98.0, 99, 0.97, 0), (96.0, 99, 0.97, 3), (98.0, 1, None, 1), (96.0, 1, 0.97, 1)],
)
def test_status_says_what_came_of_it(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    rate_of_new: float,
    fails_from: int,
    least: float | None,
    status: int,
) -> None:
    ours, measures = contest(tmp_path), [measure("a", Fake()), measure("b", Fake(fails_from))]
    ours.round(0, [measures[1]], seconds=1)
    series = rate("a", [100.0], [rate_of_new])
    ours.measured.clear()
    ours.measured[series.quantity] = series
    file = tmp_path / "values.json"
    options = argparse.Namespace(rounds=1, seconds=1, fail_below=least, json=file)
    assert compare.present(ours, measures, options) == status
    printed = capsys.readouterr().out
    assert f"| a | answers/s | 100 | {rate_of_new:.1f} |" in printed
    assert ("b could not be measured. OLD, round 1: no answer" in printed) == (status == 1)
    assert ("below 0.97 in every round" in printed) == (rate_of_new == 96.0)
    data = json.loads(file.read_text())
    assert data["quantities"][0]["new"] == [rate_of_new]
    assert data["failed"] == ours.failed
    assert data["old"]["name"] == "OLD"


# commits and work trees


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "src/geartrain").mkdir(parents=True)
    git(folder, "init", "-q")
    for text in ("first", "second"):
        (folder / "src/geartrain/__init__.py").write_text(text)
        git(folder, "add", ".")
        git(folder, "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-q", "-m", text)
    return folder


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@GIT
def test_name_of_a_commit_is_that_commit_in_a_folder_of_its_own(repository: Path, tmp_path: Path) -> None:
    found = checkouts.find("HEAD~1", repository=repository, cache=tmp_path / "cache")
    assert found.commit == git(repository, "rev-parse", "HEAD~1")
    assert found.about.endswith(" first")
    checkouts.extract(found.commit, found.source, repository=repository)
    assert (found.source / "src/geartrain/__init__.py").read_text() == "first"
    assert found.source.is_relative_to(tmp_path / "cache" / found.commit)


@GIT
def test_path_of_a_work_tree_is_that_tree_as_it_lies(repository: Path, tmp_path: Path) -> None:
    (repository / "src/geartrain/__init__.py").write_text("third")
    found = checkouts.find(str(repository), repository=repository, cache=tmp_path / "cache")
    assert (found.source, found.commit) == (repository, "")
    assert found.about == f"the work tree at {git(repository, 'rev-parse', '--short=12', 'HEAD')}, with changes"
    assert found.home.is_relative_to(tmp_path / "cache")


@GIT
def test_branch_with_the_name_of_a_folder_is_the_branch(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(repository, "branch", "docs")
    (repository / "docs").mkdir()
    monkeypatch.chdir(repository)
    assert checkouts.find("docs", repository=repository, cache=tmp_path).commit == git(repository, "rev-parse", "docs")


@GIT
def test_name_of_nothing_is_refused(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(LookupError, match=r"'nothing' is neither a commit of .* nor the path of a checkout"):
        checkouts.find("nothing", repository=repository, cache=tmp_path)


@GIT
def test_commit_without_pins_is_refused(repository: Path, tmp_path: Path) -> None:
    found = checkouts.find("HEAD", repository=repository, cache=tmp_path / "cache")
    with pytest.raises(
        LookupError, match=r"HEAD cannot be installed: it has no pyproject\.toml and no constraints\.txt"
    ):
        checkouts.prepare(found, repository=repository)


# the command line


def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "compare.py"), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=os.environ | environment)


def test_help_names_every_measure() -> None:
    done = call("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for each in compare.MEASURES:
        assert f"{each.name} " in done.stdout


def test_missing_wrk_is_told_with_the_way_to_install_it(tmp_path: Path) -> None:
    done = call("HEAD", "HEAD", PATH=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == "wrk is not installed; on Debian and Ubuntu: apt install wrk\n"


@GIT
def test_unknown_commit_is_told(tmp_path: Path) -> None:
    done = call("nothing-like-that", ".", "--only", "start")
    assert done.returncode == 2
    assert "'nothing-like-that' is neither a commit" in done.stderr


@pytest.mark.parametrize(
    ("option", "value"), [("--rounds", "0"), ("--seconds", "x"), ("--only", "speed"), ("--fail-below", "-1")]
)
def test_wrong_value_is_told_with_its_option(option: str, value: str) -> None:
    done = call("HEAD", "HEAD", option, value)
    assert done.returncode == 2
    assert f"argument {option}" in done.stderr


# the look at a process


@LINUX
def test_cpu_and_memory_are_those_of_the_processes() -> None:
    burn = "import sys, time; held = bytearray(64 << 20); held[::4096] = b'x' * (len(held) // 4096)"
    wait = "while time.process_time() < 0.5: pass\nprint('done', flush=True); sys.stdin.read()"
    inner = f"{burn}\n{wait}"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    with subprocess.Popen([sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        seen = servers.Running(process.pid, 0, 0, 0.0)
        parent, worker = seen.cpu_seconds()
        memory = seen.resident()
        process.communicate()
    assert parent < worker
    assert worker > 0.5 - 0.02  # the clock's ticks
    assert 64 << 20 < memory < 256 << 20
