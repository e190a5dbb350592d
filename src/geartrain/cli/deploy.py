"""`geartrain deploy` and `geartrain build`: what platforms need to run models, and images of containers."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Annotated, Final, Literal

import typer

from geartrain.cli.failure import FAILURE, fail, warn
from geartrain.cli.typer_app import CommandApp
from geartrain.platforms import sagemaker as aws
from geartrain.platforms import scripts
from geartrain.platforms.image import build_command, find_builder, plan, write_context
from geartrain.platforms.kserve import DEFAULT_RUNTIME, OWN_FORMAT, KServeOptions, kserve_objects
from geartrain.platforms.kubernetes import BatchSpec, batch_job, kubernetes_objects
from geartrain.platforms.manifest import plain, write_yaml
from geartrain.platforms.seldon import DEFAULT_SERVER, seldon_objects
from geartrain.platforms.spec import DeploymentSpec, read_spec
from geartrain.project.errors import ProjectError
from geartrain.project.served import find_here

app = CommandApp(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Write what a platform needs to run models: YAML, as for `kubectl apply`, or a script; or give them to Ray.",
)

_BATCH: Final = "A data set in place of a server"
_SET_BY_JOB: Final = frozenset({"--output", "--part", "--resume", "--overwrite"})
_PROMETHEUS: Final = "http://prometheus-server.monitoring.svc:80"

Models = Annotated[
    str, typer.Argument(metavar="MODELS", help="A model or a folder of models, as of `geartrain serve`.")
]
Image = Annotated[
    str,
    typer.Option(metavar="IMAGE", help="The image, such as `geartrain build` makes: registry.example.com/digits:1."),
]
Name = Annotated[
    str, typer.Option(metavar="NAME", show_default=False, help="The name of the objects; by default the model's.")
]
Namespace = Annotated[
    str, typer.Option(metavar="NAME", show_default=False, help="Their namespace; by default that of kubectl.")
]
Replicas = Annotated[int, typer.Option(min=1, metavar="N", help="How many pods there are at least.")]
MaxReplicas = Annotated[int, typer.Option(min=1, metavar="N", help="How many pods there are at most.")]
Instances = Annotated[
    int, typer.Option("--replicas", min=1, metavar="N", help="How many instances there are at least.")
]
MaxInstances = Annotated[
    int, typer.Option("--max-replicas", min=1, metavar="N", help="How many instances there are at most.")
]
Gpus = Annotated[int, typer.Option(min=0, metavar="N", help="How many GPUs of NVIDIA each pod has.")]
Storage = Annotated[
    str,
    typer.Option(
        "--storage-uri",
        metavar="URI",
        show_default=False,
        help="Where the platform fetches the models from, such as gs://bucket/digits or pvc://claim/digits.",
    ),
]


@app.command(
    examples=(
        "geartrain deploy kubernetes shout --image shout:1 | kubectl apply -f -",
        "geartrain deploy kubernetes shout --image shout:1 --autoscaler queue --gpus 1",
    )
)
def kubernetes(
    models: Models,
    *,
    image: Image,
    name: Name = "",
    namespace: Namespace = "",
    replicas: Replicas = 1,
    max_replicas: MaxReplicas = 4,
    gpus: Gpus = 0,
    storage: Storage = "",
    autoscaler: Annotated[
        Literal["cpu", "queue", "keda", "none"],
        typer.Option(
            help="What changes the number of pods: the load of processors; the requests that wait, by an adapter for "
            "Prometheus or by KEDA; or nothing."
        ),
    ] = "cpu",
    prometheus: Annotated[str, typer.Option(metavar="URL", help="Where KEDA finds Prometheus.")] = _PROMETHEUS,
    batch: Annotated[
        str,
        typer.Option(
            metavar="IN",
            show_default=False,
            help="Write a Job instead, whose pods run the model over a data set: a path below /data, or a URL.",
            rich_help_panel=_BATCH,
        ),
    ] = "",
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="OUT",
            show_default=False,
            help="OUT of `geartrain batch`, below /data.",
            rich_help_panel=_BATCH,
        ),
    ] = "",
    data: Annotated[
        str,
        typer.Option(
            metavar="URI",
            show_default=False,
            help="The volume that is mounted at /data: pvc://CLAIM/PATH.",
            rich_help_panel=_BATCH,
        ),
    ] = "",
    parts: Annotated[
        int,
        typer.Option(
            min=1,
            max=99_999,
            metavar="N",
            help="The shares of the data set, each run by a pod; --max-replicas of them at once.",
            rich_help_panel=_BATCH,
        ),
    ] = 4,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            show_default=False,
            help="An option of `geartrain batch`, such as keep=id; may be repeated.",
            rich_help_panel=_BATCH,
        ),
    ] = None,
) -> None:
    """Write a Deployment with its Service and an autoscaler, or with --batch a Job.

    The models are in the image, at /models, or in a PersistentVolumeClaim.
    """
    spec = _read(models, image, name, namespace=namespace, scale=(replicas, max_replicas, gpus), storage=storage)
    if batch:
        if replicas != 1 or autoscaler != "cpu":
            fail("--replicas and --autoscaler are for a server; a Job has at most --max-replicas pods at once")
        job = BatchSpec(
            source=batch,
            output=output,
            data=data,
            parts=parts,
            options=tuple(_batch_option(each) for each in option or []),
        )
        _check_batch(job)
        _write(lambda: write_yaml([batch_job(spec, job)]))
        return
    for given, text in (("--output", output), ("--data", data), ("--option", option)):
        if text:
            fail(f"{given} is for a Job: write --batch IN as well")
    _write(lambda: write_yaml(kubernetes_objects(spec, autoscaler, prometheus)))


@app.command(
    examples=(
        "geartrain deploy kserve shout --image shout:1 | kubectl apply -f -",
        "geartrain deploy kserve shout --image geartrain:1 --storage-uri gs://own/shout",
        "geartrain deploy kserve shout --image shout:1 --protocol v1",
    )
)
def kserve(
    models: Models,
    *,
    image: Image,
    name: Name = "",
    namespace: Namespace = "",
    replicas: Replicas = 1,
    max_replicas: MaxReplicas = 4,
    gpus: Gpus = 0,
    storage: Storage = "",
    runtime: Annotated[str, typer.Option(metavar="NAME", help="The name of the runtime.")] = DEFAULT_RUNTIME,
    cluster: Annotated[bool, typer.Option("--cluster", help="Write a runtime for all namespaces.")] = False,
    knative: Annotated[bool, typer.Option("--knative", help="Let Knative run the pods, down to none.")] = False,
    grpc: Annotated[bool, typer.Option("--grpc", help="Have the way to the pods speak HTTP/2, for gRPC.")] = False,
    protocol: Annotated[
        Literal["v1", "v2"], typer.Option(help="Version of KServe's protocol. With v1, clients may speak v2 as well.")
    ] = "v2",
    model_format: Annotated[
        str,
        typer.Option(metavar="NAME", help="The format of the models, such as pytorch: KServe gives them this runtime."),
    ] = OWN_FORMAT,
) -> None:
    """Write a ServingRuntime and an InferenceService.

    Without --storage-uri the models are in the image, at /models, and the InferenceService needs no runtime.
    """
    spec = _read(models, image, name, namespace=namespace, scale=(replicas, max_replicas, gpus), storage=storage)
    options = KServeOptions(
        runtime=runtime,
        model_format=model_format,
        is_cluster=cluster,
        is_knative=knative,
        is_grpc=grpc,
        has_v1=protocol == "v1",
    )
    _write(lambda: write_yaml(kserve_objects(spec, options)))


@app.command(examples=("geartrain deploy seldon models --image models:1 | kubectl apply -f -",))
def seldon(
    models: Models,
    *,
    image: Image,
    name: Name = "",
    namespace: Namespace = "",
    replicas: Replicas = 1,
    max_replicas: MaxReplicas = 4,
    gpus: Gpus = 0,
    storage: Storage = "",
    server: Annotated[str, typer.Option(metavar="NAME", help="The name of the server.")] = DEFAULT_SERVER,
) -> None:
    """Write a Server of Seldon Core 2, and a Model for each model."""
    spec = _read(models, image, name, namespace=namespace, scale=(replicas, max_replicas, gpus), storage=storage)
    _write(lambda: write_yaml(seldon_objects(spec, server)))


@app.command(examples=("geartrain deploy sagemaker shout --image shout:1 > shout.yaml",))
def sagemaker(
    models: Models,
    *,
    image: Image,
    name: Name = "",
    replicas: Instances = 1,
    max_replicas: MaxInstances = 4,
    storage: Storage = "",
    instance: Annotated[str, typer.Option(metavar="TYPE", help="What each instance is.")] = aws.DEFAULT_INSTANCE,
) -> None:
    """Write a template of CloudFormation with an endpoint of Amazon SageMaker.

    The image is one of `geartrain build`. With --storage-uri SageMaker brings the models, of an archive or a folder in
    S3.
    """
    spec = _read(models, image, name, namespace="", scale=(replicas, max_replicas, 0), storage=storage)
    _write(lambda: write_yaml(aws.sagemaker_template(spec, instance)))


@app.command(
    examples=("geartrain deploy vertex shout --image shout:1 | sh",),
)
def vertex(
    models: Models,
    *,
    image: Image,
    name: Name = "",
    replicas: Instances = 1,
    max_replicas: MaxInstances = 4,
    gpus: Gpus = 1,
    storage: Storage = "",
    machine: Annotated[str, typer.Option(metavar="TYPE", help="What each instance is.")] = scripts.DEFAULT_MACHINE,
    accelerator: Annotated[
        str, typer.Option(metavar="TYPE", show_default=False, help="The kind of its GPUs, such as nvidia-l4.")
    ] = "",
    region: Annotated[str, typer.Option(metavar="NAME", help="Where the endpoint is.")] = scripts.DEFAULT_REGION,
) -> None:
    """Write a script that sets up an endpoint of Google's Vertex AI, with gcloud."""
    spec = _read(models, image, name, namespace="", scale=(replicas, max_replicas, gpus), storage=storage)
    _write(lambda: scripts.vertex_script(spec, machine=machine, accelerator=accelerator, region=region))


