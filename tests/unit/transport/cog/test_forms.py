"""Inputs that come as forms or as files: their values, their files, and what is left of those that fail."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import geartrain
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.principal import ANYONE
from geartrain.domain.signature.types import InputField, OutputSpec, Signature, TypeSpec
from geartrain.outbound.inputs import InputFiles
from geartrain.outbound.policy import UrlPolicy
from geartrain.outbound.workspace import AttachmentStore, Workspace
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import Deployment, DeploymentSettings, Limits
from geartrain.service.readers import completion
from geartrain.service.scheduling.files import SINGLE
from geartrain.transport.cog.forms import MAX_TEXT, Form, FormExchange, admit_form, may_be_input, read_form, wrong_type
from geartrain.transport.wire.exchange import ClientGoneError
from tests.support.deployments import FakeOutbound, close, deploy
from tests.support.fakes import FakeWorker
from tests.support.folders import paths_below

TYPE = b"multipart/form-data; boundary=b0und"
PATH, STRING = TypeSpec("path"), TypeSpec("string")
PATHS = TypeSpec("array", items=PATH)
PNG = b"\x89PNG\r\n\x1a\n" * 40_000
MANY = 100 << 20


class Body:
    """A body in pieces, which may break off at its end."""

    def __init__(self, *pieces: bytes, breaks: bool = False) -> None:
        self._pieces = list(pieces)
        self._breaks = breaks

    async def read(self) -> bytes:
        await asyncio.sleep(0)
        if self._pieces:
            return self._pieces.pop(0)
        if self._breaks:
            raise ClientGoneError
        return b""


Field = tuple[str, bytes] | tuple[str, bytes, str]  # name, content, file name


def form_of(*fields: Field) -> bytes:
    parts = []
    for name, content, *file_name in fields:
        head = f'Content-Disposition: form-data; name="{name}"'
        if file_name:
            head += f'; filename="{file_name[0]}"\r\nContent-Type: image/png'
        parts.append(b"--b0und\r\n" + head.encode() + b"\r\n\r\n" + content + b"\r\n")
    return b"".join(parts) + b"--b0und--\r\n"


def body_of(*fields: Field, size: int = 65_536, breaks: bool = False) -> Body:
    whole = form_of(*fields)
    return Body(*(whole[at : at + size] for at in range(0, len(whole), size)), breaks=breaks)


def signature(**types: TypeSpec) -> Signature:
    return Signature(tuple(InputField(name, spec) for name, spec in types.items()), OutputSpec(STRING))


IMAGE = signature(image=PATH, times=TypeSpec("integer"), note=STRING, images=PATHS)
ONE_FILE = signature(image=PATH, times=TypeSpec("integer"))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[AttachmentStore]:
    workspace = Workspace(tmp_path)
    yield AttachmentStore(workspace.folder(), 1 << 20)
    await workspace.close()


def left(folder: Path) -> list[Path]:
    return [path for path in paths_below(folder) if not path.name.startswith("geartrain-")]


async def read(
    store: AttachmentStore, body: Body, of: Signature = IMAGE, content_type: bytes = TYPE
) -> tuple[dict[str, Any], Form]:
    form = await read_form(body, content_type, of, store=store)
    return json.loads(form.input), form


async def refusal(
    store: AttachmentStore, body: Body, of: Signature = IMAGE, content_type: bytes = TYPE
) -> GeartrainError:
    with pytest.raises(GeartrainError) as caught:
        await read_form(body, content_type, of, store=store)
    return caught.value


def places(form: Form) -> dict[tuple[str, int], bytes]:
    return {(file.name, file.index): Path(file.path).read_bytes() for file in form.attachments.files}


# values


async def test_fields_and_files(store: AttachmentStore) -> None:
    values, form = await read(store, body_of(("image", PNG, "three.png"), ("times", b"2"), ("note", "ä\r\n".encode())))
    assert values == {"image": "three.png", "times": 2, "note": "ä\r\n"}
    assert places(form) == {("image", SINGLE): PNG}
    assert form.attachments.files[0].path.endswith("three.png")


@pytest.mark.parametrize("size", [1, 7, 100, 1 << 20])
async def test_pieces_of_any_size(store: AttachmentStore, size: int) -> None:
    values, form = await read(store, body_of(("image", b"\r\n--b0un\x00", "a"), ("times", b"2"), size=size))
    assert (values, places(form)) == ({"image": "a", "times": 2}, {("image", SINGLE): b"\r\n--b0un\x00"})


async def test_lists_take_several_in_their_order(store: AttachmentStore) -> None:
    fields = body_of(("images", b"1", "a.png"), ("images", b"http://host/b.png"), ("images", b"3", "c.png"))
    values, form = await read(store, fields)
    assert values == {"images": ["a.png", "http://host/b.png", "c.png"]}
    assert places(form) == {("images", 0): b"1", ("images", 2): b"3"}


@pytest.mark.parametrize(
    ("kind", "texts", "value"),
    [
        (TypeSpec("integer"), ["7"], 7),
        (TypeSpec("number"), ["0.5"], 0.5),
        (TypeSpec("boolean"), ["false"], False),
        (TypeSpec("boolean"), ["on"], True),
        (STRING, [""], ""),
        (STRING, ["@/etc/passwd"], "@/etc/passwd"),
        (TypeSpec("secret"), ["s3cret"], "s3cret"),
        (TypeSpec("object"), ['{"a": [1]}'], {"a": [1]}),
        (TypeSpec("opaque"), ["[1, null]"], [1, None]),
        (TypeSpec("opaque"), ["@/etc/passwd"], "@/etc/passwd"),
        (TypeSpec("array", items=TypeSpec("integer")), ["[1, 2]"], [1, 2]),
        (TypeSpec("array", items=TypeSpec("integer")), ["1", "2"], [1, 2]),
        (TypeSpec("array", items=STRING), ["@/etc/passwd"], ["@/etc/passwd"]),
        (TypeSpec("integer", nullable=True), ["3"], 3),
        (TypeSpec("tensor", datatype="FP32", shape=(2,)), ["[1, 2]"], [1, 2]),
        (TypeSpec("union", members=(TypeSpec("integer"), STRING)), ["x"], "x"),
        (PATH, ["data:,x"], "data:,x"),
    ],
)
async def test_texts_become_values_by_their_types(
    store: AttachmentStore, kind: TypeSpec, texts: list[str], value: Any
) -> None:
    values, form = await read(store, body_of(*(("x", text.encode()) for text in texts)), signature(x=kind))
    assert (values, form.attachments.files) == ({"x": value}, ())


async def test_file_for_a_text_is_its_content(store: AttachmentStore) -> None:
    values, form = await read(store, body_of(("note", b"long", "note.txt"), ("times", b"3", "three")))
    assert (values, form.attachments.files) == ({"note": "long", "times": 3}, ())


async def test_where_nobody_chose_a_file_there_is_none(store: AttachmentStore, tmp_path: Path) -> None:
    values, form = await read(store, body_of(("image", b"", ""), ("times", b"1")))
    assert (values, form.attachments.files, left(tmp_path)) == ({"times": 1}, (), [])


async def test_file_without_a_name_has_one_of_its_type(store: AttachmentStore) -> None:
    assert (await read(store, body_of(("image", b"x", ""))))[0] == {"image": "file.png"}
    assert (await read(store, body_of(("image", b"", "empty.bin"))))[0] == {"image": "empty.bin"}


async def test_file_in_a_union_is_where_it_was_put(store: AttachmentStore) -> None:
    kind = TypeSpec("union", members=(STRING, PATH))
    values, form = await read(store, body_of(("x", b"content", "x.txt")), signature(x=kind))
    assert (values, places(form)) == ({"x": "x.txt"}, {("x", SINGLE): b"content"})


async def test_names_of_files_are_shown_without_folders(store: AttachmentStore) -> None:
    values, form = await read(store, body_of(("image", b"x", "../../etc/passwd")))
    assert values == {"image": "passwd"}
    assert Path(form.attachments.files[0].path).parent == store.path()


# a file alone


@pytest.mark.parametrize(
    ("content_type", "name"),
    [
        (b"image/png", "file.png"),
        (b"Text/Plain; charset=utf-8", "file.txt"),
        (b"application/octet-stream", "file.bin"),
        (b"application/x-unheard-of", "file"),
    ],
)
async def test_file_alone(store: AttachmentStore, content_type: bytes, name: str) -> None:
    values, form = await read(store, Body(PNG[:10], PNG[10:]), ONE_FILE, content_type)
    assert (values, places(form)) == ({"image": name}, {("image", SINGLE): PNG})


async def test_empty_body_is_no_file(store: AttachmentStore) -> None:
    values, form = await read(store, Body(), ONE_FILE, b"image/png")
    assert (values, places(form)) == ({}, {})


async def test_file_alone_for_a_list(store: AttachmentStore) -> None:
    values, form = await read(store, Body(b"x"), signature(images=PATHS), b"image/png")
    assert (values, places(form)) == ({"images": ["file.png"]}, {("images", 0): b"x"})


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        (TYPE, True),
        (b"Multipart/Form-Data; boundary=x", True),
        (b"multipart/form-data", True),
        (b"image/png", True),
        (b"text/plain; charset=utf-8", True),
        (b"application/json", False),
        (b"Application/JSON; charset=utf-8", False),
        (b"application/vnd.api+json", False),
        (b"text/json", False),
        (b"application/x-www-form-urlencoded", False),
        (b"multipart/mixed; boundary=x", False),
        (b"json", False),
        (b"", False),
        (b"image/*", False),
    ],
)
def test_what_may_be_an_input(content_type: bytes, expected: bool) -> None:
    assert may_be_input(content_type) == expected


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ({"a": PATH}, True),
        ({"a": PATHS, "b": STRING}, True),
        ({"a": TypeSpec("union", members=(PATH, STRING))}, True),
        ({"a": PATH, "b": PATH}, False),
        ({"a": PATH, "b": PATHS}, False),
        ({"a": STRING}, False),
        ({}, False),
    ],
)
async def test_file_alone_is_for_the_only_file_input(
    store: AttachmentStore, tmp_path: Path, types: dict[str, TypeSpec], expected: bool
) -> None:
    if expected:
        assert (await read(store, Body(b"x"), signature(**types), b"image/png"))[0].keys() == {"a"}
    else:
        error = await refusal(store, Body(b"x"), signature(**types), b"image/png")
        assert (error.code, left(tmp_path)) == (Code.UNSUPPORTED_MEDIA_TYPE, [])


def test_wrong_types() -> None:
    plain = "Expected request with `Content-Type: application/json`"
    assert (wrong_type(b"text/plain").code, wrong_type(b"text/plain").message) == (Code.UNSUPPORTED_MEDIA_TYPE, plain)
    hinted = wrong_type(b"application/x-www-form-urlencoded; charset=utf-8").message
    assert hinted.startswith(plain)
    assert "-H 'Content-Type: application/json'" in hinted


# what is refused


@pytest.mark.parametrize(
    ("fields", "place", "problem"),
    [
        ([("times", b"two")], "times", '"two" is not of type "integer"'),
        ([("times", b"1"), ("times", b"2")], "times", "given 2 times, but it is no list"),
        ([("image", b"1", "a"), ("image", b"2", "b")], "image", "given 2 times, but it is no list"),
        ([("image", b"1", "a"), ("image", b"http://host/")], "image", "given 2 times, but it is no list"),
        (
            [("image", b"/etc/passwd")],
            "image",
            'expected a file or a URL, got the text "/etc/passwd"; curl sends a file as -F name=@file',
        ),
        (
            [("x" * 1000, b"1")],
            "x" * 99 + "…",
            f'Unexpected field "{"x" * 99}…"; the inputs of this model are: image, times, note, images',
        ),
        (
            [("webhook", b"http://host/")],
            "webhook",
            'Unexpected field "webhook"; the inputs of this model are: image, times, note, images',
        ),
    ],
)
async def test_wrong_fields(
    store: AttachmentStore, tmp_path: Path, fields: list[Field], place: str, problem: str
) -> None:
    error = await refusal(store, body_of(*fields))
    assert error.code is Code.INVALID_INPUT
    assert [(fault.loc, fault.msg) for fault in error.fields] == [(("body", "input", place), problem)]
    assert left(tmp_path) == []


async def test_every_wrong_field_is_told(store: AttachmentStore) -> None:
    error = await refusal(store, body_of(("times", b"x"), ("image", b"y")))
    assert [fault.loc[2] for fault in error.fields] == ["times", "image"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (body_of(("image", PNG, "a"), ("note", b"\xff")), Code.UNPARSABLE),
        (body_of(("image", PNG, "a"), ("note", b"x" * (MAX_TEXT + 1))), Code.TOO_LARGE),
        (body_of(("image", PNG, "a"), ("note", b"x" * MAX_TEXT), ("times", b"1")), Code.TOO_LARGE),
        (body_of(("image", bytes((1 << 20) + 1), "a")), Code.TOO_LARGE),
        (Body(form_of(("image", PNG, "a"))[:-4]), Code.UNPARSABLE),
        (Body(form_of(("image", PNG, "a"))[:1000]), Code.UNPARSABLE),
        (Body(form_of(("image", PNG, "a"))[:-10] + b"--b0und\r\nX"), Code.UNPARSABLE),
        (Body(b"--other--"), Code.UNPARSABLE),
    ],
)
async def test_nothing_is_left_of_a_refused_form(
    store: AttachmentStore, tmp_path: Path, body: Body, code: Code
) -> None:
    assert (await refusal(store, body)).code is code
    assert left(tmp_path) == []


async def test_number_that_json_cannot_carry(store: AttachmentStore) -> None:
    assert (await refusal(store, body_of(("x", b"1e999")), signature(x=TypeSpec("number")))).code is Code.UNPARSABLE


async def test_file_alone_that_is_too_large(store: AttachmentStore, tmp_path: Path) -> None:
    error = await refusal(store, Body(*[bytes(1 << 19)] * 3), ONE_FILE, b"image/png")
    assert (error.code, left(tmp_path)) == (Code.TOO_LARGE, [])


@pytest.mark.parametrize("content_type", [TYPE, b"image/png"])
async def test_nothing_is_left_of_a_client_that_leaves(
    store: AttachmentStore, tmp_path: Path, content_type: bytes
) -> None:
    piece = form_of(("image", PNG, "a.png"))[:100_000]
    with pytest.raises(ClientGoneError):
        await read_form(Body(piece, breaks=True), content_type, ONE_FILE, store=store)
    assert left(tmp_path) == []


async def test_nothing_is_left_of_a_cancelled_reading(store: AttachmentStore, tmp_path: Path) -> None:
    has_come, never = asyncio.Event(), asyncio.Event()

    class Stuck(Body):
        async def read(self) -> bytes:
            if piece := await super().read():
                return piece
            has_come.set()
            await never.wait()
            return b""

    reading = asyncio.ensure_future(read_form(Stuck(form_of(("image", PNG, "a"))[:1000]), TYPE, ONE_FILE, store=store))
    await has_come.wait()
    assert len(left(tmp_path)) == 2  # the folder, and the file in it
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert left(tmp_path) == []


async def test_full_disk(store: AttachmentStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "geartrain.outbound.workspace.AttachedFile.write",
        lambda *_: (_ for _ in ()).throw(GeartrainError(Code.NO_STORAGE, "full")),
    )
    assert (await refusal(store, body_of(("image", b"x", "a")))).code is Code.NO_STORAGE
    assert left(tmp_path) == []


async def test_the_loop_neither_parses_nor_writes(store: AttachmentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()
    opened = AttachmentStore.open

    def noting(*given: Any) -> Any:
        threads.add(threading.get_ident())
        return opened(*given)

    monkeypatch.setattr(AttachmentStore, "open", noting)
    await read(store, body_of(("image", b"x", "a")))
    assert threads
    assert threading.get_ident() not in threads


# predictions


class Sizes:
    async def run(self, image: geartrain.Path, images: list[geartrain.Path] = [], times: int = 1) -> str:  # noqa: B006
        return json.dumps([len(each.read_bytes()) for each in (image, *images)] * times)


class Stuck:
    def __init__(self) -> None:
        self.began = asyncio.Event()

    async def run(self, image: geartrain.Path) -> str:
        self.began.set()
        await asyncio.Event().wait()
        return str(image)


def outbound(workspace: Workspace, of: Signature) -> FakeOutbound:
    return FakeOutbound(
        input_files=lambda: InputFiles(of, policy=UrlPolicy(), max_bytes=MANY, timeout=40),
        new_folder=workspace.folder,
        new_attachments=lambda: AttachmentStore(workspace.folder(), MANY),
    )


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    workspace = Workspace(tmp_path)
    deployments: list[Deployment] = []

    async def serve(runner: Any, of: Signature) -> Deployment:
        deployment = deploy(
            functools.partial(FakeWorker, runner, slots=1),
            outbound=outbound(workspace, of),
            settings=DeploymentSettings(limits=Limits(queue=0)),
        )
        await deployment.start()
        deployments.append(deployment)
        return deployment

    yield serve
    for deployment in deployments:
        await close(deployment)
    await workspace.close()


SIZES = signature(image=PATH, images=PATHS, times=TypeSpec("integer"))


def new(form: Form) -> NewPrediction:
    return NewPrediction(form.input, attachments=form.attachments)


def finding(deployment: Deployment) -> Callable[[], Awaitable[Deployment]]:
    """Return what finds this one."""

    async def find() -> Deployment:
        return deployment

    return find


async def admit(deployment: Deployment, body: Body, content_type: bytes = TYPE) -> Prediction:
    return await admit_form(body, content_type, finding(deployment), complete=new)


async def test_prediction_has_the_files(serve: Callable[..., Any], tmp_path: Path) -> None:
    deployment = await serve(Sizes(), SIZES)
    fields = body_of(("images", b"22", "b"), ("image", PNG, "a.png"), ("images", b"data:,333"), ("times", b"2"))
    prediction = await admit(deployment, fields)
    await completion(prediction)
    assert (prediction.status, prediction.error) == (Status.SUCCEEDED, None)
    assert json.loads(json.loads(bytes(prediction.output or b""))) == [len(PNG), 2, 3] * 2
    assert json.loads(prediction.input) == {"images": ["b", "data:,333"], "image": "a.png", "times": 2}
    assert left(tmp_path) == []


async def test_prediction_of_a_file_alone(serve: Callable[..., Any], tmp_path: Path) -> None:
    deployment = await serve(Stuck(), signature(image=PATH))
    prediction = await admit(deployment, Body(PNG), b"image/png")
    await deployment.workers.replicas[0].worker.runner.began.wait()
    assert len([path for path in left(tmp_path) if path.is_file()]) == 1
    assert deployment.predictions.cancel(prediction.id, ANYONE)
    await completion(prediction)
    assert prediction.status is Status.CANCELED
    assert left(tmp_path) == []


async def ended_removals() -> None:
    """Wait for the tasks beside this one: folders are removed in them."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*(task for task in others if "remove" in repr(task.get_coro())))


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (body_of(("times", b"1")), Code.INVALID_INPUT),
        (body_of(("image", PNG, "a"), ("images", b"x", "b"), ("times", b"1.5")), Code.INVALID_INPUT),
        (body_of(("image", PNG, "a"), ("images", b"ftp://host/")), Code.INVALID_INPUT),
        (body_of(("images", PNG, "a")), Code.INVALID_INPUT),
    ],
)
async def test_nothing_is_left_of_a_refused_prediction(
    serve: Callable[..., Any], tmp_path: Path, body: Body, code: Code
) -> None:
    deployment = await serve(Sizes(), SIZES)
    with pytest.raises(GeartrainError) as caught:
        await admit(deployment, body)
    assert caught.value.code is code
    await ended_removals()
    assert left(tmp_path) == []


