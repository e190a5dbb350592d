"""The prediction that a request asks for, and its check before anything is started."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec

from geartrain.domain.errors import Code, FieldError, GeartrainError
from geartrain.domain.predictions.calls import WorkerInfo
from geartrain.domain.predictions.inference import NO_SCHEDULE, Parameters, SchedulePolicy
from geartrain.domain.predictions.prediction import Webhook
from geartrain.domain.predictions.request_context import NO_REQUEST, RequestContext
from geartrain.domain.principal import ANYONE, Principal
from geartrain.domain.signature.tensor_view import TensorView, view_of
from geartrain.domain.signature.validation import InputValidator
from geartrain.domain.tensors.tensor import Tensor
from geartrain.service.ports import FolderPort, InputFilesPort, OutputsPort
from geartrain.service.scheduling.files import Attachments

if TYPE_CHECKING:
    from geartrain.service.scheduling.nested import NestedRun
else:
    NestedRun = object  # a field of a struct


class Interface:
    """The inputs and outputs of a model, and what is derived of them. Made once when a worker has loaded the model."""

    def __init__(self, info: WorkerInfo) -> None:
        self.info = info
        self.signature = info.signature
        self.validator = InputValidator(info.signature)

    @cached_property
    def plain_validator(self) -> InputValidator:
        """The check of the inputs that are no tensors, for a request that brings its tensors as such."""
        plain = tuple(field for field in self.signature.inputs if field.type.kind != "tensor")
        return InputValidator(msgspec.structs.replace(self.signature, inputs=plain))

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """The values of inputs that are left out. Empty for a model that takes requests as they came."""
        if self.signature.contract:
            return {}
        return {field.name: field.default for field in self.signature.inputs if not field.required}

    @cached_property
    def view(self) -> TensorView:
        """The model's inputs and outputs as tensors."""
        return view_of(self.signature)


_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_LONGEST_TEXTS: Final = 1_048_576  # characters of a context, or of the parameters of a request
SECRET_ECHO: Final = "**********"  # noqa: S105 - what is shown in place of a secret


class CheckedInput(msgspec.Struct, frozen=True):
    """Result of checking an input off the loop against one interface of a model.

    `values`: as `Admission.check` returns it. `echo`: as `Admission.echo` does, None for the input itself.
    """

    interface: Interface
    errors: tuple[FieldError, ...] = ()
    values: dict[str, Any] | None = None
    echo: bytes | None = None


class BoundInput(msgspec.Struct, frozen=True):
    """The input of a nested prediction, bound off the loop to one interface of a model.

    `checked`: None if its check is left to `Admission.check`.
    """

    interface: Interface
    json: bytes
    tensors: tuple[Tensor, ...] | None = None
    checked: CheckedInput | None = None


class NewPrediction(msgspec.Struct, frozen=True):
    """A requested prediction. `input` is a JSON object in UTF-8; `created_at` in seconds since the epoch."""

    input: bytes = b"{}"
    id: str | None = None
    context: dict[str, str] | None = None
    created_at: float | None = None
    keep: bool = False  # for a client that will ask for it by its id
    accepted: bool = False  # with an `id`: its client is told so, and need not wait; a store has it outlive the server
    version: str = ""  # of the model, if the client names one
    webhook: Webhook | None = None
    output_prefix: str | None = None  # the URL that its output files shall go to
    inline: bool = False  # its output files are given as `data:` URLs, wherever the operator wants others
    background: bool = False  # no client waits for its answer
    tensors: tuple[Tensor, ...] | None = None  # inputs that have been checked; see `ItemInput`
    parameters: Parameters | None = None
    nested: bool = False  # part of another prediction: it is admitted as long as that one runs
    queue: int | None = None  # predictions that may wait before it; None for the operator's `Limits.queue`
    schedule: SchedulePolicy = NO_SCHEDULE
    request: RequestContext = NO_REQUEST  # that asks for it
    attachments: Attachments | None = None  # files that came with the request
    principal: Principal = ANYONE  # the client that it belongs to
    pieces: bool = False  # a response that is streamed may come as outputs, one for each piece
    made_for: NestedRun | None = None  # the call of a model by another one
    results: FolderPort | None = None  # the folder of its output files, for the model that called it
    checked: CheckedInput | None = None  # of a large input; without it, or for another interface, it is checked here