@app.command(examples=("geartrain deploy azure shout --image shout:1 | sh",))
def azure(
    models: Models,
    *,
    image: Image,
    name: Name = "",
    replicas: Instances = 1,
    storage: Storage = "",
    instance: Annotated[str, typer.Option(metavar="TYPE", help="What each instance is.")] = scripts.DEFAULT_INSTANCE,
    deployment: Annotated[str, typer.Option(metavar="NAME", help="The name of the deployment.")] = "blue",
) -> None:
    """Write a script that sets up a managed online endpoint of Azure ML, with az."""
    spec = _read(models, image, name, namespace="", scale=(replicas, replicas, 0), storage=storage)
    _write(lambda: scripts.azure_script(spec, instance=instance, deployment=deployment))


@app.command(
    examples=(
        "geartrain deploy ray /srv/models --replicas 1:4",
        "geartrain deploy ray /srv/models --dry-run",
    )
)
def ray(
    models: Annotated[
        str,
        typer.Argument(
            metavar="MODELS",
            help="A model or a folder of models, at its path on every node; or one elsewhere, by its URL.",
        ),
    ],
    *,
    address: Annotated[
        str,
        typer.Option(metavar="URL", envvar="RAY_DASHBOARD_ADDRESS", help="The dashboard of the cluster."),
    ] = "http://127.0.0.1:8265",
    replicas: Annotated[
        str, typer.Option(metavar="MIN:MAX", help="How many replicas there are, by the queue; or one number.")
    ] = "1",
    upscale_delay: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="How long there is too much to do before there are more.")
    ] = 30.0,
    downscale_delay: Annotated[
        float,
        typer.Option(min=0.0, metavar="SECONDS", help="How long there is too little to do before there are fewer."),
    ] = 600.0,
    name: Annotated[
        str, typer.Option(metavar="NAME", show_default=False, help="The application; by default as the models' folder.")
    ] = "",
    route_prefix: Annotated[str, typer.Option(metavar="PATH", help="The path below which its routes are.")] = "/",
    cpus: Annotated[float, typer.Option(min=0.0, metavar="N", help="How many processors each replica reserves.")] = 1.0,
    gpus: Annotated[float, typer.Option(min=0.0, metavar="N", help="How many GPUs each replica has.")] = 0.0,
    port: Annotated[int, typer.Option(min=1, max=65535, metavar="PORT", help="Of HTTP, on every node.")] = 8000,
    grpc_port: Annotated[int, typer.Option(min=1, max=65535, metavar="PORT", help="Of gRPC, on every node.")] = 9000,
    revision: Annotated[
        str,
        typer.Option(
            metavar="TEXT", show_default=False, help="Another one than before: the replicas load their models anew."
        ),
    ] = "",
    load: Annotated[
        str, typer.Option(metavar="NAMES", show_default=False, help="The models to have loaded; by default all.")
    ] = "",
    store: Annotated[
        str,
        typer.Option(
            metavar="URL",
            show_default=False,
            help="Where all replicas keep predictions that outlive them: postgres://USER@HOST/DATABASE.",
        ),
    ] = "",
    cluster_token_file: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="The token by which replicas hand requests over to each other, at its path on every node.",
        ),
    ] = "",
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            show_default=False,
            help="An option of geartrain.ray.app(), such as shutdown_grace=60; may be repeated.",
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="How long to wait until the application runs.")
    ] = 600.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the config file of Serve, and change nothing.")
    ] = False,
) -> None:
    """Serve models on a cluster of Ray, as one application.

    Needs `pip install 'geartrain[ray]'`, here and on every node.
    """
    from geartrain.ray.config import ApplicationSpec, name_of, serve_config
    from geartrain.ray.options import read_scale

    try:
        config = serve_config(
            ApplicationSpec(
                models=models,
                name=name or name_of(models),
                route_prefix=route_prefix,
                scale=read_scale(replicas),
                delays=(upscale_delay, downscale_delay),
                num_cpus=cpus,
                num_gpus=gpus,
                ports=(port, grpc_port),
                user_config={**({"load": load.split(",")} if load else {}), **_given(revision=revision)},
                options={**_given(store=store, cluster_token_file=cluster_token_file), **_read_options(option or [])},
            )
        )
        if dry_run:
            print(write_yaml([config]), end="")
            return
        try:
            from geartrain.ray.deploying import deploy
        except ModuleNotFoundError as error:
            fail(f"{error.name} is not installed: pip install 'geartrain[ray]'; --dry-run needs nothing")
        deploy(plain(config), address, time_limit=timeout, tell=lambda line: print(line, file=sys.stderr))
    except ProjectError as error:
        fail(error.message)


