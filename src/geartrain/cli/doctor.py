"""`geartrain doctor`: what is wrong with a model, or with this machine, and what to do about it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import re
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from geartrain.cli import fetching, logs, machine, options
from geartrain.cli.failure import FAILURE, INTERRUPTED
from geartrain.cli.options import DEFAULT_HOST
from geartrain.cli.typer_app import CommandApp
from geartrain.domain.rendering import clip
from geartrain.project.checks import (
    Finding,
    Level,
    check_code,
    check_config,
    check_packages,
    check_python,
    error,
    install,
    ok,
    warning,
)
from geartrain.project.formats import SCRIPT_TITLES
from geartrain.project.precheck import precheck
from geartrain.project.repository import Repository, find_repository
from geartrain.project.source import ModelSource, ProjectError, model_folder
from geartrain.project.variables import PREDICT_STUB, resolve

if TYPE_CHECKING:
    from geartrain.domain.predictions.calls import WorkerInfo
    from geartrain.domain.signature.pipeline import Pipeline, Step
    from geartrain.domain.signature.types import DeclaredTensor, Signature

app = CommandApp(add_completion=False, pretty_exceptions_enable=False)

_MARKS: Final[dict[Level, tuple[str, str, str]]] = {  # the mark, in ASCII, and its colour
    "ok": ("✓", "ok", "green"),
    "warning": ("!", "!", "yellow"),
    "error": ("✗", "x", "red"),
}
_NO_MODULE: Final = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_NO_LIBRARY: Final = re.compile(r"(.* is not installed); install it with: (.*)", re.DOTALL)  # of a model file
_NOT_INSTALLED: Final = re.compile(r" \(it is not installed in .*\)$")
_CUDA: Final = re.compile(r"CUDA|NVIDIA driver")
_CHOOSE_DEVICE: Final = 'let the model take what is there: device = "cuda" if torch.cuda.is_available() else "cpu"'
_PACKAGES: Final = {  # of modules that are called otherwise
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dotenv": "python-dotenv",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


@app.command(examples=("geartrain doctor shout", "geartrain doctor shout --setup"))
def doctor(
    model: options.Model = None,
    *,
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, metavar="PORT", show_default=False, help="The port that has to be free; 5000 by default."
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the variables that have their defaults too.")
    ] = False,
    setup: Annotated[bool, typer.Option("--setup", help="Run the model's setup as well, as `serve` does.")] = False,
    cache_dir: options.CacheDir = None,
    verify_cache: options.VerifyCache = False,
) -> None:
    """Check MODEL and this machine, and say what to do about what is wrong. Of a folder of models each is checked.

    The model is imported; its setup runs with --setup alone.

    Exit code: 1 when something is wrong that the model cannot run with.
    """
    logs.configure(default="warning")
    counts: dict[Level, int] = {"ok": 0, "warning": 0, "error": 0}
    try:
        local = fetching.LocalModels(cache_dir, verify=verify_cache)
        for finding in _findings(model, port, local, verbose=verbose, setup=setup):
            counts[finding.level] += 1
            _show(finding)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    _echo(_sum(counts))
    raise typer.Exit(FAILURE if counts["error"] else 0)


def _findings(
    named: str | None, port: int | None, local: fetching.LocalModels, *, verbose: bool, setup: bool
) -> Iterator[Finding]:
    source: ModelSource | None = None
    try:
        target = local.target(named)
        by_variable = target is None and os.environ.get(PREDICT_STUB)
        repository = None if by_variable else find_repository(target)
        root, _ = model_folder(target)
    except ProjectError as fault:
        yield error(fault.message)
        yield from machine.check_variables(os.environ, {})
    else:
        if repository is not None:
            yield from machine.check_variables(os.environ, {})
            yield from _about_models(repository, setup=setup)
        else:
            source = yield from _about_one(target, root, local, setup=setup)
    variables = resolve(os.environ)[0]
    if source is not None:
        variables = source.variables
        yield from map(ok, variables.describe(defaults=verbose))
    yield from machine.check_interpreter(machine.build_variables())
    yield machine.check_memory()
    yield from machine.check_gpus()
    yield machine.check_temporary_folder(os.environ)
    yield machine.check_port(port, variables.port, os.environ.get("HOST") or DEFAULT_HOST)


def _about_one(
    target: str | None, root: Path, local: fetching.LocalModels, *, setup: bool
) -> Generator[Finding, None, ModelSource | None]:
    """Yield what is found of a single model, and return it if it can be found."""
    source: ModelSource | None = None
    config = check_config(root)
    yield from config
    try:
        source = found = local.find(target)
    except ProjectError as fault:
        if all(finding.level != "error" for finding in config):
            yield error(fault.message.replace(f"{root}/", ""))
        yield from machine.check_variables(os.environ, {})
    else:
        yield from map(warning, (*found.warnings, *found.remarks))
        yield from machine.check_variables(os.environ, found.environment)
        yield from _about_model(found, setup=setup)
    yield check_python(root)
    yield from check_packages(root)
    return source


def _about_models(repository: Repository, *, setup: bool) -> Iterator[Finding]:
    """Yield what is found of each version of the models in a folder, with its name."""
    seen = _Seen(repository)
    for name in repository.names():
        try:
            folder = repository.read(name)
        except ProjectError as fault:
            yield error(f"{name}: {fault.message}")
            continue
        default = folder.default_version or next(reversed([*folder.versions]), "")
        for number, version in folder.versions.items():
            place = name if len(folder.versions) == 1 else f"{name}, version {number}"
            if isinstance(version, ModelSource) and version.pipeline is not None:
                seen.pipelines[place] = version.pipeline
                continue
            keys = {(name, number), (name, "")} if number == default else {(name, number)}
            replicas = (isinstance(version, ModelSource) and version.replicas) or 1
            for finding in _about_version(version, setup=setup, learn=partial(seen.learn_worker, keys, replicas)):
                yield dataclasses.replace(finding, text=f"{place}: {finding.text}")
    yield from seen.pipeline_findings()
    yield from seen.call_findings()


class _Seen:
    """The signatures of the models of a folder that could be loaded, and the pipelines that are made of them."""

    def __init__(self, repository: Repository) -> None:
        self.pipelines: dict[str, Pipeline] = {}  # by what they are called here
        self._repository = repository
        self._workers: dict[str, tuple[WorkerInfo, int]] = {}  # of default versions, with their slots in all
        self._signatures: dict[tuple[str, str], Signature] = {}  # by model and version, "" for the default one

    def learn(self, keys: Iterable[tuple[str, str]], signature: Signature) -> None:
        """Note the signature of a model under some keys."""
        self._signatures.update(dict.fromkeys(keys, signature))

    def learn_worker(self, keys: Iterable[tuple[str, str]], replicas: int, info: WorkerInfo) -> None:
        """Note the signature of a model, its slots, and the models that it declares to call."""
        keys = tuple(keys)
        self.learn(keys, info.signature)
        for name, version in keys:
            if not version:
                self._workers[name] = (info, info.slots * replicas)

    def call_findings(self) -> Iterator[Finding]:
        """Give what is found of the calls that models declare: circles, missing models, too few slots."""
        from geartrain.domain.signature.pipeline import find_cycle

        circle = find_cycle(self._workers, self._called)
        if circle:
            chain = " → ".join(circle)
            yield error(f"models call each other in a circle: {chain}", "take one of the declarations out")
        for name, (_, slots) in self._workers.items():
            for called in self._called(name):
                if called not in self._repository.names():
                    yield error(f"{name}: it calls {called!r}, which is not in this folder", f"put it beside {name}")
                    continue
                other, there = self._workers.get(called, (None, slots))
                if other is None or other.batching is not None or there >= slots:
                    continue
                runs = f"{slots} run{'s'[: slots != 1]} at once"
                what = f"{name}: {runs} may call {called!r}, which has {there} slot{'s'[: there != 1]}: calls wait"
                yield warning(what, f"more `slots` or `replicas` for {called}, or fewer for {name}")

    def pipeline_findings(self) -> Iterator[Finding]:
        """Give what is found of each pipeline, those first whose models are no pipelines."""
        from geartrain.domain.signature.pipeline import PipelineError, find_cycle, make_plan

        left = dict(self.pipelines)
        while left:
            ready = {place: each for place, each in left.items() if all(self._has(step) for step in each.steps)}
            for place, pipeline in ready.items():
                del left[place]
                try:
                    plan = make_plan(pipeline, [self._signatures[step.model, step.version] for step in pipeline.steps])
                except PipelineError as fault:
                    yield error(f"{place}: {fault}")
                    continue
                self.learn(((place, ""), (place, "1")), plan.signature)
                yield ok(f"{place}: a pipeline of {', '.join(pipeline.models)}; {_summary(plan.signature)}")
            if not ready:
                break
        for place, pipeline in left.items():
            cycle = find_cycle([place], self._repository.steps_of)
            if cycle:
                yield error(f"{place}: a model cannot be a step of itself: {' → '.join(cycle)}")
                continue
            missing = [step for step in pipeline.steps if not self._has(step)]
            for step in missing:
                known = "could not be loaded" if step.model in self._repository.names() else "is not in this folder"
                which = f"{step.model!r}, version {step.version}," if step.version else repr(step.model)
                yield error(f"{place}: the model {which} {known}", f"put it beside {place}, or mend it")

    def _called(self, name: str) -> Iterable[str]:
        """Return the models that a model declares to call."""
        info = self._workers[name][0] if name in self._workers else None
        return () if info is None else dict.fromkeys(each.partition("@")[0] for each in info.calls)

    def _has(self, step: Step) -> bool:
        return (step.model, step.version) in self._signatures


def _about_version(
    version: ModelSource | ProjectError, *, setup: bool, learn: Callable[[WorkerInfo], None]
) -> Iterator[Finding]:
    if isinstance(version, ProjectError):
        yield error(version.message)
        return
    yield from (finding for finding in check_config(version.root) if finding.level != "ok")
    yield from map(warning, (*version.warnings, *version.remarks))
    yield from _about_model(version, setup=setup, learn=learn)
    yield from check_packages(version.root)


def _about_model(
    source: ModelSource, *, setup: bool, learn: Callable[[WorkerInfo], None] = lambda _: None
) -> Iterator[Finding]:
    if source.pipeline is not None:
        listed = ", ".join(source.pipeline.models)
        yield warning(f"a pipeline of {listed} is checked with its models", f"geartrain doctor {source.root.parent}")
        return
    yield from check_code(source)
    yield _load(source, setup=setup, learn=learn)
    if source.own_examples:
        count = len(source.own_examples)
        shown = clip(source.own_examples[0].decode())
        yield ok(f"{count} example{'s'[: count != 1]} of an input in its files, such as {shown}")
    training = source.training()
    if training is not None:
        yield _load(training)


def _load(source: ModelSource, *, setup: bool = False, learn: Callable[[WorkerInfo], None] = lambda _: None) -> Finding:
    """Import the model in a worker, as `geartrain serve` would, and set it up if that is wanted."""
    try:
        precheck(source)
    except ProjectError as fault:
        return error(fault.message)
    from geartrain.server import ServeOptions, build  # late: it imports the worker's side
    from geartrain.service.workers.pool import ModelSetupError

    began = time.monotonic()
    with _busy(f"{'Setting up' if setup else 'Loading'} {source.runner}"):
        try:
            app = build(ServeOptions(source=source))
            info = asyncio.run(_set_up(source) if setup else app.inspect_worker())
            if source.mode == "predict":
                app.check_examples(info.signature)
        except ModelSetupError as fault:
            return _not_loaded(fault.reason, fault.logs)
    learn(info)
    done = f"loads, and is set up after {time.monotonic() - began:.1f} s" if setup else "loads"
    kind = SCRIPT_TITLES.get(source.backend or "")
    if kind is not None:
        return ok(f"{source.runner}: {kind}; {done}; asked as there, at /invoke, and over every protocol")
    return ok(f"{source.runner}: {done}; {_summary(info.signature)}{_kept(source, info)}{_costs(info)}")


async def _set_up(source: ModelSource) -> WorkerInfo:
    """Set the model up in one worker, with its first warm-up at most; raises `ModelSetupError`."""
    from geartrain.server import ServeOptions, build

    alone = msgspec.structs.replace(source, replicas=1, warmup=source.warmup[:1])  # `max_cost: auto` needs one
    app = build(ServeOptions(source=alone, on_progress=lambda _: None))
    try:
        app.spawn()
        await app.start()
        return (await app.ready()).interface.info
    finally:
        await app.stop()


def _not_loaded(reason: str, printed: str) -> Finding:
    sys.stderr.write(printed)
    sys.stderr.flush()
    library = _NO_LIBRARY.fullmatch(reason)
    if library is not None:
        return error(library[1], library[2])
    if _CUDA.search(reason) and (torch := machine.find_torch()) is not None and not machine.has_gpu():
        return error(f"{reason} ({torch}; no GPU here)", _CHOOSE_DEVICE)
    module = _NO_MODULE.search(reason)
    if module is None or _NOT_INSTALLED.search(reason) is None:
        return error(reason)
    name = module[1].partition(".")[0]
    return error(_NOT_INSTALLED.sub("", reason), f"if it is a package: {install(_PACKAGES.get(name, name))}")


def _summary(signature: Signature) -> str:
    names = [f"{field.name}: {field.type.kind}" for field in signature.inputs]
    mode = {"value": "", "iterator": "iterator of ", "concatenate": "streamed "}[signature.output.mode]
    if signature.takes_request:
        return f"it takes whole requests{f', and {_tensors(signature.open_inputs)}' if signature.takes_tensors else ''}"
    if signature.open_inputs or signature.open_outputs:
        return f"it takes {_tensors(signature.open_inputs)} and gives {mode}{_tensors(signature.open_outputs)}"
    return f"it takes {', '.join(names) or 'nothing'} and gives {mode}{signature.output.type.kind}"


def _tensors(declared: Sequence[DeclaredTensor]) -> str:
    return ", ".join(f"{each.name}: {each.datatype} {list(each.shape)}" for each in declared) or "any tensors"


def _kept(source: ModelSource, info: WorkerInfo) -> str:
    """Describe the cache of a model's answers; "" without one."""
    from geartrain.domain.predictions.caching import effective_cache

    cache = effective_cache(source.cache, info.cache) if source.mode == "predict" else None
    if cache is None:
        return ""
    by = "@cached" if source.cache is None else "geartrain.yaml"
    shared = ", shared by all clients" if cache.share else ""
    folder = f" and in {cache.folder}" if cache.folder else ""
    return f"; its answers are kept for {cache.ttl:g} s in up to {cache.max_bytes} bytes{folder}{shared} ({by})"


