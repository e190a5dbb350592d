"""Permissions of an authenticated client."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final, get_args

import msgspec

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.principal import ANYONE, Principal
from geartrain.transport.routing import Scope, Subject

SCOPES: Final = tuple(scope for scope in get_args(Scope) if scope != "open")
ANY_MODEL: Final = "*"


class Grant(msgspec.Struct, frozen=True):
    """Permissions of a key or a token.

    A scope includes no other one: a key with `admin` alone cannot predict.

    Attributes:
        holder: description for error messages, such as `key 'ada'`.
        scopes: the permitted ones.
        models: patterns as of a shell, in which case matters.
        is_lasting: true if it holds until its source reports a change; otherwise each request needs a new one.
        name: of the key, or the subject of the token, for the log.
        principal: the owner of the predictions that are made with it.
        no_administration: reason for which the scope `admin` is useless on this server; empty if it is not.
    """

    holder: str
    scopes: frozenset[str]
    models: tuple[str, ...] = (ANY_MODEL,)
    is_lasting: bool = True
    name: str = ""
    principal: Principal = Principal()
    no_administration: str = ""

    def check_scope(self, scope: Scope) -> None:
        """Raise `FORBIDDEN` without this scope; `open` needs none. `UNSUPPORTED`: the server has no administration."""
        if scope == "admin" and self.no_administration:
            raise GeartrainError(Code.UNSUPPORTED, self.no_administration)
        if scope not in self.scopes and scope != "open":
            raise GeartrainError(Code.FORBIDDEN, f"The {self.holder} does not have the scope '{scope}'.")

    def check_model(self, model: str) -> None:
        """Raise `FORBIDDEN` for a model that no pattern fits."""
        for pattern in self.models:
            if pattern == ANY_MODEL or fnmatchcase(model, pattern):
                return
        raise GeartrainError(Code.FORBIDDEN, f"The {self.holder} is not for the model '{model[:200]}'.")

    def check_subject(self, subject: Subject, model: str | None) -> None:
        """Raise `FORBIDDEN` for what concerns other models than those of the patterns.

        `model` counts where `subject` is `model`; None stands for a default model where there is none.
        """
        if subject == "model" and model is not None:
            self.check_model(model)
        elif subject == "all" and ANY_MODEL not in self.models:
            msg = f"The {self.holder} is for some models only, and this concerns all of them."
            raise GeartrainError(Code.FORBIDDEN, msg)


EVERYTHING: Final = Grant("server", frozenset(SCOPES), principal=ANYONE)
