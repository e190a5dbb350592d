"""Changes of a file of keys."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from geartrain.transport.access.keys import Key, add_key, digest_of, list_keys, revoke_key
from geartrain.transport.access.options import AccessError
from tests.unit.transport.access.parts import line, write_keys


def key(name: str) -> Key:
    return Key(name, ("predict",), digest_of(name))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_file_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    add_key(path, key("ada"))
    assert mode(path) == 0o600
    assert list_keys(path) == [key("ada")]


def test_comments_order_and_mode_stay(tmp_path: Path) -> None:
    path = write_keys(tmp_path / "keys", "# mine", line("one"), "", "# the other", line("two", "bob"))
    path.chmod(0o640)
    add_key(path, key("eve"))
    revoke_key(path, "ada")
    assert path.read_text().splitlines() == ["# mine", "", "# the other", line("two", "bob"), line("eve", "eve")]
    assert mode(path) == 0o640


def test_last_line_without_an_end_is_one(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(line("one"))
    add_key(path, key("bob"))
    assert [each.name for each in list_keys(path)] == ["ada", "bob"]


def test_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = write_keys(tmp_path / "keys", line("one"))
    with path.open() as old:
        add_key(path, key("bob"))
        assert old.read() == line("one") + "\n"
    assert [each.name for each in tmp_path.iterdir()] == ["keys"]


def test_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target = write_keys(tmp_path / "real" / "keys", line("one"))
    link = tmp_path / "keys"
    link.symlink_to(target)
    add_key(link, key("bob"))
    assert link.is_symlink()
    assert [each.name for each in list_keys(target)] == ["ada", "bob"]


def test_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    path = write_keys(tmp_path / "keys", line("one"))
    with pytest.raises(AccessError, match="has a key 'ada' already; choose another name"):
        add_key(path, key("ada"))
    assert path.read_text() == line("one") + "\n"


def test_broken_file_is_not_changed(tmp_path: Path) -> None:
    path = write_keys(tmp_path / "keys", "ada")
    with pytest.raises(AccessError, match="line 1: a key has the form"):
        add_key(path, key("bob"))
    with pytest.raises(AccessError, match="line 1: a key has the form"):
        revoke_key(path, "ada")
    assert path.read_text() == "ada\n"


def test_key_that_is_not_there_cannot_be_revoked(tmp_path: Path) -> None:
    path = write_keys(tmp_path / "keys", line("one"), line("two", "bob"))
    with pytest.raises(AccessError, match="has no key 'eve'; there are ada, bob"):
        revoke_key(path, "eve")
    with pytest.raises(AccessError, match="has no key 'eve'; there is none"):
        revoke_key(write_keys(tmp_path / "empty"), "eve")


def test_file_that_cannot_be_had_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match=r"cannot read .*: No such file or directory"):
        list_keys(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(AccessError, match=r"cannot read .*: it is no text in UTF-8"):
        list_keys(tmp_path / "bytes")
    with pytest.raises(AccessError, match=r"cannot write .*: No such file or directory"):
        add_key(tmp_path / "none" / "keys", key("ada"))
