"""Structured values: a class of typed fields."""

from __future__ import annotations

from typing import Any, dataclass_transform


@dataclass_transform()
class BaseModel:
    """Base of structured outputs and inputs. A subclass becomes a dataclass, its fields the fields of a JSON object.

    `class Result(BaseModel, auto_dataclass=False)` leaves the class alone, for an author who writes `@dataclass` or
    `__init__` by hand. Every other class keyword is one of `dataclasses.dataclass`.
    """

    __slots__ = ()

    def __init_subclass__(cls, *, auto_dataclass: bool = True, **settings: Any) -> None:
        super().__init_subclass__()
        if not auto_dataclass:
            if settings:
                raise TypeError(f"{cls.__name__}: {', '.join(settings)} only means something with auto_dataclass")
            return
        from dataclasses import dataclass

        dataclass(**settings)(cls)