class Admission:
    """Checks requests against one interface of a model."""

    def __init__(
        self,
        interface: Interface,
        *,
        input_files: InputFilesPort | None,
        own_files: InputFilesPort | None = None,
        outputs: OutputsPort,
        check_webhook: Callable[[Webhook], tuple[FieldError, ...]],
    ) -> None:
        """`input_files`: None for a model that takes no files.

        `own_files` are for inputs of other models of the server, which may name files of this machine.
        """
        self.interface = interface
        self.input_files = input_files
        self.own_files = own_files
        self._outputs = outputs
        self._check_webhook = check_webhook
        self.secrets = interface.validator.secret_fields

    def check(self, new: NewPrediction) -> dict[str, Any] | None:
        """Return the decoded input if it has files, which are to be fetched or came with the request, else None.

        Raises `GeartrainError`: `INVALID_INPUT` with every wrong field.
        """
        interface = self.interface
        checked = new.checked if new.checked is not None and new.checked.interface is interface else None
        validator = interface.validator if new.tensors is None else interface.plain_validator
        errors = validator.check(new.input) if checked is None else checked.errors
        if new.context is not None or new.parameters is not None:
            _check_texts(new)
        if new.attachments is not None:
            errors += self._check_attachments(new.attachments)
        if new.webhook is not None:
            errors += self._check_webhook(new.webhook)
        if new.output_prefix is not None:
            fault = self._outputs.fault(new.output_prefix, background=new.background)
            if fault is not None:
                errors += (FieldError(("body", "output_file_prefix"), fault, "value_error.url"),)
        if errors:
            raise _invalid(errors)
        if checked is not None:
            return checked.values
        files = self.input_files if new.made_for is None else self.own_files
        return None if files is None else _check_files(new.input, new.attachments, files)

    def check_plain(self, data: bytes) -> None:
        """Check an input of JSON that came with nothing else, for a model without files. Raises as `check`."""
        errors = self.interface.validator.check(data)
        if errors:
            raise _invalid(errors)

    def _check_attachments(self, attachments: Attachments) -> tuple[FieldError, ...]:
        """Say which files came for inputs that take none; the model may have been reloaded since they came."""
        names = {file.name for file in attachments.files}.difference(self.interface.validator.file_fields)
        return tuple(FieldError(("body", "input", name), "takes no file", "value_error") for name in sorted(names))

    def echo(self, new: NewPrediction) -> bytes:
        """Return the input as it is shown to clients, without its `secrets`."""
        checked = new.checked
        if checked is not None and checked.interface is self.interface:
            return new.input if checked.echo is None else checked.echo
        return without_secrets(new.input, self.secrets)


def _check_files(raw: bytes, attachments: Attachments | None, input_files: InputFilesPort) -> dict[str, Any] | None:
    values: dict[str, Any] = msgspec.json.decode(raw)
    if attachments is not None:
        attachments.take_out(values)
    if not (attachments is not None and attachments.files) and not input_files.needed(values):
        return None
    errors = input_files.check(values)
    if errors:
        raise _invalid(errors)
    return values


def _check_texts(new: NewPrediction) -> None:
    """Refuse texts beside the input that are longer than any use of them: they travel in the message of the call."""
    for name, members in (("context", new.context), ("parameters", new.parameters)):
        size = sum([len(key) + (len(value) if type(value) is str else 0) for key, value in (members or {}).items()])
        if size > _LONGEST_TEXTS:
            fault = f"it has more than {_LONGEST_TEXTS} characters"
            field = FieldError(("body", name), fault, "value_error")
            raise GeartrainError(Code.INVALID_INPUT, f"{name}: {fault}", fields=(field,))


def without_secrets(raw: bytes, secrets: Collection[str]) -> bytes:
    """Return an input without the values of the members that are named in `secrets`."""
    values = _decode_members(raw)
    return msgspec.json.encode({name: SECRET_ECHO if name in secrets else value for name, value in values.items()})


def _invalid(errors: tuple[FieldError, ...]) -> GeartrainError:
    return GeartrainError(Code.INVALID_INPUT, "The input does not fit the model's signature.", fields=errors)
