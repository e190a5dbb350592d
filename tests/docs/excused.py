"""What of the pages is not carried out or not compared, and why: by page, and by how a command or a block begins."""

from __future__ import annotations

from typing import Final

from tools.guides import GUIDES

_DOCKER: Final = "it needs Docker; tools/try_image.sh builds and runs an image"
_CLUSTER: Final = "it needs a cluster of Kubernetes; tests/server/test_platforms.py reads the objects"
_CLOUD: Final = "it needs an account; tests/unit/platforms/test_clouds.py runs the scripts and reads the template"
_PRIVILEGED: Final = "it needs an address and certificates of the reader's own"
_SYSTEM: Final = "it changes the system, as root; tests/server/test_systemd_units.py runs the units"
_ELSEWHERE: Final = "it asks a service elsewhere; tests/server/test_remote_models.py asks one on this machine"
_NOT_INSTALLED: Final = "its library is too large to be installed for the tests"
_GUIDES: Final = "tests/server/test_guides.py compares its files, sends its requests, and looks at the answers"
_JOINED: Final = (
    "the second reader has to come while the first one reads; tests/conformance/test_sse.py has such readers"
)
_TIMING: Final = "how far the prediction is when it is asked depends on how busy the machine is"

_U: Final = "http://127.0.0.1:5077/predictions"
NOT_RUN: Final[dict[tuple[str, str], str]] = {
    **{(f"docs/migrate-{guide}.md", ""): _GUIDES for guide in GUIDES},
    ("docs/migrate-clouds.md", ""): "the model is the reader's own; tests/server/test_scripts.py serves and asks some",
    ("docs/migrate-kserve.md", ""): "the script is the reader's own; tests/server/test_kserve_scripts.py serves some",
    ("docs/migrate-mlflow.md", ""): "the model is the reader's own; tests/server/test_mlflow.py saves and serves some",
    ("docs/migrate-torchserve.md", ""): "the model is the reader's own; tests/server/test_torchserve.py serves some",
    ("docs/migrate-truss.md", ""): "the model is the reader's own; tests/server/test_truss.py serves some",
    ("docs/store.md", "geartrain serve"): "its file is in a folder of the system; the next commands have one here",
    ("docs/caching.md", ""): "the age of an answer is measured; tests/server/test_cache.py asks twice",
    ("docs/tune.md", ""): "what it prints is measured; tests/server/test_cli_tune.py runs it",
    ("docs/bench.md", "geartrain bench"): "what it prints is measured; tests/server/test_cli_bench.py runs it",
    ("docs/command-line.md", "geartrain chat"): "it is a conversation; tests/server/test_cli_chat.py has some",
    ("docs/command-line.md", "echo 'good morning' | geartrain chat"): "tests/server/test_cli_chat.py has such pipes",
    ("docs/scale.md", ""): "it needs a database; tests/server/test_scale_page.py has one and runs every command",
    ("docs/ray.md", "import geartrain.ray"): "it needs a cluster of Ray; tests/server/test_ray.py has one",
    ("docs/batching.md", "from "): "tests/unit/test_batching_page.py runs every model of the page",
    ("docs/batching.md", "import "): "tests/unit/test_batching_page.py runs every model of the page",
    (
        "docs/batching.md",
        "curl",
    ): "which requests come together depends on time; tests/server/test_batching.py holds it",
    (
        "docs/recipes.md",
        "",
    ): "its libraries have an environment of their own; examples/test_served.py serves the models",
    ("docs/openai.md", "from pathlib import Path"): (
        "its libraries have an environment of their own; tests/conformance/test_openai_media.py asks such a model"
    ),
    ("docs/openai-clients.md", ""): (
        "its libraries have environments of their own; tests/clients/test_page.py runs the blocks that show an output"
    ),
    ("docs/testing.md", ""): "tests/server/test_testing.py runs every test of the page",
    ("docs/command-line.md", "geartrain serve examples/digits --host 0.0.0.0"): _PRIVILEGED,
    ("docs/command-line.md", "geartrain doctor"): (
        "it tells of the machine; tests/unit/project/test_doctor_checks.py holds it"
    ),
    ("docs/client.md", "handle = client.submit"): "its webhook is elsewhere; tests/server/test_client.py has one here",
    ("docs/deploy.md", "geartrain build"): _DOCKER,
    ("docs/deploy.md", "docker build"): _DOCKER,
    ("docs/deploy.md", "geartrain deploy vertex"): _CLOUD,
    ("docs/deploy.md", "geartrain deploy azure"): _CLOUD,
    ("docs/deploy.md", "aws"): _CLOUD,
    ("docs/deploy.md", "geartrain deploy kubernetes"): _CLUSTER,
    (
        "docs/development.md",
        "geartrain dev shout --debugpy",
    ): "it listens on a fixed port; tests/server/test_editors.py attaches editors",
    ("docs/models-repository.md", "curl -s localhost:5000/health-check"): (
        "it shows a moment between two crashes; tests/unit/service/workers/test_restarts.py has them all"
    ),
    ("docs/open-inference.md", "$ curl -s localhost:5001"): _NOT_INSTALLED,
    ("docs/open-inference.md", 'client = grpcclient.InferenceServerClient("localhost:8082")'): _NOT_INSTALLED,
    (
        "docs/operations.md",
        "curl -s localhost:5000/readyz",
    ): "it shows a moment of the start; tests/server/test_probes.py",
    ("docs/operations.md", "# python3 -m venv"): _SYSTEM,
    ("docs/operations.md", "kubectl apply"): _CLUSTER,
    ("docs/predictions.md", f"curl -sN -X PUT {_U}/s2"): _JOINED,
    ("docs/predictions.md", f"sleep 1; curl -sN -X PUT {_U}/s2"): _JOINED,
    ("docs/predictions.md", "cmp first second"): _JOINED,
    ("docs/remote.md", "pip install"): _ELSEWHERE,
    ("docs/remote.md", "curl"): _ELSEWHERE,
    ("docs/remote.md", "def setup"): "two lines of a class; tests/server/test_remote_models.py has weights",
    ("docs/triton-mlserver.md", "$ geartrain serve repository"): (
        "the folders are of others; tests/server/test_foreign_repositories.py serves such folders"
    ),
    ("docs/security.md", "geartrain keys new phone-app"): _PRIVILEGED,
    ("docs/security.md", "geartrain serve models --host"): _PRIVILEGED,
    ("docs/security.md", "curl -H 'Authorization"): _PRIVILEGED,
    ("docs/security.md", "geartrain serve models --jwt-issuer"): _PRIVILEGED,
    ("docs/tutorial.md", "mkdir -p sketches"): "it installs packages, which takes minutes, and geartrain is installed",
    ("docs/tutorial.md", "geartrain build sketch -t"): _DOCKER,
    (
        "docs/models.md",
        "geartrain run iris.joblib\n",
    ): "the tests have scikit-learn; tests/unit/backends has it missing",
    ("docs/models.md", "program = torch"): "two lines of a program; tests/unit/backends/test_torch.py exports a model",
    (
        "docs/models.md",
        "$ geartrain serve digits.pt2",
    ): "its program is cut short; tests/unit/backends/test_torch.py loads such a file",
    ("docs/models.md", "model.export"): _NOT_INSTALLED,
    ("docs/models.md", "$ geartrain serve digits.savedmodel"): _NOT_INSTALLED,
    ("docs/models.md", "$ geartrain serve minilm"): _NOT_INSTALLED,
    ("docs/models.md", "$ geartrain serve qwen"): "tests/text_models serves such a folder",
}
NOT_COMPARED: Final[dict[tuple[str, str], str]] = {
    ("docs/predictions.md", f"curl -s {_U} -H 'Content-Type: application/json' -d '{{\"input\":{{}}}}'"): _TIMING,
    ("docs/predictions.md", f"sleep 1; curl -s {_U}/later"): _TIMING,
    ("docs/predictions.md", f"sleep 1; curl -si -X PUT {_U}/once"): _TIMING,
    ("docs/predictions.md", f"sleep 0.1; curl -s {_U}/c2"): _TIMING,
    ("docs/openai.md", "curl -s localhost:5000/v1/files"): "its id and its times are new ones each time",
    ("docs/training.md", "curl -s -X POST http://127.0.0.1:5077/trainings/t1/cancel"): _TIMING,
    ("docs/training.md", "curl -s http://127.0.0.1:5077/trainings/t1"): _TIMING,
}
# Of these, how far the prediction is may differ, and the rest is compared.
COUNTED: Final[dict[tuple[str, str], str]] = {
    ("docs/predictions.md", f"sleep 0.1; curl -s {_U}/c1"): _TIMING,
}