def _costs(info: WorkerInfo) -> str:
    """Describe a limit of a call's cost that a start finds; "" without one."""
    policy = None if info.batching is None else info.batching.policy
    if policy is None or not policy.auto_cost:
        return ""
    return f"; a call costs at most {policy.max_cost:.15g} (max_cost: auto)" if policy.max_cost else "; max_cost: auto"


@contextlib.contextmanager
def _busy(step: str) -> Iterator[None]:
    """Show a person that it takes time."""
    if not logs.is_terminal(sys.stderr):
        yield
        return
    from rich.console import Console

    from geartrain.cli.activity import Activity

    activity = Activity(Console(stderr=True, highlight=False), step)
    try:
        yield
    finally:
        activity.end()


def _show(finding: Finding) -> None:
    mark, plain, colour = _MARKS[finding.level]
    arrow = "→"
    if not _can_write(mark + arrow):
        mark, arrow = plain, "->"
    _echo(f"{typer.style(mark, fg=colour, bold=True)} {finding.text}")
    if finding.fix:
        _echo(f"  {typer.style(arrow, fg='cyan')} {finding.fix}")


def _can_write(text: str) -> bool:
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _sum(counts: dict[Level, int]) -> str:
    parts = [
        f"{count} {noun}{'' if count == 1 else 's'}"
        for count, noun in ((counts["error"], "error"), (counts["warning"], "warning"))
        if count
    ]
    return f"{', '.join(parts)}." if parts else "All is well."


def _echo(text: str) -> None:
    typer.echo(text, color=False if os.environ.get("NO_COLOR") else None)
