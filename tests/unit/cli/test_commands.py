"""What the command line understands; nothing is started here."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

import geartrain
import geartrain.server
from geartrain.cli import logs, options
from geartrain.cli.commands import app
from geartrain.domain.predictions.statistics import DEFAULT_BUCKETS, Buckets
from geartrain.project.variables import NAMES
from geartrain.server import NO_LIMIT, PortInUseError, Progress, ServeOptions, log_progress
from geartrain.server.memory import usable_memory
from geartrain.transport.access_log import AccessLogOptions
from geartrain.transport.wire.limits import WireLimits
from geartrain.transport.wire.tls import TlsFiles, TlsFilesError

MIB = 1024**2


class FakeServer:
    """Stands in for `run_server`: keeps the options, and says what it was told to."""

    def __init__(self) -> None:
        self.options: ServeOptions | None = None
        self.code = 0
        self.stages: tuple[str, ...] = ()

    def __call__(self, chosen: ServeOptions) -> int:
        self.options = chosen
        for stage in self.stages:
            chosen.on_progress(Progress(stage=stage, model="pets"))
        return self.code


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model in the current folder, and none of the variables that the commands read."""
    (tmp_path / "run.py").write_text("def run(name: str) -> str:\n    return name\n")
    monkeypatch.chdir(tmp_path)
    for name in (*NAMES, "HOST", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    fake = FakeServer()
    monkeypatch.setattr(geartrain.server, "run_server", fake)
    monkeypatch.setattr(logs, "configure", lambda *_: "json")  # the tests' own logging stays
    return fake


def command(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(app, arguments, env=environ, prog_name="geartrain", terminal_width=200)


def plain(text: str) -> str:
    """The words of a message in a box."""
    return " ".join(re.sub(r"[│╭╮╰╯─]|\x1b\[[\d;]*m", " ", text).split())


def serve(server: FakeServer, *arguments: str, **environ: str) -> ServeOptions:
    result = command("serve", *arguments, **environ)
    assert result.exit_code == 0, result.output
    assert server.options is not None
    return server.options


# geartrain


@pytest.mark.parametrize("arguments", [["--version"], ["-v"], ["serve", "--version"], ["serve", "-v"]])
def test_version_is_printed(arguments: list[str]) -> None:
    result = command(*arguments)
    assert (result.exit_code, result.stdout) == (0, f"geartrain {geartrain.__version__}\n")


def test_help_lists_the_commands() -> None:
    result = command("--help")
    assert result.exit_code == 0
    for line in (
        "serve Serve MODEL over HTTP.",
        "run Run MODEL once",
        "schema Print the OpenAPI document",
        "init Write a first model into DIR",
        "doctor Check MODEL and this machine",
    ):
        assert line in plain(result.stdout)


def test_unknown_command_is_a_usage_error() -> None:
    result = command("sevre")
    assert result.exit_code == 2
    assert "No such command 'sevre'" in plain(result.stderr)


# geartrain serve


def test_serve_has_defaults(server: FakeServer, model: Path) -> None:
    chosen = serve(server)
    assert (chosen.model.root, chosen.model.runner) == (model, "run.py")
    assert chosen.access_log.mode == "on"
    as_usual = dataclasses.replace(chosen, on_progress=log_progress, access_log=AccessLogOptions())
    assert as_usual == ServeOptions(
        source=chosen.source,
        host="127.0.0.1",
        port=5000,
        upload_url=None,
        await_explicit_shutdown=False,
        max_body_bytes=100 * MIB,
        max_download_bytes=100 * MIB,
        setup_timeout=None,
        allow_private_urls=False,
        admin_port=None,
        tls=None,
        max_json_elements=2_000_000,
        wire=WireLimits(max_buffered_size=usable_memory() // 4),
    )


def test_webhook_interval_comes_from_the_environment(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COG_THROTTLE_RESPONSE_INTERVAL", "2.5")
    chosen = serve(server)
    assert chosen.variables_of(chosen.model).webhook_interval == 2.5


def test_serve_takes_every_option(server: FakeServer, model: Path) -> None:
    (model / "cats.py").write_text("class Tom:\n    def run(self) -> str: ...\n")
    chosen = serve(
        server,
        *("cats.py:Tom", "--host", "::1", "--port", "0", "--upload-url", "http://u/"),
        *("--await-explicit-shutdown", "true", "--max-body-size", "1MiB", "--max-download-size", "2MB"),
        *("--setup-timeout", "1.5", "--allow-private-urls", "--threads", "4"),
        *("--log-level", "debug", "--log-format", "json", "--run-timeout", "1.5m"),
    )
    assert chosen.model.runner == "cats.py:Tom"
    assert (chosen.host, chosen.port, chosen.upload_url) == ("::1", 0, "http://u/")
    assert chosen.await_explicit_shutdown
    assert (chosen.max_body_bytes, chosen.max_download_bytes) == (MIB, 2_000_000)
    assert chosen.setup_timeout == 1.5
    assert chosen.limits.run_timeout == 90.0
    assert chosen.allow_private_urls is True


def test_port_comes_from_the_environment(server: FakeServer) -> None:
    assert serve(server, PORT="8123").port == 8123
    assert serve(server, "--port", "8124", PORT="8123").port == 8124
    result = command("serve", PORT="http")
    assert result.exit_code == 2
    assert "'--port' (env var: 'PORT')" in plain(result.stderr)


def test_c1_port_comes_from_cog_yaml(server: FakeServer, model: Path) -> None:
    (model / "cog.yaml").write_text("environment: [PORT=0]")
    assert serve(server).port == 0
    assert serve(server, PORT="8123").port == 8123
    assert serve(server, PORT="").port == 0
    assert serve(server, "--port", "8124").port == 8124


def test_c1_logs_are_as_cog_yaml_says(server: FakeServer, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configured: list[tuple[str | None, ...]] = []

    def configure(*given: str | None) -> str:
        configured.append(given)
        return "json"

    monkeypatch.setattr(logs, "configure", configure)
    (model / "cog.yaml").write_text("environment: [COG_LOG_LEVEL=error, LOG_FORMAT=console]")
    serve(server)
    serve(server, COG_LOG_LEVEL="debug")
    serve(server, "--log-level", "warning", "--log-format", "json", COG_LOG_LEVEL="debug")
    assert configured == [("error", "console"), ("debug", "console"), ("warning", "json")]


def test_c1_port_and_logs_of_several_models_are_the_environments(server: FakeServer, model: Path) -> None:
    for name in ("cats", "dogs"):
        (model / "zoo" / name).mkdir(parents=True)
        (model / "zoo" / name / "run.py").write_text("def run() -> str: ...")
        (model / "zoo" / name / "cog.yaml").write_text("environment: [PORT=1, COG_LOG_LEVEL=off]")
    assert serve(server, "zoo").port == 5000
    assert serve(server, "zoo", PORT="8123").port == 8123


def test_c8_ready_file_is_for_kubernetes(server: FakeServer) -> None:
    assert serve(server).ready_file is None
    assert serve(server, KUBERNETES_SERVICE_HOST="").ready_file is None
    assert serve(server, KUBERNETES_SERVICE_HOST="10.0.0.1").ready_file == Path("/var/run/cog/ready")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--await-explicit-shutdown", "false"], False),
        (["--await-explicit-shutdown=false"], False),
        (["--await-explicit-shutdown", "0"], False),
        (["--await-explicit-shutdown", "No"], False),
        (["--await-explicit-shutdown", "true"], True),
        (["--await-explicit-shutdown=1"], True),
        (["--await-explicit-shutdown", "YES"], True),
        (["--await-explicit-shutdown"], True),
        (["--await-explicit-shutdown", "run.py"], True),
        (["run.py", "--await-explicit-shutdown", "--port", "1"], True),
    ],
)
def test_d24_await_explicit_shutdown_false_means_false(
    server: FakeServer, arguments: list[str], *, expected: bool
) -> None:
    assert serve(server, *arguments).await_explicit_shutdown is expected


def test_await_explicit_shutdown_takes_no_other_word() -> None:
    result = command("serve", "--await-explicit-shutdown=maybe")
    assert result.exit_code == 2
    assert "'maybe' is neither true nor false" in plain(result.stderr)


def test_private_urls_are_the_operators_choice(server: FakeServer) -> None:
    assert serve(server, "--allow-private-urls").allow_private_urls
    assert not serve(server, "--host", "127.0.0.1").allow_private_urls


def test_host_comes_from_the_environment_of_the_server_alone(server: FakeServer, model: Path) -> None:
    (model / "cog.yaml").write_text("environment: [HOST=0.0.0.0]")  # a model does not open the server to the network
    assert serve(server).host == "127.0.0.1"
    assert serve(server, HOST="").host == "127.0.0.1"
    assert serve(server, HOST="0.0.0.0").host == "0.0.0.0"  # noqa: S104 - what a container says
    assert serve(server, "--host", "::1", HOST="0.0.0.0").host == "::1"  # noqa: S104 - as above


def test_limits_of_connections_have_units(server: FakeServer) -> None:
    chosen = serve(
        server,
        *("--max-head-size", "16KiB", "--max-buffered-size", "1GiB", "--max-connections", "100"),
        *("--max-connections-per-client", "10", "--head-timeout", "2s", "--body-timeout", "500ms"),
        *("--idle-timeout", "1m", "--send-timeout", "7.5", "--max-json-elements", "1000", "--admin-port", "0"),
    )
    assert chosen.wire == WireLimits(
        max_head_size=16 * 1024,
        max_buffered_size=1024 * MIB,
        max_connections=100,
        max_connections_per_client=10,
        head_timeout=2.0,
        body_timeout=0.5,
        idle_timeout=60.0,
        send_timeout=7.5,
    )
    assert (chosen.max_json_elements, chosen.admin_port) == (1000, 0)
    assert not chosen.grpc.has_administration


def test_0_disables_each_limit(server: FakeServer) -> None:
    names = [name.replace("_", "-") for name in WireLimits.__struct_fields__]
    others = ["max-body-size", "max-download-size", "max-json-elements", "grpc-max-message-size"]
    chosen = serve(server, *(word for name in (*names, *others) for word in (f"--{name}", "0")))
    assert not any(getattr(chosen.wire, name) for name in WireLimits.__struct_fields__)
    assert chosen.max_body_bytes == chosen.max_download_bytes == chosen.max_json_elements == NO_LIMIT
    assert chosen.grpc.max_message_bytes == 0


def test_buckets_of_histograms_have_units(server: FakeServer) -> None:
    chosen = serve(server, "--latency-buckets", "10ms, 1s,1m", "--size-buckets", "1KiB,1MiB")
    assert chosen.buckets == Buckets((0.01, 1.0, 60.0), (1024.0, float(MIB)))
    assert serve(server, "--size-buckets", "10").buckets == Buckets(DEFAULT_BUCKETS.seconds, (10.0,))
    assert serve(server).buckets == DEFAULT_BUCKETS


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--latency-buckets", "1s,soon"), "Invalid value for '--latency-buckets': 'soon' is no span of time"),
        (("--latency-buckets", "1s,1s"), "Invalid value for '--latency-buckets': the bounds of buckets rise"),
        (("--size-buckets", "1MiB,"), "Invalid value for '--size-buckets': '' is no size"),
        (("--head-timeout", "soon"), "Invalid value for '--head-timeout': 'soon' is no span of time"),
        (("--max-head-size", "big"), "Invalid value for '--max-head-size': 'big' is no size"),
        (("--max-connections", "-1"), "Invalid value for '--max-connections'"),
        (("--admin-port", "65536"), "Invalid value for '--admin-port'"),
    ],
)
def test_wrong_limit_names_its_option(arguments: tuple[str, ...], said: str) -> None:
    result = command("serve", *arguments)
    assert result.exit_code == 2
    assert said in plain(result.stderr)


def test_tls_is_for_http_and_grpc(server: FakeServer) -> None:
    tls = TlsFiles(cert=Path("cert.pem"), key=Path("key.pem"), client_ca=Path("ca.pem"))
    given = ("--tls-cert", "cert.pem", "--tls-key", "key.pem", "--tls-client-ca", "ca.pem")
    chosen = serve(server, *given)
    assert (chosen.tls, chosen.grpc.tls) == (tls, tls)
    own = ("--grpc-tls-cert", "g.pem", "--grpc-tls-key", "g.key")
    assert serve(server, *given, *own).tls == tls
    assert server.options is not None
    assert server.options.grpc.tls is not None
    assert (server.options.grpc.tls.cert, server.options.grpc.tls.client_ca) == (Path("g.pem"), None)
    assert serve(server, *own).tls is None


@pytest.mark.parametrize("given", [("--tls-cert", "c"), ("--tls-key", "k"), ("--tls-client-ca", "a")])
def test_half_of_tls_is_a_usage_error(given: tuple[str, ...]) -> None:
    result = command("serve", *given)
    assert result.exit_code == 2
    assert "TLS needs both --tls-cert and --tls-key" in plain(result.stderr)


def test_files_of_tls_that_do_not_fit_are_one_sentence(monkeypatch: pytest.MonkeyPatch, server: FakeServer) -> None:
    def refuse(_options: ServeOptions) -> int:
        raise TlsFilesError("--tls-cert: there is no file cert.pem")

    monkeypatch.setattr(geartrain.server, "run_server", refuse)
    result = command("serve")
    assert (result.exit_code, result.stderr) == (1, "error: --tls-cert: there is no file cert.pem\n")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("0MiB", 0),
        ("1", 1),
        ("104857600", 100 * MIB),
        ("100MiB", 100 * MIB),
        ("100mib", 100 * MIB),
        ("50MB", 50_000_000),
        ("50 MB", 50_000_000),
        ("1.5KiB", 1536),
        ("2k", 2000),
        ("2Ki", 2048),
        ("10B", 10),
        ("3TiB", 3 * 1024**4),
    ],
)
def test_sizes_have_units(text: str, size: int) -> None:
    assert options.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "MB", "10XB", "5i", "1e3", "0.1", "٣", "9" * 5000])
