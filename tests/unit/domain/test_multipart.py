"""Forms, whole and in pieces, and what is no form."""

from __future__ import annotations

import logging
import random

import pytest

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.multipart import MAX_PART_HEAD, MAX_PARTS, MultipartReader, PartHead

TYPE = b"multipart/form-data; boundary=b0und"
FORM = (
    b"--b0und\r\n"
    b'Content-Disposition: form-data; name="times"\r\n'
    b"\r\n"
    b"2\r\n"
    b"--b0und\r\n"
    b'content-disposition: form-data; name="image"; filename="three.png"\r\n'
    b"Content-Type: Image/PNG\r\n"
    b"Content-Transfer-Encoding: binary\r\n"
    b"\r\n"
    b"\x89PNG\r\n--b0un\r\n--\r\n\x00\xff\r\n"
    b"--b0und--\r\n"
)
TIMES = (PartHead("times"), b"2")
IMAGE = (
    PartHead("image", "three.png", is_file=True, media_type="image/png"),
    b"\x89PNG\r\n--b0un\r\n--\r\n\x00\xff",
)


class Parts:
    """Gathers what is told."""

    def __init__(self) -> None:
        self.whole: list[tuple[PartHead, bytes]] = []
        self._head = PartHead("")
        self._content = bytearray()

    def begin_part(self, head: PartHead) -> None:
        self._head = head
        self._content.clear()

    def add_data(self, data: memoryview) -> None:
        assert len(data)
        self._content += data

    def end_part(self) -> None:
        self.whole.append((self._head, bytes(self._content)))


def read(*pieces: bytes, content_type: bytes = TYPE) -> list[tuple[PartHead, bytes]]:
    parts = Parts()
    reader = MultipartReader(content_type, parts)
    for piece in pieces:
        reader.feed(piece)
    reader.end()
    return parts.whole


def refusal(*pieces: bytes, content_type: bytes = TYPE) -> tuple[Code, str]:
    with pytest.raises(GeartrainError) as caught:
        read(*pieces, content_type=content_type)
    return caught.value.code, caught.value.message


def part(head: bytes, content: bytes = b"x") -> bytes:
    return b"--b0und\r\n" + head + b"\r\n\r\n" + content + b"\r\n--b0und--\r\n"


def named(name: bytes, more: bytes = b"") -> bytes:
    return part(b'Content-Disposition: form-data; name="' + name + b'"' + more)


# forms


def test_form() -> None:
    assert read(FORM) == [TIMES, IMAGE]


@pytest.mark.parametrize("cut", range(len(FORM) + 1))
def test_cut_anywhere(cut: int) -> None:
    assert read(FORM[:cut], FORM[cut:]) == [TIMES, IMAGE]


def test_byte_by_byte() -> None:
    assert read(*(FORM[at : at + 1] for at in range(len(FORM)))) == [TIMES, IMAGE]


def test_content_like_boundaries_in_random_pieces() -> None:
    dice = random.Random(7)  # noqa: S311 - a test repeats itself
    bits = (b"\r", b"\n", b"\r\n", b"-", b"--", b"b0un", b"\r\n--b0un", b"\r\n--b0unx", b"\x00", b"d", b" ")
    for _ in range(300):
        content = b"".join(dice.choices(bits, k=dice.randrange(40)))
        if b"\r\n--b0und" in content + b"\r\n":
            continue
        form = part(b'Content-Disposition: form-data; name="a"', content)
        cuts = sorted(dice.choices(range(len(form)), k=6))
        pieces = [form[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(form)], strict=True)]
        assert read(*pieces) == [(PartHead("a"), content)]


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        (b"--b0und--\r\n", []),
        (b"--b0und--", []),
        (b"\r\n" + FORM, [TIMES, IMAGE]),
        (FORM + b"epilogue", [TIMES, IMAGE]),
        (named(b"a", b'; filename=""'), [(PartHead("a", is_file=True), b"x")]),
        (named(b"\xc3\xa4"), [(PartHead("ä"), b"x")]),
        (named(b"a", b"; filename*=utf-8''b"), [(PartHead("a"), b"x")]),
        (named(b"a", rb'; filename="a\"b;c.txt"'), [(PartHead("a", 'a"b;c.txt', is_file=True), b"x")]),
        (
            part(b'Content-Type: text/plain; charset=UTF-8\r\nContent-Disposition: form-data; name="a"'),
            [(PartHead("a", media_type="text/plain"), b"x")],
        ),
        (part(b'Content-Disposition: form-data; name="a"', b""), [(PartHead("a"), b"")]),
    ],
)
def test_forms_at_the_edge(body: bytes, parts: list[tuple[PartHead, bytes]]) -> None:
    assert read(body) == parts


