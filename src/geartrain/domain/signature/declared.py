"""Tensors of a model file that the configuration of another server declares, beside the file's own."""

from __future__ import annotations

from typing import Final, Literal

import msgspec


class DeclaredTensor(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A tensor as clients are to see it. `shape` has -1 where any size will do.

    `is_reshaped`: in the file it has the shape `inner`, with as many open sizes, in the same order.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False
    is_reshaped: bool = False
    inner: tuple[int, ...] = ()

    @property
    def in_file(self) -> tuple[int, ...]:
        """The shape that the file has for it."""
        return self.inner if self.is_reshaped else self.shape


class Declared(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Declared tensors of a model; none where the file decides.

    `origin` is the name of the file that says so. `first` is the first dimension of all tensors: that of a batch, one
    like any other, or whatever the model's file makes it. `platform` is what metadata says, "" for what the backend
    calls it. `columns`: an output of one number for each row has the shape [rows, 1]. `takes_any`: the one input may be
    sent under any name, and as numbers of any datatype.
    """

    origin: str = ""
    inputs: tuple[DeclaredTensor, ...] = ()
    outputs: tuple[DeclaredTensor, ...] = ()
    first: Literal["undecided", "batch", "plain"] = "undecided"
    platform: str = ""
    columns: bool = False
    takes_any: bool = False


NOTHING_DECLARED: Final = Declared()
