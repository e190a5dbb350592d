"""Loads an author's model: imports its file, finds the runner in it, and reads its signature."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from geartrain.authoring.decorators import (
    BATCHED_ATTRIBUTE,
    CACHED_ATTRIBUTE,
    CONCURRENT_ATTRIBUTE,
    JOINT_ATTRIBUTE,
    batched,
)
from geartrain.authoring.nested import bind_models, declared_models
from geartrain.domain.predictions.batching import Batching
from geartrain.domain.predictions.caching import CacheSettings
from geartrain.domain.signature.types import Signature
from geartrain.worker.loading.callables import decorator_value, is_async, is_generator, lacks_self, layers
from geartrain.worker.loading.descriptions import Compose
from geartrain.worker.loading.finding import METHODS, Mode, find_runner, is_own
from geartrain.worker.loading.load_errors import LoadError, blame, line_of, relative, syntax_message
from geartrain.worker.loading.setup import read_setup
from geartrain.worker.loading.signature import (
    Parameter,
    UnsupportedAnnotationError,
    make_signature,
    read_output,
    read_parameters,
    refuse_foreign_limits,
    return_text,
)

_REQUESTS: Final = "geartrain.authoring.requests"
_ENVIRONMENT: Final = "site-packages"


class UncachedSource(SourceFileLoader):
    """Compiles a source each time that it is imported."""

    def path_stats(self, path: Any) -> Any:
        """Give no date to compare with: without one, `SourceLoader` neither reads nor writes bytecode."""
        raise OSError(f"{path} is compiled anew")


_find: Final = FileFinder.path_hook(
    (ExtensionFileLoader, EXTENSION_SUFFIXES),
    (UncachedSource, SOURCE_SUFFIXES),
    (SourcelessFileLoader, BYTECODE_SUFFIXES),
)


def import_uncached(root: Path) -> None:
    """Have every import from a model's folder compile its source; an environment inside of it is left alone."""

    def hook(path: str) -> Any:
        place = Path(path)
        if not place.is_relative_to(root) or _ENVIRONMENT in place.relative_to(root).parts:
            raise ImportError(f"{path} is no folder of the model")
        return _find(path)

    sys.path_hooks.insert(0, hook)
    for known in list(sys.path_importer_cache):
        if Path(known).is_relative_to(root):
            del sys.path_importer_cache[known]


_OURS = "geartrain"
_COGS = frozenset({"cog", "coglet"})


def is_for_cog(target: Any) -> bool:
    """Tell whether a runner, a class or a function, was written for Cog.

    That is so if the file that defines it, or one that defines a base class of it, imports `cog`, and none of them
    imports `geartrain`.
    """
    texts = [_text_of(name) for name in _modules_of(target)]
    if not any(b"cog" in text for text in texts):  # most models: nothing has to be parsed
        return False
    found = set().union(*map(_imports_of, texts))
    return bool(found & _COGS) and _OURS not in found


def _modules_of(target: Any) -> Iterable[str]:
    owners = target.__mro__ if isinstance(target, type) else layers(target)
    names = dict.fromkeys(str(getattr(owner, "__module__", "")) for owner in owners)
    return [name for name in names if name.partition(".")[0] not in {_OURS, "builtins"}]


def _text_of(name: str) -> bytes:
    """The text of a module; empty for one that has none in Python."""
    path = getattr(sys.modules.get(name), "__file__", None)
    try:
        return Path(path).read_bytes() if path else b""
    except OSError:
        return b""


def _imports_of(text: bytes) -> set[str]:
    """The top-level packages that a module imports, anywhere in its text."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):  # e.g. of a compiled module
        return set()
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    found |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    return {each.partition(".")[0] for each in found}


__all__ = ["LoadError", "LoadedRunner", "load", "load_module", "load_object", "load_target"]

_PACKAGE: Final = "geartrain_model"
"""The package that a runner's file is in for its relative imports, where its folder is none that can be imported."""