def test_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no size; write bytes, or a unit such as 50MB or 100MiB"):
        options.parse_size(text)


def test_wrong_size_names_its_option() -> None:
    result = command("serve", "--max-body-size", "lots")
    assert result.exit_code == 2
    assert "Invalid value for '--max-body-size': 'lots' is no size" in plain(result.stderr)


@pytest.mark.parametrize(
    ("arguments", "variable", "timeout"),
    [
        ([], "30", 30.0),
        ([], " 2.5 ", 2.5),
        ([], "0", None),
        ([], "", None),
        ([], "soon", None),
        ([], "-1", None),
        ([], "nan", None),
        (["--setup-timeout", "10"], "30", 10.0),
        (["--setup-timeout", "0"], "30", None),
    ],
)
def test_setup_timeout_comes_from_the_option_then_the_environment(
    server: FakeServer, arguments: list[str], variable: str, timeout: float | None
) -> None:
    chosen = serve(server, *arguments, COG_SETUP_TIMEOUT=variable)
    assert chosen.variables_of(chosen.model).setup_timeout == timeout


@pytest.mark.parametrize("text", ["soon", "-1", "inf"])
def test_wrong_setup_timeout_option_is_a_usage_error(text: str) -> None:
    result = command("serve", f"--setup-timeout={text}")
    assert result.exit_code == 2
    assert f"'{text}' is no number of seconds" in plain(result.stderr)


