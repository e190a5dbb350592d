"""What is asked of a model, and the check of it before anything is started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from geartrain.domain.errors import Code, FieldError, GeartrainError
from geartrain.domain.predictions.inference import NO_SCHEDULE, Parameters, SchedulePolicy
from geartrain.domain.predictions.webhook import Webhook
from geartrain.domain.tensors.tensor import Tensor
from geartrain.service.models.interface import Interface
from geartrain.service.ports import InputFilesPort, OutputsPort

SECRET_ECHO: Final = "**********"  # noqa: S105 - what is shown in place of a secret


class NewPrediction(msgspec.Struct, frozen=True):
    """What a request asks for. `input` is a JSON object in UTF-8; `created_at` in seconds since the epoch."""

    input: bytes = b"{}"
    id: str | None = None
    context: dict[str, str] | None = None
    created_at: float | None = None
    keep: bool = False  # for a client that will ask for it by its id
    webhook: Webhook | None = None
    output_prefix: str | None = None  # the URL that its output files shall go to
    background: bool = False  # no client waits for its answer
    tensors: tuple[Tensor, ...] | None = None  # inputs that have been checked; see `ItemInput`
    parameters: Parameters | None = None
    queue: int | None = None  # how many may wait before it, where that is not the operator's `Limits.queue`
    schedule: SchedulePolicy = NO_SCHEDULE


class NoInputFiles:
    """In place of the files of inputs, for a model that takes none."""

    def needed(self, values: dict[str, Any]) -> bool:  # noqa: ARG002 - as of `InputFilesPort`
        """No value is a file."""
        return False

    def check(self, values: dict[str, Any]) -> tuple[FieldError, ...]:  # noqa: ARG002 - as of `InputFilesPort`
        """Return no fault: there are no files."""
        return ()

    async def fetch(self, values: dict[str, Any], folder: Callable[[], Path]) -> dict[str, Any]:  # noqa: ARG002
        """Do nothing: there are no files."""
        return values


class Admission:
    """Checks requests against one interface of a model."""

    def __init__(
        self,
        interface: Interface,
        *,
        input_files: InputFilesPort,
        outputs: OutputsPort,
        check_webhook: Callable[[Webhook], tuple[FieldError, ...]],
    ) -> None:
        self.interface = interface
        self.input_files = input_files
        self._outputs = outputs
        self._check_webhook = check_webhook
        self._has_files = bool(interface.validator.file_fields)
        self.secrets = interface.validator.secret_fields

    def check(self, new: NewPrediction) -> dict[str, Any] | None:
        """Return the decoded input if it names files that are to be fetched, None otherwise.

        Raises `GeartrainError`: `INVALID_INPUT` with every wrong field.
        """
        interface = self.interface
        validator = interface.validator if new.tensors is None else interface.plain_validator
        errors = validator.check(new.input)
        if new.webhook is not None:
            errors += self._check_webhook(new.webhook)
        if new.output_prefix is not None:
            fault = self._outputs.fault(new.output_prefix, background=new.background)
            if fault is not None:
                errors += (FieldError(("body", "output_file_prefix"), fault, "value_error.url"),)
        if errors:
            raise _invalid(errors)
        return self._check_files(new.input) if self._has_files else None

    def _check_files(self, raw: bytes) -> dict[str, Any] | None:
        values: dict[str, Any] = msgspec.json.decode(raw)
        if not self.input_files.needed(values):
            return None
        errors = self.input_files.check(values)
        if errors:
            raise _invalid(errors)
        return values

    def echo(self, raw: bytes) -> bytes:
        """Return the input as it is shown to clients, without its `secrets`."""
        values: dict[str, Any] = msgspec.json.decode(raw)
        for name in self.secrets:
            if name in values:
                values[name] = SECRET_ECHO
        return msgspec.json.encode(values)


def _invalid(errors: tuple[FieldError, ...]) -> GeartrainError:
    return GeartrainError(Code.INVALID_INPUT, "The input does not fit the model's signature.", fields=errors)
