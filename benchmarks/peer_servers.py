"""How the other servers are started, each from an environment of its own (`report.peers_environment`)."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
from collections.abc import Callable

from report import output, peers_environment
from servers import HERE, Server


def triton(
    folder: pathlib.Path,
    *,
    model: str,
    models: pathlib.Path = HERE / "peers/triton",
    settle: Callable[[str], str] = str,
    calls: str | None = None,
) -> Server:
    """The binary of the PyTriton package with its Python backend, and one of `models`.

    `settle` makes the text of its `config.pbtxt` of the one that is there. What has to be written goes into `folder`.
    `calls` is another one of `models`, which it calls.
    """
    venv = peers_environment("triton")
    packages = next(venv.glob("lib/python3*/site-packages"))
    home = packages / "pytriton/tritonserver"
    backend = folder / "backends/python"
    shutil.copytree(home / "backends/python", backend)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy(home / "python_backend_stubs" / version / "triton_python_backend_stub", backend)
    shutil.copytree(models / model, folder / "models" / model)
    config = folder / "models" / model / "config.pbtxt"
    config.write_text(settle(config.read_text()))
    if calls is not None:
        shutil.copytree(models / calls, folder / "models" / calls)
    python = output([sys.executable, "-c", "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))"])
    libraries = (packages / "nvidia_pytriton.libs", home / "external_libs", home / "lib", python)
    options = {
        "model-repository": folder / "models",
        "backend-directory": backend.parent,
        "http-address": "127.0.0.1",
        "http-port": "{port}",
        "grpc-address": "127.0.0.1",
        "grpc-port": "{grpc}",
        "allow-metrics": "false",
        "log-info": "false",
    }
    return Server(
        name="triton",
        command=(str(home / "bin/tritonserver"), *(f"--{name}={value}" for name, value in options.items())),
        environment={
            "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
            "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(packages),
        },
        ready="/v2/health/ready",
    )


def mlserver(folder: pathlib.Path, *, model: str, package: str = "mlserver") -> Server:
    """MLServer on the settings in `folder`, with its own defaults: one process for the endpoints, one for the model."""
    return Server(
        name="mlserver",
        command=(str(peers_environment(package) / "bin/mlserver"), "start", "."),
        folder=folder,
        environment={
            "MLSERVER_HOST": "127.0.0.1",
            "MLSERVER_HTTP_PORT": "{port}",
            "MLSERVER_GRPC_PORT": "{grpc}",
            "MLSERVER_METRICS_PORT": "{metrics}",
            "MLSERVER_DEBUG": "false",
        },
        ready=f"/v2/models/{model}/ready",
    )


def mosec(folder: pathlib.Path, *, script: str, max_wait_ms: int = 0) -> Server:
    """A script of `peers/mosec`, which may gather requests for so long; its socket goes into `folder`."""
    binaries = peers_environment("mosec") / "bin"
    options = {"address": "127.0.0.1", "port": "{port}", "path": folder / "mosec", "log-level": "error"}
    return Server(
        name="mosec",
        command=(
            str(binaries / "python"),
            str(HERE / "peers/mosec" / script),
            *(f"--{name}={value}" for name, value in options.items()),
        ),
        environment={
            "MAX_WAIT": str(max_wait_ms),
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        },
        ready="/",
    )


def litserve(*, script: str, batch_timeout: float, api_servers: int = 1) -> Server:
    """A script of `peers/litserve`."""
    python = peers_environment("litserve") / "bin/python"
    return Server(
        name="litserve",
        command=(str(python), str(HERE / "peers/litserve" / script), "{port}", str(batch_timeout), str(api_servers)),
        ready="/health",
    )


def torchserve(folder: pathlib.Path, *models: str) -> Server:
    """TorchServe on the archives of `models` in `folder`: a worker for each, and the addresses in its environment."""
    binaries = peers_environment("torchserve") / "bin"
    lines = ("enable_envvars_config=true", "default_workers_per_model=1", "disable_token_authorization=true")
    (folder / "config.properties").write_text("\n".join(lines))
    named = (f"{model}={model}.mar" for model in models)
    options = ("--start", "--foreground", "--ncs", "--model-store", ".", "--models", *named)
    return Server(
        name="torchserve",
        command=(str(binaries / "torchserve"), *options, "--ts-config", "config.properties"),
        folder=folder,
        environment={
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "LOG_LOCATION": str(folder),
            "METRICS_LOCATION": str(folder),
            "TS_INFERENCE_ADDRESS": "http://127.0.0.1:{port}",
            "TS_MANAGEMENT_ADDRESS": "http://127.0.0.1:{grpc}",
            "TS_METRICS_ADDRESS": "http://127.0.0.1:{metrics}",
        },
        ready="/ping",
    )
