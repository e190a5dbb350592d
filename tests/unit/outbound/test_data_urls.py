"""`data:` URLs: what is read, what is forgiven, what is refused."""

from __future__ import annotations

import base64
import json
import tracemalloc
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geartrain.outbound import data_urls
from geartrain.outbound.data_urls import DataUrlError, HeldUrl, parse_data_url, split_data_url
from geartrain.outbound.files import clip_name, name_from_media_type, name_from_url, shown_url


def decoded(url: str) -> bytes:
    return b"".join(parse_data_url(url).pieces())


@pytest.mark.parametrize(
    ("url", "content", "name"),
    [
        ("data:image/png;base64,iVBORw==", b"\x89PNG", "file.png"),
        ("DATA:IMAGE/PNG;BASE64,iVBORw==", b"\x89PNG", "file.png"),
        ("data:text/plain,hello%20world", b"hello world", "file.txt"),
        ("data:,plain", b"plain", "file.txt"),
        ("data:;base64,AAAA", b"\0\0\0", "file.txt"),
        ("data:text/plain;charset=utf-8;base64,w6k=", b"\xc3\xa9", "file.txt"),
        ("data:text/plain;charset=utf-8,%C3%A9", b"\xc3\xa9", "file.txt"),
        ("data:text/plain,é", b"\xc3\xa9", "file.txt"),
        ("data:text/plain,a,b", b"a,b", "file.txt"),
        ("data:text/plain,50%zz", b"50%zz", "file.txt"),  # no escape, so it stands for itself
        ("data:image/jpeg;base64,AAAA", b"\0\0\0", "file.jpg"),
        ("data:audio/wav;base64,AAAA", b"\0\0\0", "file.wav"),
        ("data:application/json,{}", b"{}", "file.json"),
        ("data:application/x-nobody-knows;base64,AAAA", b"\0\0\0", "file"),
        ("data:image/png;base64,", b"", "file.png"),
        ("data:image/png,base64,AAAA", b"base64,AAAA", "file.png"),
    ],
)
def test_well_formed(url: str, content: bytes, name: str) -> None:
    assert decoded(url) == content
    assert parse_data_url(url).name == name


@pytest.mark.parametrize(
    "payload",
    ["AQI\nDBA==", " AQID BA== ", "AQIDBA", "AQIDBA%3D%3D", "AQIDBA%3d%3D\r\n"],
    ids=["line ends", "spaces", "no padding", "escaped padding", "escaped padding and line end"],
)
def test_base64_is_forgiven_as_browsers_forgive_it(payload: str) -> None:
    assert decoded(f"data:;base64,{payload}") == b"\1\2\3\4"


@pytest.mark.parametrize(
    "payload",
    ["A", "AQIDB", "AQ=DBA==", "AQID!A==", "AQIDBA=", "====", "=", "AQ==AQ==", "A===", "AQI-_w==", "AQIDéA==", "{}"],
)
def test_malformed_base64_is_refused(payload: str) -> None:
    with pytest.raises(DataUrlError, match="holds malformed base64"):
        parse_data_url(f"data:image/png;base64,{payload}")


@pytest.mark.parametrize("url", ["data:bad", "data:", "data:image/png;base64", "data:" + "x" * 5000 + ",y"])
def test_url_without_a_comma_is_refused(url: str) -> None:
    with pytest.raises(DataUrlError, match="is malformed: a data: URL is data:"):
        parse_data_url(url)


@given(st.binary(max_size=100))
def test_every_payload_comes_back(content: bytes) -> None:
    assert decoded("data:;base64," + base64.b64encode(content).decode()) == content


@pytest.mark.parametrize("more", range(4))
def test_payload_of_many_pieces_comes_back(more: int) -> None:
    content = (bytes(range(256)) * 6000 + b"end")[more:]
    url = parse_data_url("data:;base64," + base64.b64encode(content).decode())
    pieces = list(url.pieces())
    assert len(pieces) > 4
    assert b"".join(pieces) == content


@pytest.mark.parametrize("fault", ["=", "==", "é", "*", "\n="])
def test_padding_or_a_stray_character_at_the_end_of_a_piece_is_found(fault: str) -> None:
    """A piece that ends with padding could be decoded by itself."""
    begin = "A" * ((1 << 16) - len(fault)) + fault
    with pytest.raises(DataUrlError, match="malformed base64"):
        parse_data_url(f"data:;base64,{begin}{'A' * (1 << 16)}")


def test_fault_in_the_last_piece_is_found() -> None:
    payload = "A" * (1 << 20) + "A*AA"
    with pytest.raises(DataUrlError):
        parse_data_url(f"data:;base64,{payload}")


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://host/dir/im%20g.png?q=1", "im g.png"),
        ("http://host/a+b.png", "a b.png"),
        ("http://host/", ""),
        ("http://host", ""),
        ("http://host/dir/", ""),
        ("http://host/é.png#f", "é.png"),
        ("http://host/..%2F..%2Fetc%2Fpasswd", ".._.._etc_passwd"),
        ("http://host/a%00b%0Ac.txt", "a_b_c.txt"),
        ("http://host/%ff.png", "\N{REPLACEMENT CHARACTER}.png"),
        ("http://[broken/x.png", ""),
    ],
)
def test_name_from_url(url: str, name: str) -> None:
    assert name_from_url(url) == name


