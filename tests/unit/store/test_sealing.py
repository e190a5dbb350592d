"""Encryption with the keys of an operator."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import pytest

from geartrain.store.errors import StoreOptionError
from geartrain.store.sealing import NOT_ENCRYPTED, Keys, UnknownKeyError, read_keys

ONE = base64.b64encode(b"1" * 32).decode()
TWO = base64.b64encode(b"2" * 32).decode()


def keys_of(path: Path, *lines: str) -> Keys:
    file = path / "keys"
    file.write_text("\n".join(lines))
    return read_keys(file)


def test_sealed_is_opened_by_its_key_alone(tmp_path: Path) -> None:
    keys = keys_of(tmp_path, "# the key of today", ONE, "")
    sealed, key_id = keys.seal(b"token", "x")
    assert b"token" not in sealed
    assert keys.open(sealed, key_id, "x") == b"token"
    with pytest.raises(UnknownKeyError):
        keys_of(tmp_path, TWO).open(sealed, key_id, "x")
    with pytest.raises(UnknownKeyError):
        Keys().open(sealed, key_id, "x")


def test_sealed_is_bound_to_its_context(tmp_path: Path) -> None:
    keys = keys_of(tmp_path, ONE)
    sealed, key_id = keys.seal(b"token", "x")
    for data, context in ((sealed, "y"), (sealed[:-1] + bytes([sealed[-1] ^ 1]), "x"), (b"", "x")):
        with pytest.raises(UnknownKeyError):
            keys.open(data, key_id, context)


def test_same_text_is_never_sealed_alike(tmp_path: Path) -> None:
    keys = keys_of(tmp_path, ONE)
    assert len({keys.seal(b"token", "x") for _ in range(50)}) == 50


def test_new_key_on_top_opens_what_the_old_one_sealed(tmp_path: Path) -> None:
    old = keys_of(tmp_path, ONE)
    sealed, key_id = old.seal(b"token", "x")
    both = keys_of(tmp_path, TWO, ONE)
    assert both.open(sealed, key_id, "x") == b"token"
    assert both.seal(b"", "x")[1] != key_id
    assert f",{key_id}," in both.key_ids


def test_what_is_not_encrypted_is_read_with_and_without_keys(tmp_path: Path) -> None:
    plain, key_id = Keys().seal(b"text", "x")
    assert (plain, key_id) == (b"text", NOT_ENCRYPTED)
    for sealer in (Keys(), keys_of(tmp_path, ONE)):
        assert sealer.open(plain, key_id, "x") == b"text"
        assert f",{NOT_ENCRYPTED}," in sealer.key_ids


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["# nothing"], "has no key"),
        ([ONE, "no base64!"], "line 2 of"),
        ([base64.b64encode(b"short").decode()], "32 bytes in base64"),
    ],
)
def test_file_that_is_wrong_is_refused(tmp_path: Path, lines: list[str], reason: str) -> None:
    with pytest.raises(StoreOptionError, match=f"--store-key-file: .*{reason}"):
        keys_of(tmp_path, *lines)


def test_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreOptionError, match=r"--store-key-file: cannot read .*none: No such file"):
        read_keys(tmp_path / "none")


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(StoreOptionError, match=r"pip install 'geartrain\[encryption\]'"):
        keys_of(tmp_path, ONE)