def _batch_option(text: str) -> str:
    """Return NAME=VALUE, or the name of a switch, as a word of `geartrain batch`."""
    return f"--{text.strip().removeprefix('--')}"


def _check_batch(job: BatchSpec) -> None:
    """End the command for options that `geartrain batch` would not take in the pods."""
    from geartrain.cli.batch import app as batch_app

    for option in job.options:
        if option.partition("=")[0] in _SET_BY_JOB:
            fail(f"--option: the Job sets {option.partition('=')[0]} itself")
    words = ["model", "in", *job.options]
    try:
        typer.main.get_command(batch_app).make_context("geartrain batch", words)
    except Exception as error:
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        fail(f"--option: {message()}")


def _given(**values: str) -> dict[str, str]:
    """Return those that are not empty."""
    return {name: value for name, value in values.items() if value}


def _read_options(texts: list[str]) -> dict[str, object]:
    """Parse several NAME=VALUE. Ends the command for one without a value."""
    return dict(map(_read_option, texts))


def _read_option(text: str) -> tuple[str, object]:
    """Return the name and the value of NAME=VALUE: what JSON has, or else a text. Ends the command without a value."""
    name, found, value = text.partition("=")
    if not found:
        fail(f"--option: {text!r} has no value; write NAME=VALUE")
    try:
        return name.strip(), json.loads(value)
    except ValueError:
        return name.strip(), value


