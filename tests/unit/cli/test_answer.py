"""Output of a prediction, on stdout and in files."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from geartrain.cli.answer import AnswerWriter, OutputFileError, write_json
from geartrain.domain.signature.types import OutputMode, OutputSpec, RecordField, TypeSpec

STRING, INTEGER, PATH, OBJECT, OPAQUE = (TypeSpec(kind) for kind in ("string", "integer", "path", "object", "opaque"))
PNG = "data:image/png;base64,iVBORw=="
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def answer(spec: TypeSpec, value: Any, target: str | None = None) -> None:
    writer = AnswerWriter(OutputSpec(spec), None if target is None else Path(target))
    chunk = json.dumps(value).encode()
    writer.add_chunk(chunk)  # a single value is also the one chunk of its log
    writer.finish(chunk)


def stream(spec: TypeSpec, mode: OutputMode, *values: Any, target: str | None = None) -> None:
    writer = AnswerWriter(OutputSpec(spec, mode), None if target is None else Path(target))
    for value in values:
        writer.add_chunk(json.dumps(value).encode())
    writer.finish(json.dumps(values).encode())


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize(
    ("spec", "value", "text"),
    [
        (STRING, "hello", "hello\n"),
        (STRING, "two\nlines\n", "two\nlines\n"),
        (STRING, "ä", "ä\n"),
        (STRING, PNG, f"{PNG}\n"),
        (STRING, "", ""),
        (INTEGER, 5, "5\n"),
        (INTEGER, 2**70, f"{2**70}\n"),
        (TypeSpec("number"), 0.1, "0.1\n"),
        (TypeSpec("boolean"), True, "true\n"),
        (OBJECT, {"b": 1, "a": ["ä"]}, '{\n  "b": 1,\n  "a": [\n    "ä"\n  ]\n}\n'),
        (TypeSpec("array", items=INTEGER), [1, 2], "[\n  1,\n  2\n]\n"),
        (TypeSpec("array", items=INTEGER), [], "[]\n"),
        (OPAQUE, "text", "text\n"),
    ],
)
def test_output_alone_is_on_stdout(spec: TypeSpec, value: Any, text: str, capsys: Capture) -> None:
    answer(spec, value)
    assert capsys.readouterr() == (text, "")


def test_nothing_is_said_to_be_nothing(capsys: Capture) -> None:
    answer(STRING, None)
    stream(STRING, "iterator")
    assert capsys.readouterr() == ("", "No output generated\n" * 2)


def test_chunks_of_an_iterator_are_lines(capsys: Capture) -> None:
    stream(STRING, "iterator", "a", "b\n", "")
    stream(OBJECT, "iterator", {"a": 1})
    assert capsys.readouterr() == ('a\nb\n\n\n{\n  "a": 1\n}\n', "")


def test_chunks_to_be_joined_come_as_they_are(capsys: Capture) -> None:
    writer = AnswerWriter(OutputSpec(STRING, "concatenate"), None)
    writer.add_chunk(b'"hel"')
    assert capsys.readouterr().out == "hel"
    writer.add_chunk(b'"lo"')
    assert capsys.readouterr().out == "lo"
    writer.finish(b'["hel","lo"]')
    assert capsys.readouterr() == ("\n", "")


def test_text_goes_to_the_file_that_o_names(folder: Path, capsys: Capture) -> None:
    answer(STRING, "hello", "a.txt")
    answer(OBJECT, {"a": 1}, "b.json")
    stream(STRING, "concatenate", "hel", "lo", target="c.txt")
    stream(STRING, "iterator", "x", "y", target="d.txt")
    answer(STRING, "", "empty.txt")
    assert files(folder) == {
        "a.txt": b"hello",
        "b.json": b'{\n  "a": 1\n}\n',
        "c.txt": b"hello",
        "d.txt": b"x\ny\n",
        "empty.txt": b"",
    }
    said = "".join(f"Written output to: {name}\n" for name in ("a.txt", "b.json", "c.txt", "d.txt", "empty.txt"))
    assert capsys.readouterr() == ("", said)


def test_text_goes_into_the_folder_that_o_names(folder: Path) -> None:
    (folder / "out").mkdir()
    answer(STRING, "hello", "out")
    answer(OBJECT, {}, "out")
    assert files(folder / "out") == {"output.txt": b"hello", "output.json": b"{}\n"}


@pytest.mark.parametrize(
    ("spec", "value", "names"),
    [
        (PATH, PNG, ["output.png"]),
        (PATH, "data:text/plain;base64,eA==", ["output.txt"]),
        (PATH, "data:,x", ["output.txt"]),
        (PATH, "data:audio/wav;base64,eA==", ["output.wav"]),
        (PATH, "data:application/octet-stream;base64,eA==", ["output.bin"]),
        (PATH, "data:x-strange/thing;base64,eA==", ["output.bin"]),
        (TypeSpec("array", items=PATH), [PNG, PNG], ["output.0.png", "output.1.png"]),
        (OPAQUE, PNG, ["output.png"]),
        (OPAQUE, [PNG], ["output.0.png"]),
    ],
)
def test_files_are_named_after_their_place(
    folder: Path, spec: TypeSpec, value: Any, names: list[str], capsys: Capture
) -> None:
    answer(spec, value)
    assert sorted(files(folder)) == names
    assert capsys.readouterr() == ("", "".join(f"Written output to: {name}\n" for name in names))


def test_content_of_a_file_is_written(folder: Path) -> None:
    answer(PATH, PNG)
    assert files(folder) == {"output.png": b"\x89PNG"}


def test_files_of_an_iterator_are_written_as_they_come(folder: Path, capsys: Capture) -> None:
    writer = AnswerWriter(OutputSpec(PATH, "iterator"), None)
    writer.add_chunk(json.dumps(PNG).encode())
    assert sorted(files(folder)) == ["output.0.png"]
    writer.add_chunk(json.dumps(PNG).encode())
    writer.finish(b"[]")
    assert sorted(files(folder)) == ["output.0.png", "output.1.png"]
    assert capsys.readouterr().out == ""


def test_files_inside_an_object_are_named_by_their_key(folder: Path, capsys: Capture) -> None:
    fields = (RecordField("mask", PATH), RecordField("note", STRING), RecordField("all", TypeSpec("array", items=PATH)))
    answer(TypeSpec("record", fields=fields), {"mask": PNG, "note": PNG, "all": [PNG]})
    assert sorted(files(folder)) == ["output.all.0.png", "output.mask.png"]
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"mask": "output.mask.png", "note": PNG, "all": ["output.all.0.png"]}


def test_odd_keys_make_no_odd_paths(folder: Path) -> None:
    answer(OBJECT, {"../a": PNG, "..!a": PNG, "b c": {"d": [PNG]}})
    assert sorted(files(folder)) == ["output._a.png", "output._a_.png", "output.b_c.d.0.png"]


def test_url_that_is_no_inline_file_stays_in_the_output(folder: Path, capsys: Capture) -> None:
    answer(PATH, "https://bucket/a.png")
    assert capsys.readouterr().out == "https://bucket/a.png\n"
    assert files(folder) == {}


def test_o_names_the_file(folder: Path) -> None:
    answer(PATH, PNG, "pic.jpeg")
    answer(TypeSpec("array", items=PATH), [PNG, PNG], "many.png")
    answer(TypeSpec("array", items=PATH), [PNG], "bare")
    (folder / "out").mkdir()
    answer(PATH, PNG, "out")
    assert sorted(files(folder)) == ["bare.0.png", "many.0.png", "many.1.png", "pic.jpeg"]
    assert sorted(files(folder / "out")) == ["output.png"]


RESULT = TypeSpec("record", fields=(RecordField("weights", PATH), RecordField("loss", TypeSpec("number"))))


@pytest.mark.parametrize(
    ("spec", "value", "names", "text"),
    [
        (RESULT, {"weights": PNG, "loss": 0.5}, ["w"], '{\n  "loss": 0.5\n}\n'),
        (RESULT, {"weights": PNG}, ["w"], ""),
        (OPAQUE, {"a": {"weights": PNG, "b": 1}}, ["w"], '{\n  "a": {\n    "weights": "w",\n    "b": 1\n  }\n}\n'),
        (PATH, PNG, ["w"], ""),
        (STRING, "text", ["w"], ""),
        (RESULT, {"weights": "https://bucket/w", "loss": 0.5}, ["w"], ""),  # no file here: all of it goes there
        (OBJECT, {"a": PNG, "b": PNG}, ["w", "w.a.png", "w.b.png"], ""),
    ],
)
def test_one_file_may_come_first(
    folder: Path, spec: TypeSpec, value: Any, names: list[str], text: str, capsys: Capture
) -> None:
    writer = AnswerWriter(OutputSpec(spec), Path("w"), file_first=True)
    writer.finish(json.dumps(value).encode())
    assert sorted(files(folder)) == names
    assert capsys.readouterr().out == text


def test_one_file_goes_into_the_folder_that_o_names(folder: Path, capsys: Capture) -> None:
    (folder / "out").mkdir()
    writer = AnswerWriter(OutputSpec(RESULT), Path("out"), file_first=True)
    writer.finish(json.dumps({"weights": PNG, "loss": 0.5}).encode())
    assert sorted(files(folder / "out")) == ["output.json", "output.weights.png"]
    assert capsys.readouterr().out == ""


def test_file_that_cannot_be_written_is_named() -> None:
    with pytest.raises(OutputFileError, match=r"cannot write nowhere/a.png: No such file or directory"):
        answer(PATH, PNG, "nowhere/a.png")
    with pytest.raises(OutputFileError, match=r"cannot write nowhere/a.txt: No such file or directory"):
        answer(STRING, "x", "nowhere/a.txt")


def test_broken_base64_is_refused() -> None:
    with pytest.raises(OutputFileError, match="image/png file came as broken base64"):
        answer(PATH, "data:image/png;base64,abc")


def test_json_answer_is_indented(capsys: Capture, folder: Path) -> None:
    write_json({"status": "succeeded", "output": "ä"}, OutputSpec(STRING), None)
    assert capsys.readouterr().out == '{\n  "status": "succeeded",\n  "output": "ä"\n}\n'
    write_json({"output": None}, OutputSpec(STRING), Path("a.json"))
    assert files(folder) == {"a.json": b'{\n  "output": null\n}\n'}


def test_reader_that_left_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", encoding="utf-8", buffering=1) as stdout:  # noqa: PTH123  a descriptor
        monkeypatch.setattr("sys.stdout", stdout)
        with pytest.raises(BrokenPipeError):
            stream(STRING, "iterator", "a")
        os.dup2(os.open(os.devnull, os.O_WRONLY), writing)  # what it still holds goes nowhere


class Tty(io.StringIO):
    """Stdout that a person reads."""

    def isatty(self) -> bool:
        return True


VECTOR = [number / 8 for number in range(384)]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (VECTOR, "[0.0, 0.125, 0.25, 0.375, …] (384 numbers)\n"),
        ([VECTOR] * 3, "[[0.0, 0.125, 0.25, 0.375, …], …] (shape 3 x 384)\n"),
        ([1, 2], "[\n  1,\n  2\n]\n"),
        ([1, "a"] * 20, json.dumps([1, "a"] * 20, indent=2) + "\n"),
        ([True] * 30, json.dumps([True] * 30, indent=2) + "\n"),
        ({"e": VECTOR, "n": 384, "s": "\ue0007\ue000"}, None),
    ],
)
def test_long_lists_of_numbers_are_folded_for_a_person(
    monkeypatch: pytest.MonkeyPatch, value: Any, shown: str | None
) -> None:
    terminal = Tty()
    monkeypatch.setattr("sys.stdout", terminal)
    answer(OPAQUE, value)
    folded = '{\n  "e": [0.0, 0.125, 0.25, 0.375, …] (384 numbers),\n  "n": 384,\n  "s": "\ue0007\ue000"\n}\n'
    assert terminal.getvalue() == (folded if shown is None else shown)


def test_pipes_and_files_have_all_numbers(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    answer(OPAQUE, VECTOR)
    assert json.loads(capsys.readouterr().out) == VECTOR
    monkeypatch.setattr("sys.stdout", Tty())
    answer(OPAQUE, VECTOR, "out.json")
    assert json.loads((folder / "out.json").read_text()) == VECTOR


BOX = TypeSpec("record", fields=(RecordField("top", TypeSpec("integer")), RecordField("left", TypeSpec("integer"))))
BOXES = TypeSpec("array", items=BOX)


@pytest.mark.parametrize(
    ("spec", "value", "text"),
    [
        (BOXES, [{"left": 1, "other": 2, "top": 3}], '[{"top": 3, "left": 1, "other": 2}]'),
        (TypeSpec("object", values=BOXES), {"b": [{"left": 1, "top": 3}]}, '{"b": [{"top": 3, "left": 1}]}'),
        (OBJECT, {"a": {"z": 1}}, '{"a": {"z": 1}}'),
    ],
)
def test_members_stand_in_the_order_of_the_author(spec: TypeSpec, value: Any, text: str, capsys: Capture) -> None:
    answer(spec, value)
    assert json.dumps(json.loads(capsys.readouterr().out)) == text
    stream(spec, "iterator", value)
    assert json.dumps(json.loads(capsys.readouterr().out)) == text
    write_json({"output": value}, OutputSpec(spec), None)
    assert json.dumps(json.loads(capsys.readouterr().out)["output"]) == text
    write_json({"output": [value]}, OutputSpec(spec, "iterator"), None)
    assert json.dumps(json.loads(capsys.readouterr().out)["output"]) == f"[{text}]"
    write_json({"output": None}, OutputSpec(spec), None)
    assert json.loads(capsys.readouterr().out) == {"output": None}
