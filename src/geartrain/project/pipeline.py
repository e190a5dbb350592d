"""The key `pipeline` of `geartrain.yaml`: models one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from geartrain.domain.signature.pipeline import Pipeline, Step
from geartrain.project.config import kind_of
from geartrain.project.errors import ProjectError

_STEP_KEYS: Final = ("model", "version", "inputs", "output", "outputs")
_KEYS: Final = ("steps", "outputs")


def read_pipeline(value: object) -> Pipeline:
    """Return the pipeline of a list of steps, or of `steps` and `outputs`.

    Raises ValueError for another value, and ProjectError that names the step, the key and the fix.
    """
    outputs: tuple[str, ...] = ()
    place, steps = "pipeline", value
    if isinstance(value, dict):
        _check_keys("pipeline", value, _KEYS)
        place, steps = "pipeline.steps", value.get("steps")
        outputs = _names("pipeline.outputs", value.get("outputs"))
    if not isinstance(steps, list) or not steps:
        raise ValueError
    found = tuple(_step(f"{place}[{index}]", each) for index, each in enumerate(steps))
    return Pipeline(found, outputs, place=place)


def _step(place: str, value: object) -> Step:
    if isinstance(value, str) and value.strip():
        return Step(value.strip())
    if not isinstance(value, dict):
        raise _wrong(place, value, "write `model: NAME`, with `inputs` and `outputs` below it where names differ")
    _check_keys(place, value, _STEP_KEYS)
    model, version = value.get("model"), value.get("version", "")
    if not isinstance(model, str) or not model.strip():
        raise _wrong(f"{place}.model", model, "write the name of a model of the same folder")
    if isinstance(version, int) and not isinstance(version, bool) and version >= 0:
        version = str(version)
    elif version != "":
        raise _wrong(f"{place}.version", version, "write the number of a version, or nothing for the default one")
    if "output" in value and "outputs" in value:
        raise ProjectError(f"`{place}` has `output` and `outputs`; keep one of them")
    return Step(
        model.strip(),
        version=version,
        inputs=_map(f"{place}.inputs", value.get("inputs"), _name_or_none),
        outputs=_map(f"{place}.outputs", value.get("outputs"), _name),
        output="" if "output" not in value else _name(f"{place}.output", value["output"]),
    )


def _check_keys(place: str, value: Mapping[Any, Any], known: tuple[str, ...]) -> None:
    for key in value:
        if key not in known:
            raise ProjectError(f"there is no key `{place}.{key}`; there are {', '.join(known)}")


def _map(place: str, value: object, read: Callable[[str, object], Any]) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise _wrong(place, value, "write lines such as `image: photo`, the name in the model and that of the value")
    return {key: read(f"{place}.{key}", each) for key, each in value.items()}


def _name(place: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _wrong(place, value, "write the name of a value")
    return value.strip()


def _name_or_none(place: str, value: object) -> str | None:
    return None if value is None else _name(place, value)


def _names(place: str, value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not value:
        raise _wrong(place, value, "write a list of values, such as `[boxes, texts]`")
    return tuple(_name(f"{place}[{index}]", each) for index, each in enumerate(value))


def _wrong(place: str, value: object, fix: str) -> ProjectError:
    return ProjectError(f"`{place}` is {kind_of(value)}; {fix}")