def _read(
    models: str, image: str, name: str, *, namespace: str, scale: tuple[int, int, int], storage: str
) -> DeploymentSpec:
    """Return the deployment to write, or end the command; `scale`: replicas, the most of them, and the GPUs of each."""
    replicas, most, gpus = scale
    try:
        return read_spec(
            find_here(models),
            name,
            image=image,
            namespace=namespace,
            replicas=replicas,
            max_replicas=most,
            gpus=gpus,
            storage=storage,
        )
    except ProjectError as error:
        fail(error.message)


def _write(text: Callable[[], str]) -> None:
    try:
        found = text()
    except ProjectError as error:
        fail(error.message)
    print(found, end="")


build_app = CommandApp(add_completion=False)

_TAG: Final = re.compile(r"[\w.:-]+(/[\w.-]+)*(:[\w.-]{1,128})?", re.ASCII)


@build_app.command(examples=("geartrain build shout -t registry.example.com/shout:1",))
def build(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model or a folder of models.")] = ".",
    *,
    tag: Annotated[
        str,
        typer.Option(
            "--tag", "-t", metavar="TAG", help="The name of the image, such as registry.example.com/digits:1."
        ),
    ] = "",
    builder: Annotated[
        Literal["docker", "podman", "buildah"] | None,
        typer.Option(help="What builds it; by default the first of them that is there.", show_default=False),
    ] = None,
    build_arg: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Passed on: BASE is the image to begin with, BUILD_PACKAGES what Debian has for compiling; may be "
            "repeated.",
        ),
    ] = None,
    pip_config: Annotated[
        pathlib.Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="A pip.conf for the build; it does not get into the image.",
        ),
    ] = None,
    context: Annotated[
        pathlib.Path | None,
        typer.Option(
            metavar="FOLDER", help="Write what the image is built of into this new folder, and build nothing."
        ),
    ] = None,
) -> None:
    """Build an image of MODEL, with the geartrain that runs this command.

    The section `build` of cog.yaml says what the image needs beside the model: python_version, system_packages,
    python_requirements, python_packages, run and gpu.
    """
    try:
        wanted = plan(find_here(model), model)
        if wanted.passed_over:
            warn(
                f"passed over of cog.yaml: {', '.join(wanted.passed_over)}; write what has to be done below `build.run`"
            )
        if context is not None:
            if context.exists() and any(context.iterdir()):
                fail(f"--context: {context} is not empty")
            write_context(wanted, context)
            return
        if not _TAG.fullmatch(tag):
            fail("--tag is missing, or is no name of an image; write for example -t registry.example.com/digits:1")
        chosen = find_builder(builder)
        with tempfile.TemporaryDirectory(prefix="geartrain-build-") as temporary:
            folder = pathlib.Path(temporary) / "context"
            write_context(wanted, folder)
            command = build_command(chosen, folder, tag, build_args=build_arg or [], pip_config=pip_config)
            code = subprocess.run(command, check=False).returncode  # noqa: S603 - the operator's own program
    except ProjectError as error:
        fail(error.message)
    raise typer.Exit(FAILURE if code else 0)
