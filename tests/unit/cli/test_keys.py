"""`geartrain keys`, and the options of `geartrain serve` about access."""

from __future__ import annotations

import hashlib
import re
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import geartrain.server
from geartrain.cli import logs
from geartrain.cli.commands import app
from geartrain.server import ServeOptions
from geartrain.transport.access.keys import Key, read_lines
from geartrain.transport.access.options import AccessError, AccessOptions, JwtOptions


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def keys(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["keys", *map(str, arguments)], prog_name="geartrain", terminal_width=200)


def plain(text: str) -> str:
    """The words of a message in a box."""
    return " ".join(re.sub(r"[│╭╮╰╯─]|\x1b\[[\d;]*m", " ", text).split())


def read(file: Path) -> list[Key]:
    return [key for key in read_lines(file.read_text(), "") if key is not None]


def test_new_key_is_printed_once_and_its_digest_is_written(file: Path) -> None:
    result = keys("new", "ada", "--keys", file, "--scope", "predict", "--scope", "read", "--model", "ec*")
    assert result.exit_code == 0, result.output
    assert result.stderr == f"Added the key 'ada' to {file}. It is printed only this once.\n"
    secret = result.stdout.removesuffix("\n")
    assert re.fullmatch(r"gt_[A-Za-z0-9_-]{43}", secret)
    assert secret not in file.read_text()
    assert read(file) == [Key("ada", ("predict", "read"), hashlib.sha256(secret.encode()).digest(), ("ec*",))]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_key_may_have_an_end(file: Path) -> None:
    assert keys("new", "ada", "--keys", file, "--scope", "read", "--expires", "2999-01-31").exit_code == 0
    assert file.read_text().endswith(" expires=2999-01-31\n")
    assert keys("new", "bob", "--keys", file, "--scope", "read", "--expires", "90d").exit_code == 0
    assert re.search(r" expires=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\n$", file.read_text())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a/b", "--scope", "read"], "'a/b' is no name of a key"),
        (["ada", "--scope", "write"], "there is no scope 'write'; the scopes are predict, read, admin"),
        (["ada", "--scope", "read", "--model", "a b"], "'a b' is no pattern of models"),
        (["ada", "--scope", "read", "--expires", "soon"], "'soon' is no date; write one such as 2027-01-31"),
        (["ada", "--scope", "read", "--expires", "2020-01-01"], "'2020-01-01' is over"),
        (["ada", "--scope", "read", "--expires", "0d"], "'0d' is over"),
        (["ada"], "Missing option '--scope'"),
    ],
)
def test_wrong_key_is_a_usage_error(file: Path, arguments: list[str], said: str) -> None:
    result = keys("new", *arguments, "--keys", file)
    assert result.exit_code == 2
    assert said in plain(result.stderr)
    assert not file.exists()


def test_list_shows_all_but_the_keys(file: Path) -> None:
    file.write_text(
        f"# mine\nada predict,read {'a' * 64} models=ec*,pets\nbob admin {'b' * 64} expires=2020-01-31\n"
        f"eve read {'c' * 64} expires=2999-01-31\n"
    )
    result = keys("list", "--keys", file)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "NAME  SCOPES        MODELS    EXPIRES",
        "ada   predict,read  ec*,pets  never",
        "bob   admin         *         2020-01-31 (expired)",
        "eve   read          *         2999-01-31",
    ]