class LoadedRunner(NamedTuple):
    """A model, ready for its `setup()`. `instance` is None for a model that is a function."""

    instance: Any
    run: Callable[..., Any]
    setup: Callable[..., Any] | None
    setup_takes: frozenset[str]  # of `setup.GIVEN`
    healthcheck: Callable[[], Any] | None
    is_async: bool
    is_generator: bool
    signature: Signature
    max_concurrency: int | None
    parameters: tuple[Parameter, ...]
    batching: Batching | None = None
    returns: str = ""  # its annotated return type, such as "run() is annotated int"; empty: none
    for_cog: bool = False  # written for Cog: what is wrong with an output is passed on
    compose: Compose | None = None  # makes the one argument of a model that takes whole requests
    platform: str = ""  # runtime of the model, if it is no Python class
    calls: tuple[str, ...] = ()  # other models that its class declares, as `name` or `name@version`
    cache: CacheSettings | None = None  # of its answers, as `@cached` says


def load(ref: str, root: Path, mode: Mode = "predict", *, batching: Mapping[str, Any] | None = None) -> LoadedRunner:
    """Load the model that `ref` names, and make its instance; `setup()` is left to the caller.

    `ref` is `run.py:Runner`, `run.py`, or `package.module:name`, below the folder `root`, which comes first on
    `sys.path`. Without a name it is the class `Runner` or `Predictor`, the one function `run` or `predict`, or the only
    class with such a method. With `mode` "train" it is a function, or the `train()` of a class; without a name, of
    `Trainer`, `Runner` or `Predictor`, the function `train`, or the only class with `train()`. `batching` are settings
    that come before those of `@batched`. Raises `LoadError`.
    """
    root = root.resolve()
    target, where = load_target(ref, root, mode)
    return load_object(target, where, root, mode=mode, batching=batching)


def load_instance(
    instance: Any, run: Callable[..., Any], root: Path, *, owner: str, batching: Mapping[str, Any] | None = None
) -> LoadedRunner:
    """Make a model of an object of our own and its `run`; `owner` is how errors call that.

    `batching` are settings of one that takes a list of requests.
    """
    run = run if batching is None else batched(**batching)(_as_function(run))
    return _runner(run, _read(run, owner, mode="predict", settings=None), root, instance=instance)