@pytest.mark.parametrize("before", [b"x", b"\n", b"\r\n\r\n", b"junk\r\n", b"\r\njunk\r\n", b"-"])
def test_text_before_the_first_boundary_is_refused(before: bytes) -> None:
    form = before + FORM
    for pieces in ([form], [form[at : at + 1] for at in range(len(form))]):
        with pytest.raises(GeartrainError, match="begin with its boundary"):
            read(*pieces)


@pytest.mark.parametrize("boundary", [b"a", b"a" * 70, b'"a b:?=/"', b'"(x)"'])
def test_boundaries(boundary: bytes) -> None:
    bare = boundary.strip(b'"')
    body = FORM.replace(b"--b0und", b"--" + bare).replace(b"\r\n--b0un\r\n", b"\r\n")
    assert [head.name for head, _ in read(body, content_type=b"multipart/form-data; Boundary=" + boundary)] == [
        "times",
        "image",
    ]


# what is no form


@pytest.mark.parametrize(
    "content_type",
    [
        b"multipart/form-data",
        b"multipart/form-data; boundary=",
        b'multipart/form-data; boundary=""',
        b"multipart/form-data; boundary=" + b"a" * 71,
        b'multipart/form-data; boundary="a "',
        b'multipart/form-data; boundary="a\r\nb"',
        b"multipart/form-data; boundary=a\x00b",
        b"multipart/form-data; boundary=b0und;" + b" " * 1024,
    ],
)
def test_bad_boundaries(content_type: bytes) -> None:
    assert refusal(FORM, content_type=content_type)[0] is Code.UNPARSABLE


@pytest.mark.parametrize("end", range(FORM.index(b"--b0und--") + len(b"--b0und--")))
def test_form_without_its_end(end: int) -> None:
    assert refusal(FORM[:end])[0] is Code.UNPARSABLE


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        FORM.replace(b"b0und", b"other"),
        FORM.replace(b"\r\n", b"\n"),
        b"--b0und\rX",
        b"--b0und-x",
        part(b"X: y"),
        part(b"Content-Disposition: form-data"),
        part(b'Content-Disposition: attachment; name="a"'),
        part(b'Content-Disposition form-data; name="a"'),
        part(b': form-data; name="a"'),
        part(b'Content-Disposition : form-data; name="a"'),
        part(b'Content-Disposition: form-data; name="a"\r\nContent-Disposition: form-data; name="b"'),
        part(b'Content-Disposition: form-data; name="a"\r\n b: c'),
        part(b'Content-Disposition: form-data; name="a"\rb: c'),
        named(b"a\x00"),
        named(b"a\nb"),
        named(b"a", b'; filename="a\x00.png"'),
        named(b"\xff"),
        named(b"a", b'; filename="\xff"'),
        part(b'Content-Disposition: form-data; name="a"\r\nContent-Transfer-Encoding: base64'),
        part(b'Content-Disposition: form-data; name="a"\r\nContent-Transfer-Encoding: quoted-printable'),
        part(b'Content-Disposition: form-data; name="a"\r\nContent-Type: text/plain; charset=utf-16'),
    ],
)
def test_no_forms(body: bytes) -> None:
    code, message = refusal(body)
    assert code is Code.UNPARSABLE
    assert message.startswith("Failed to parse the request body as multipart/form-data: ")
    assert len(message) < 200


def test_too_many_parts() -> None:
    one = b'--b0und\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n'
    assert len(read(one * MAX_PARTS + b"--b0und--")) == MAX_PARTS
    assert refusal(one * 10_000)[0] is Code.TOO_LARGE


@pytest.mark.parametrize(
    "head",
    [
        b"--b0und\r\nX: " + b"a" * (1 << 20),
        b"--b0und\r\n" + b"a" * (1 << 20),
        b"--b0und\r\n" + b"a: b\r\n" * (1 << 16),
        b"--b0und\r\n" + b"".join(b"x%d: %s\r\n" % (n, b"a" * 1000) for n in range(16)),
        b'--b0und\r\nContent-Disposition: form-data; name="' + b";" * (1 << 20),
    ],
)
@pytest.mark.parametrize("size", [100, 1000, 4 * MAX_PART_HEAD])
def test_giant_heads_are_refused_early(head: bytes, size: int) -> None:
    pieces = [head[begin : begin + size] for begin in range(0, 4 * MAX_PART_HEAD, size)]
    assert refusal(*pieces)[1] != refusal(FORM[:40])[1]  # not because the end is missing


def test_what_a_client_does_wrong_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        refusal(b"--b0und\r\n:")
    assert not caplog.records


def test_the_listener_ends_the_reading() -> None:
    class Refusing(Parts):
        def begin_part(self, head: PartHead) -> None:
            raise GeartrainError(Code.INVALID_INPUT, head.name)

    with pytest.raises(GeartrainError, match="times"):
        MultipartReader(TYPE, Refusing()).feed(FORM)