def test_revoked_key_is_gone(file: Path) -> None:
    for name in ("ada", "bob"):
        keys("new", name, "--keys", file, "--scope", "read")
    result = keys("revoke", "ada", "--keys", file)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"Removed the key 'ada' from {file}.\n"
    assert [key.name for key in read(file)] == ["bob"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["revoke", "eve"], "has no key 'eve'; there are ada"),
        (["new", "ada", "--scope", "read"], "has a key 'ada' already; choose another name, or revoke that one first"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(file: Path, arguments: list[str], said: str) -> None:
    file.write_text(f"ada read {'a' * 64}\n")
    result = keys(*arguments, "--keys", file)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: ")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [["list"], ["revoke", "ada"], ["new", "bob", "--scope", "read"]])
def test_broken_file_is_named_with_its_line(file: Path, command: list[str]) -> None:
    file.write_text("\nada\n")
    result = keys(*command, "--keys", file)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {file}, line 2: a key has the form NAME SCOPE")


def test_keys_alone_explains_itself() -> None:
    result = keys()
    assert result.exit_code == 2
    text = plain(result.output)
    for word in ("new", "list", "revoke"):
        assert f" {word} " in text


# geartrain serve


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[ServeOptions]:
    """The options that a server was to be run with."""
    found: list[ServeOptions] = []

    def run_server(options: ServeOptions) -> int:
        found.append(options)
        return 0

    (tmp_path / "run.py").write_text("def run(name: str) -> str:\n    return name\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(geartrain.server, "run_server", run_server)
    monkeypatch.setattr(logs, "configure", lambda *_: "json")  # the tests' own logging stays
    return found


def serve(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["serve", *arguments], prog_name="geartrain", terminal_width=200)


def test_serve_takes_the_options_of_access(served: list[ServeOptions]) -> None:
    result = serve(
        *("--keys", "keys", "--cors-origin", "https://App.example/", "--cors-origin", "http://localhost:3000"),
        *("--allowed-host", "Models.example", "--allowed-host", "*.pets.example"),
        *("--jwt-issuer", "https://issuer.example", "--jwt-audience", "a", "--jwt-audience", "b"),
        *("--jwt-jwks", "jwks.json", "--jwt-scope-claim", "roles", "--jwt-models-claim", "models"),
    )
    assert result.exit_code == 0, result.output
    assert served[0].access == AccessOptions(
        keys=Path("keys"),
        jwt=JwtOptions(
            issuer="https://issuer.example",
            audience=("a", "b"),
            jwks="jwks.json",
            scope_claim="roles",
            models_claim="models",
        ),
        cors_origins=("https://app.example", "http://localhost:3000"),
        allowed_hosts=("models.example", "*.pets.example"),
    )


def test_serve_lets_everybody_in_by_default(served: list[ServeOptions]) -> None:
    assert serve().exit_code == 0
    assert served[0].access == AccessOptions()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cors-origin", "app.example"], "--cors-origin: 'app.example' is no origin; write a scheme and a host"),
        (["--allowed-host", "http://a"], "--allowed-host: 'http://a' is no name of a host; write it without a scheme"),
        (["--jwt-audience", "a"], "the options of tokens need --jwt-issuer"),
        (["--jwt-issuer", "https://issuer.example"], "--jwt-issuer needs --jwt-audience"),
        (["--jwt-issuer", "issuer", "--jwt-audience", "a"], "--jwt-issuer: 'issuer' is no URL"),
    ],
)
def test_wrong_option_of_access_is_a_usage_error(served: list[ServeOptions], arguments: list[str], said: str) -> None:
    result = serve(*arguments)
    assert result.exit_code == 2
    assert said in plain(result.stderr)
    assert not served


def test_keys_that_cannot_be_read_are_one_sentence(served: list[ServeOptions], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_options: ServeOptions) -> int:
        raise AccessError("--keys keys: it cannot be read: No such file or directory")

    monkeypatch.setattr(geartrain.server, "run_server", refuse)
    result = serve("--keys", "keys")
    assert result.exit_code == 1
    assert result.stderr == "error: --keys keys: it cannot be read: No such file or directory\n"


@pytest.mark.parametrize("option", ["--jwt-jwks", "--jwt-models-claim", "--jwt-scope-claim"])
def test_option_of_tokens_without_an_issuer_is_refused(served: list[ServeOptions], option: str) -> None:
    result = serve(option, "x")
    assert result.exit_code == 2
    assert "the options of tokens need --jwt-issuer" in plain(result.stderr)
    assert not served


def test_options_that_are_not_given_are_none(served: list[ServeOptions]) -> None:
    assert serve().exit_code == 0
    assert served[0].access == AccessOptions()