def test_passed_over_settings_are_warned_of(server: FakeServer, caplog: pytest.LogCaptureFixture, model: Path) -> None:
    serve(server, COG_SETUP_TIMEOUT="soon", COG_MAX_CONCURRENCY="many")
    assert caplog.messages == [
        "COG_MAX_CONCURRENCY=many is passed over: it is not a whole number of at least 1",
        "COG_SETUP_TIMEOUT=soon is passed over: it is no number of seconds",
    ]


def test_servers_exit_code_is_the_commands(server: FakeServer) -> None:
    server.code = 3
    assert command("serve").exit_code == 3


def test_server_that_never_was_ready_ends_with_1(server: FakeServer) -> None:
    server.stages = ("listening", "setup-output", "setup-failed", "stopping")
    assert command("serve").exit_code == 1


def test_port_in_use_is_one_sentence(monkeypatch: pytest.MonkeyPatch, server: FakeServer) -> None:
    def refuse(_options: ServeOptions) -> int:
        raise PortInUseError("cannot listen on 0.0.0.0:5000: Address already in use")

    monkeypatch.setattr(geartrain.server, "run_server", refuse)
    result = command("serve")
    assert result.exit_code == 1
    assert result.stderr == "error: cannot listen on 0.0.0.0:5000: Address already in use\n"