async def test_nothing_is_left_where_there_is_no_slot(serve: Callable[..., Any], tmp_path: Path) -> None:
    deployment = await serve(Stuck(), signature(image=PATH))
    running = await admit(deployment, body_of(("image", b"1", "a")))
    with pytest.raises(GeartrainError) as caught:
        await admit(deployment, body_of(("image", b"22", "b")))
    assert caught.value.code is Code.AT_CAPACITY
    await ended_removals()
    assert [path.read_bytes() for path in left(tmp_path) if path.is_file()] == [b"1"]
    deployment.predictions.cancel(running.id, ANYONE)
    await completion(running)
    assert left(tmp_path) == []


async def test_nothing_is_left_where_the_request_is_given_up(serve: Callable[..., Any], tmp_path: Path) -> None:
    deployment = await serve(Sizes(), SIZES)

    def leave(form: Form) -> NewPrediction:
        raise ClientGoneError

    with pytest.raises(ClientGoneError):
        await admit_form(body_of(("image", PNG, "a")), TYPE, finding(deployment), complete=leave)
    await ended_removals()
    assert left(tmp_path) == []


async def test_names_of_files_lead_nowhere_without_the_files(serve: Callable[..., Any], tmp_path: Path) -> None:
    deployment = await serve(Sizes(), SIZES)
    running = await admit(deployment, body_of(("image", b"1", "a.png")))
    await completion(running)
    for text in (running.input, json.dumps({"image": str(tmp_path / "x")}).encode()):
        with pytest.raises(GeartrainError) as caught:
            deployment.create(NewPrediction(text))
        assert "is not a URL" in caught.value.fields[0].msg