def _as_function(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a bound method, which cannot be decorated."""

    @wraps(method)
    def function(*arguments: Any, **named: Any) -> Any:
        return method(*arguments, **named)

    return function


def load_module(location: str, root: Path) -> tuple[ModuleType, str]:
    """Import a file in `root`, which comes first on `sys.path`, or a module; return it and its file.

    Raises `LoadError`.
    """
    _make_first(root)
    module = _import(location, root)
    return module, relative(vars(module).get("__file__") or location, root)


def load_object(
    target: Any, where: str, root: Path, *, mode: Mode = "predict", batching: Mapping[str, Any] | None = None
) -> LoadedRunner:
    """Make a model of a class or a function that is imported already; `where` is its file. As `load` otherwise."""
    if inspect.isclass(target):
        instance, run, owner = _make(target, where, root, mode=mode)
    else:
        instance, run, owner = None, target, f"{getattr(target, '__name__', type(target).__name__)}()"
    for_cog = is_for_cog(target)
    try:
        run = _joined(run, owner)
        described = _read(run, owner, mode=mode, settings=batching)
        if not for_cog:  # Cog passes such limits over
            refuse_foreign_limits(run, owner_name=owner)
    except UnsupportedAnnotationError as error:
        raise LoadError(f"{line_of(layers(run)[-1], where, root)}: {error}") from error
    runner = _runner(run, described, root, instance=instance)
    if "device" in runner.setup_takes and for_cog:  # Cog gives it none: such a parameter has its default
        runner = runner._replace(setup_takes=runner.setup_takes - {"device"})
    returns = return_text(run, owner_name=owner)
    if not returns:
        return runner
    called = owner.rpartition(".")[2]
    return runner._replace(returns=f"{called} is annotated {returns}", for_cog=for_cog)


def load_target(ref: str, root: Path, mode: Mode = "predict") -> tuple[Any, str]:
    """Import what `ref` names; return the class, the function or the object, and its file. Raises `LoadError`."""
    _make_first(root)
    location, _, name = ref.partition(":")
    module = _import(location, root)
    where = relative(getattr(module, "__file__", None) or location, root)
    target = find_runner(module, name, where, mode=mode)
    if not callable(target):
        raise LoadError(f"{where}: {name!r} is of type {type(target).__name__}; name a class or a function")
    return target, where


def _make_first(root: Path) -> None:
    if str(root) not in sys.path[:1]:
        sys.path.insert(0, str(root))
        import_uncached(root)


def _import(location: str, root: Path) -> ModuleType:
    try:
        if location.endswith(".py"):
            return _import_file((root / location).resolve(), root)
        return importlib.import_module(location)
    except LoadError:
        raise
    except SyntaxError as error:
        in_file = error.filename is not None and Path(error.filename).is_file()
        found = LoadError(syntax_message(error, root)) if in_file else blame(error, root, fallback=location)
        raise found from error
    except (Exception, SystemExit) as error:
        raise blame(error, root, fallback=location) from error


def _import_file(path: Path, root: Path) -> ModuleType:
    """Import a file under its own name, so that pickle and dataclasses find it again in `sys.modules`."""
    if not path.is_file():
        raise LoadError(f"there is no file {relative(path, root)} in {root}")
    name = path.stem
    present = sys.modules.get(name)
    if present is not None and getattr(present, "__file__", None) != str(path):
        name = f"geartrain_model_{name}"  # a file called like a library: that one stays importable
    loader = UncachedSource(name, str(path))
    spec = _FileSpec(name, loader, origin=str(path))
    spec.has_location = True
    spec.package = _package_of(path.parent, root)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


class _FileSpec(ModuleSpec):
    """The spec of a runner's file: imported under its own name, while its relative imports start at its folder."""

    package = ""

    @property
    def parent(self) -> str:
        """The package that `from .helper import x` looks into."""
        return self.package


def _package_of(folder: Path, root: Path) -> str:
    """Return the name of the package that a folder is, so that `from .a` and `from folder.a` are one module."""
    parts = folder.relative_to(root).parts if folder.is_relative_to(root) else ()
    if parts and all(part.isidentifier() for part in parts):
        try:
            spec = importlib.util.find_spec(parts[0])
        except ValueError:  # a module of that name without a spec
            spec = None
        if spec is not None and str(root / parts[0]) in list(spec.submodule_search_locations or ()):
            return ".".join(parts)
    package = sys.modules.setdefault(_PACKAGE, ModuleType(_PACKAGE))
    package.__path__ = [str(folder)]
    return _PACKAGE


def _make(cls: type, where: str, root: Path, *, mode: Mode) -> tuple[Any, Callable[..., Any], str]:
    """An instance of the author's class, its bound method, and what errors call that."""
    methods = [method for method in METHODS[mode] if is_own(cls, method)]
    if not methods:
        wanted = " or ".join(f"{method}()" for method in METHODS[mode])
        line = line_of(cls, where, root)
        raise LoadError(f"{line}: the class {cls.__name__} has no {wanted}: write the method {METHODS[mode][0]}()")
    if len(methods) > 1:
        line = line_of(cls, where, root)
        raise LoadError(f"{line}: the class {cls.__name__} has both run() and predict(): keep one of them")
    for method in (*methods, "setup", "healthcheck"):
        _check_self(cls, method, where, root=root)
    bind_models(cls)
    try:
        instance = cls()
    except (Exception, SystemExit) as error:
        raise blame(error, root, fallback=line_of(cls, where, root)) from error
    return instance, getattr(instance, methods[0]), f"{cls.__name__}.{methods[0]}()"


def _check_self(cls: type, method: str, where: str, *, root: Path) -> None:
    """Raise `LoadError` for a method that its author has written without `self`."""
    function = inspect.getattr_static(cls, method, None)
    if is_own(cls, method) and inspect.isfunction(function) and lacks_self(function, cls):
        written = layers(function, bound=True)[-1]
        asynchronous = "async " if inspect.iscoroutinefunction(written) else ""
        rest = ", ..." if written.__code__.co_argcount + written.__code__.co_kwonlyargcount else ""
        raise LoadError(
            f"{line_of(written, where, root)}: {cls.__name__}.{method}() has no parameter self:"
            f" write `{asynchronous}def {method}(self{rest})`"
        )


def _joined(run: Callable[..., Any], owner: str) -> Callable[..., Any]:
    """See `joint_signature.joined`."""
    if decorator_value(run, JOINT_ATTRIBUTE) is None:
        return run
    from geartrain.worker.loading.joint_signature import joined  # few models need it

    return joined(run, owner_name=owner)


class _Described(NamedTuple):
    """Description of a `run()`."""

    parameters: tuple[Parameter, ...]
    signature: Signature
    batching: Batching | None = None
    compose: Compose | None = None


def _read(run: Callable[..., Any], owner: str, *, mode: Mode, settings: Mapping[str, Any] | None) -> _Described:
    """Read the signature, which of a batched `run()` is that of one request. Raises `UnsupportedAnnotationError`."""
    is_batched = decorator_value(run, BATCHED_ATTRIBUTE) is not None
    if mode == "train":
        _check_training(run, owner)
    if _REQUESTS in sys.modules:  # the author has imported them
        from geartrain.worker.loading.open_signature import read_open

        found = read_open(run, owner_name=owner, settings=(settings or {}) if is_batched else None)
        if found is not None:
            return _Described(*found)
    if is_batched:
        from geartrain.worker.loading.batched_signature import read_batched

        return _Described(*read_batched(run, owner_name=owner, settings=settings or {}))
    if settings and mode == "predict":
        raise UnsupportedAnnotationError(
            f"there are settings for batching ({', '.join(settings)}), and {owner} takes one prediction at a time:"
            " decorate it with @geartrain.batched, or take `batching` out of geartrain.yaml"
        )
    parameters = read_parameters(run, owner_name=owner)
    return _Described(parameters, make_signature(run, parameters, read_output(run, owner_name=owner)))


def _check_training(run: Callable[..., Any], owner: str) -> None:
    for attribute, name, reason in (
        (BATCHED_ATTRIBUTE, "@batched", "trainings run one by one"),
        (CACHED_ATTRIBUTE, "@cached", "trainings are not kept for equal requests"),
    ):
        if decorator_value(run, attribute) is not None:
            raise UnsupportedAnnotationError(f"{owner} has the decorator {name}, and {reason}: remove it")


def _runner(run: Callable[..., Any], described: _Described, root: Path, *, instance: Any) -> LoadedRunner:
    if described.signature.gives_response and described.batching is None:
        from geartrain.worker.loading.open_signature import in_pieces

        run = in_pieces(run)
    setup = _own_method(instance, "setup")
    cache = decorator_value(run, CACHED_ATTRIBUTE)
    setup, taken = (None, frozenset[str]()) if setup is None else read_setup(setup, root)
    return LoadedRunner(
        instance=instance,
        run=run,
        setup=setup,
        setup_takes=taken,
        healthcheck=_own_method(instance, "healthcheck"),
        is_async=is_async(run),
        is_generator=is_generator(run),
        signature=described.signature,
        max_concurrency=decorator_value(run, CONCURRENT_ATTRIBUTE),
        parameters=described.parameters,
        batching=described.batching,
        compose=described.compose,
        calls=() if instance is None else _declared(type(instance)),
        cache=None if cache is None else CacheSettings(**cache),
    )


def _declared(owner: type) -> tuple[str, ...]:
    """Return the other models that a class declares."""
    models = declared_models(owner).values()
    return tuple(sorted({f"{each.name}@{each.version}" if each.version else each.name for each in models}))


def _own_method(instance: Any, method: str) -> Callable[..., Any] | None:
    if instance is None or not is_own(type(instance), method):
        return None
    bound: Callable[..., Any] = getattr(instance, method)
    return bound
