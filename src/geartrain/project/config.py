"""`cog.yaml`: the keys a server needs of it. Keys that only concern a build (`build`, `image` ...) are passed over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from geartrain.project.errors import ProjectError
from geartrain.project.variables import check

if TYPE_CHECKING:
    import pathlib

CONFIG_NAME = "cog.yaml"
USUAL_FILES = ("run.py", "predict.py")


class CogConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a `cog.yaml` that says how to run a model; None and empty where the file is silent."""

    run: str | None = None
    train: str | None = None
    max_concurrency: int | None = None
    environment: Mapping[str, str] = {}


def read_config(folder: pathlib.Path) -> CogConfig:
    """Read `folder/cog.yaml`; a missing file is an empty one.

    Raises ProjectError naming the file, the key and the fix when the file is not YAML or a value has a wrong type.
    """
    path = folder / CONFIG_NAME
    text = read_text(path)
    return CogConfig() if text is None else _Reader(path, parse(path, text)).config()


def code_file(folder: pathlib.Path) -> str | None:
    """Return the name of the file by which a folder is a model that is code; None if there is none."""
    return next((name for name in (CONFIG_NAME, *USUAL_FILES) if (folder / name).is_file()), None)


def faults(path: pathlib.Path, document: Mapping[object, object]) -> list[ProjectError]:
    """Return the errors of `read_config` for all keys that it reads."""
    return list(_Reader(path, document).faults())


def read_text(path: pathlib.Path) -> str | None:
    """Return the text of a file, None if there is none; raises ProjectError when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise ProjectError(f"{path}: the file is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise ProjectError(f"{path}: {error.strerror}") from None


def read_environment(path: pathlib.Path, document: Mapping[object, object]) -> Mapping[str, str]:
    """Return the variables below the key `environment`; raises ProjectError when they have a wrong form."""
    return _Reader(path, document).environment()


def parse(path: pathlib.Path, text: str, *, example: str = "run: run.py:Runner") -> Mapping[object, object]:
    """Return the keys and values of a file; raises ProjectError when it is not YAML, or has no keys."""
    import yaml  # here, because most small models have no cog.yaml

    try:
        document = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506  both are safe
    except yaml.MarkedYAMLError as error:
        last = text.rstrip().count("\n")  # an unclosed part is noticed behind it
        line = f":{min(error.problem_mark.line, last) + 1}" if error.problem_mark else ""
        raise ProjectError(f"{path}{line}: not valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a timestamp or number that YAML admits, Python not
        raise ProjectError(f"{path}: not valid YAML: {error}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ProjectError(f"{path}: expected keys such as `{example}`, found {kind_of(document)}")
    return document


class _Reader:
    """Takes typed values out of the document, or says which key is wrong and what belongs there."""

    def __init__(self, path: pathlib.Path, document: Mapping[object, object]) -> None:
        self._path = path
        self._document = document

    def config(self) -> CogConfig:
        return CogConfig(
            run=self._runner(),
            train=self._reference("train"),
            max_concurrency=self._max_concurrency(),
            environment=self.environment(),
        )

    def faults(self) -> Iterator[ProjectError]:
        for read in (self._runner, lambda: self._reference("train"), self._max_concurrency, self.environment):
            try:
                read()
            except ProjectError as error:
                yield error

    def _wrong(self, key: str, found: object, fix: str) -> ProjectError:
        return ProjectError(f"{self._path}: `{key}` is {kind_of(found)}; {fix}")

    def _runner(self) -> str | None:
        run, predict = self._reference("run"), self._reference("predict")
        if run is not None and predict is not None and run != predict:
            raise ProjectError(f"{self._path}: `run` and `predict` name different runners; keep `run` alone")
        return run if run is not None else predict

    def _reference(self, key: str) -> str | None:
        value = self._document.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip():
            raise self._wrong(key, value, f"write a file and a class, such as `{key}: run.py:Runner`")
        return value.strip()

    def _max_concurrency(self) -> int | None:
        section = self._document.get("concurrency")
        if section is None:
            return None
        if not isinstance(section, dict):
            raise self._wrong("concurrency", section, "write a `max:` line indented below it")
        value = section.get("max")
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self._wrong("concurrency.max", value, "write a whole number of at least 1")
        return value

    def environment(self) -> dict[str, str]:
        section = self._document.get("environment")
        if section is None:
            return {}
        if isinstance(section, list):
            return dict(self._assignment(index, item) for index, item in enumerate(section))
        if isinstance(section, dict):
            return dict(self._entry(name, value) for name, value in section.items())
        raise self._wrong("environment", section, "write a list of `KEY=VALUE` lines")

    def _assignment(self, index: int, item: object) -> tuple[str, str]:
        key = f"environment[{index}]"
        if not isinstance(item, str):
            raise self._wrong(key, item, "write `- KEY=VALUE`")
        name, equals, value = item.partition("=")
        if not equals:
            raise ProjectError(f"{self._path}: `{key}` is `{item}`, without a value; write `- {item}=VALUE`")
        return self._assigned(key, name, value)

    def _entry(self, name: object, value: object) -> tuple[str, str]:
        key = f"environment.{name}"
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):  # YAML has already lost how `yes` or `1.10` was written
            raise self._wrong(key, value, "put the value in quotes")
        return self._assigned(key, str(name), value)

    def _assigned(self, key: str, name: str, value: str) -> tuple[str, str]:
        if not name or not name.isprintable() or "=" in name or name != name.strip():
            raise ProjectError(f"{self._path}: `{key}` has an unusable name {name!r}; write `KEY=VALUE`")
        if "\0" in value:
            raise ProjectError(f"{self._path}: `{key}` holds a NUL character, which no environment can carry")
        if (wrong := check(name, value)) is not None:
            fault, fix = wrong
            raise ProjectError(f"{self._path}: `{key}` sets {fault}; {fix}")
        return name, value


def kind_of(value: object) -> str:
    """Name a YAML value for a person; short ones are quoted."""
    match value:
        case None:
            return "empty"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {value}"
        case str():
            return f"the text {value!r}" if value.strip() else "empty text"
        case list():
            return "a list"
        case dict():
            return "a group of keys"
    return f"a {type(value).__name__}"