async def test_files_are_refused_where_the_model_takes_none_any_more(
    serve: Callable[..., Any], store: AttachmentStore
) -> None:
    form = (await read(store, body_of(("note", b"x", "a")), signature(note=PATH)))[1]

    class Text:
        async def run(self, note: str) -> str:
            return note

    deployment = await serve(Text(), signature(note=STRING))
    with pytest.raises(GeartrainError) as caught:
        deployment.create(new(form))
    assert [(fault.loc, fault.msg) for fault in caught.value.fields] == [(("body", "input", "note"), "takes no file")]


# exchanges


class Exchanged:
    """A `FormExchange` and what it tells."""

    def __init__(self, deployment: Deployment | GeartrainError, content_type: bytes = TYPE) -> None:
        self._deployment = deployment
        self.admitted: list[Prediction] = []
        self.refused: list[GeartrainError] = []
        self.abandoned = 0
        self.exchange = FormExchange(
            content_type,
            self._find,
            complete=new,
            on_admitted=self.admitted.append,
            on_refused=self.refused.append,
            on_abandoned=self._abandon,
        )

    async def receive(self, body: Body) -> None:
        """Receive it, and wait until all has been told."""
        before = asyncio.all_tasks()
        self.exchange.receive(body)
        await asyncio.gather(*(asyncio.all_tasks() - before))
        await ended_removals()

    async def _find(self) -> Deployment:
        if isinstance(self._deployment, GeartrainError):
            raise self._deployment
        return self._deployment

    def _abandon(self) -> None:
        self.abandoned += 1