# every command


@pytest.mark.parametrize("name", ["serve", "run", "schema"])
@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nowhere", "error: nowhere: no such file or folder in "),
        ("run.py:Nope", "error: run.py has no 'Nope'; it defines run\n"),
        ("broken.py", "error: broken.py:2: SyntaxError: expected ':': def run()\n"),
    ],
)
def test_model_that_is_not_there_or_broken_is_one_sentence(model: Path, name: str, target: str, said: str) -> None:
    if name == "serve" and target != "nowhere":
        pytest.skip("a server stays up: see test_a6_server_with_a_broken_file_stays_up")
    (model / "broken.py").write_text("\ndef run()\n")
    result = command(name, target)
    assert result.exit_code == 1
    assert result.stderr.startswith(said)
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


# geartrain run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-i", "name"], "'name' is no input; write name=value"),
        (["-i", "a=1", "--json", "{}"], "--json is the whole input; leave -i out"),
        (["--json", "{bad"], "the input is not JSON: "),
        (["--json", "[]"], 'the input must be a JSON object such as {"name": 1}, got array'),
        (["--json", "@nowhere.json"], "cannot read nowhere.json: No such file or directory"),
        (["-o", "nowhere/out.txt"], "cannot write nowhere/out.txt: there is no folder nowhere"),
    ],
)
def test_run_refuses_what_it_can_before_a_worker_starts(arguments: list[str], said: str) -> None:
    result = command("run", *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {said}")