def test_long_name_is_cut_before_its_extension() -> None:
    name = name_from_url("http://host/" + "n" * 300 + ".jpeg")
    assert name == "n" * 194 + "~.jpeg"
    assert len(name) == 200


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=150, max_size=400))
def test_cut_name_fits_a_file_system(name: str) -> None:
    assert len(clip_name(name).encode()) <= 200


def test_name_of_exactly_the_limit_stays() -> None:
    assert clip_name("n" * 200) == "n" * 200


def test_overlong_extension_is_no_extension() -> None:
    assert clip_name("a." + "x" * 300) == "a." + "x" * 197 + "~"


@pytest.mark.parametrize(
    ("media_type", "name"),
    [("image/png", "file.png"), ("IMAGE/WEBP", "file.webp"), ("text/csv", "file.csv"), ("video/mp4", "file.mp4")],
)
def test_name_from_media_type(media_type: str, name: str) -> None:
    assert name_from_media_type(media_type) == name


def test_shown_url_tells_no_secret() -> None:
    url = "https://user:password@host:8443/a/b.png?X-Amz-Signature=secret#secret"
    assert shown_url(url) == "https://host:8443/a/b.png"
    assert len(shown_url("http://host/" + "x" * 1000)) == 200
    assert shown_url("http://[broken") == "the URL"


@given(st.text("a%41é 5Zz", min_size=1, max_size=60), st.integers(3, 7))
def test_pieces_are_the_whole_wherever_they_are_cut(text: str, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_urls, "_UNESCAPED", size)
        pieces = [*parse_data_url(f"data:,{text}").pieces()]
    assert b"".join(pieces) == unquote_to_bytes(text)
    assert max(map(len, pieces)) <= 2 * size


@given(st.binary(max_size=40), st.integers(3, 7), st.booleans())
def test_escaped_base64_is_tidied_in_pieces(content: bytes, size: int, spaces: bool) -> None:
    escaped = "".join(f"%{ord(char):02x}" for char in base64.b64encode(content).decode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_urls, "_UNESCAPED", size)
        assert decoded(f"data:;base64,{' %20'.join(escaped.partition('%3d')) if spaces else escaped}") == content


@pytest.mark.parametrize("escape", ["%80", "%C3%A9", "%A0", "%C2%A0"])
def test_escape_of_what_is_not_ascii_is_no_base64(escape: str) -> None:
    with pytest.raises(DataUrlError, match="holds malformed base64"):
        parse_data_url(f"data:;base64,AAAA{escape}")


@pytest.mark.parametrize("payload", [",", ",abc", ",%41%41%41", ",a%41b%", ";base64,", ";base64,QQ==", ";base64,QUJD"])
def test_size_is_not_exceeded_by_the_payload_itself(payload: str) -> None:
    url = parse_data_url(f"data:{payload}")
    assert not url.exceeds(len(b"".join(url.pieces())))


@pytest.mark.parametrize(
    ("payload", "least"),
    [
        (f";base64,{'QUJD' * 1000}", 2998),
        (f";base64,{'QUJD%0A ' * 1000}", 2998),
        (f";base64,{'%51UJD' * 1000}", 2998),
        (f",{'%41' * 1000}", 1000),
    ],
)
def test_size_is_told_by_the_length_of_a_payload(payload: str, least: int) -> None:
    url = split_data_url(f"data:{payload}")
    assert url.exceeds(least - 1)
    assert not url.exceeds(least)


@pytest.mark.parametrize("size", [1, 5, 7, 65_536])
@pytest.mark.parametrize(
    "payload", ["QU\\u004aD" * 50, "Q\\/\\/D" * 50, "\\u0051\\u0055JD", "QUJD" * 40_000, "QUI\\u003d"]
)
def test_payload_in_a_json_text(payload: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_urls, "_JUDGED", max(size, 6))
    json_text = f'"data:;base64,{payload}"'.encode()
    held = HeldUrl("data:;base64,", json_text, begin=json_text.index(b",") + 1, end=len(json_text) - 1)
    content = base64.b64decode(json.loads(json_text).partition(",")[2])
    assert decoded(held) == content
    assert split_data_url(held).exceeds(len(content) - 3)
    assert not split_data_url(held).exceeds(len(content))


@pytest.mark.parametrize("url", ["data:," + "%41" * 500_000, "data:;base64," + "%51UJD" * 250_000])
def test_escapes_are_not_all_in_memory_at_once(url: str) -> None:
    tracemalloc.start()
    try:
        size = sum(map(len, parse_data_url(url).pieces()))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size >= 500_000
    assert most <= 2 * len(url)