async def test_exchange_tells_of_its_prediction(serve: Callable[..., Any]) -> None:
    exchanged = Exchanged(await serve(Sizes(), SIZES))
    await exchanged.receive(body_of(("image", PNG, "a")))
    (prediction,) = exchanged.admitted
    await completion(prediction)
    assert (prediction.status, exchanged.refused) == (Status.SUCCEEDED, [])


async def test_exchange_tells_why_not(serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = await serve(Sizes(), SIZES)
    absent = GeartrainError(Code.NOT_FOUND, "no such model")
    broken = Exchanged(deployment)
    for exchanged, code in (
        (Exchanged(absent), Code.NOT_FOUND),
        (Exchanged(deployment), Code.INVALID_INPUT),
        (Exchanged(deployment, b"image/png"), Code.UNSUPPORTED_MEDIA_TYPE),
        (broken, Code.INTERNAL),
    ):
        if exchanged is broken:
            monkeypatch.setattr(deployment, "create", lambda _: 1 / 0)
        await exchanged.receive(body_of(("times", b"x")) if exchanged is not broken else body_of(("times", b"1")))
        assert ([error.code for error in exchanged.refused], exchanged.admitted) == ([code], [])


async def test_nothing_is_started_for_a_client_that_has_left(
    serve: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deployment = await serve(Sizes(), SIZES)

    class Leaving(Body):
        async def read(self) -> bytes:
            piece = await super().read()
            if not piece:
                left_late.exchange.abandon()
            return piece

    left_late, broke_off = Exchanged(deployment), Exchanged(deployment)
    await left_late.receive(Leaving(form_of(("image", PNG, "a"))))
    await broke_off.receive(body_of(("image", PNG, "a"), breaks=True))
    assert (left_late.abandoned, left_late.admitted, left_late.refused) == (1, [], [])
    assert (broke_off.admitted, broke_off.refused) == ([], [])
    assert (deployment.predictions.live, left(tmp_path)) == ({}, [])
    assert not [record for record in caplog.records if record.levelname not in ("DEBUG", "INFO")]
