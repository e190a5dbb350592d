"""The token of a cluster: its file, and who has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from geartrain.transport.relay.token import TOKEN_FIELD, ClusterOptionError, Sender, read_token
from geartrain.transport.wire.exchange import Head

FIRST, SECOND = "a" * 32, "b" * 44


def head(*tokens: str) -> Head:
    return Head("GET", b"/predictions/a", b"", [(TOKEN_FIELD, token.encode()) for token in tokens])


def test_every_token_of_the_file_is_taken_and_the_first_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"# of spring\n{FIRST}\n\n  {SECOND}  \n")
    token = read_token(path)
    assert token.value == FIRST.encode()
    assert token.sender(head(FIRST)) is token.sender(head(SECOND)) is Sender.SERVER


def test_who_has_no_token_is_a_client_and_who_has_a_wrong_one_a_stranger(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(FIRST)
    token = read_token(path)
    assert token.sender(head()) is Sender.CLIENT
    for wrong in (("",), (FIRST[:-1],), (FIRST + "a",), (SECOND,), (FIRST, FIRST), ("é" * 32,)):
        assert token.sender(head(*wrong)) is Sender.STRANGER


@pytest.mark.parametrize(
    "content", ["", "# nothing\n", "short\n", f"{FIRST}\nshort\n", f"two words {FIRST}\n", "ü" * 32]
)
def test_a_file_without_a_good_token_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "token"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ClusterOptionError, match=r"^--cluster-token-file: .*head -c 32"):
        read_token(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ClusterOptionError, match="No such file"):
        read_token(tmp_path / "none")
