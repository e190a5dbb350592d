"""Encryption of stored inputs with the operator's keys: AES-GCM with 256 bits.

A sealed value is bound to its context, so that it cannot be moved to another row unnoticed. The first key of the file
encrypts, and all of them decrypt: a new key is put on top, and an old one stays until nothing is left that it is needed
for.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from geartrain.store.errors import StoreOptionError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NOT_ENCRYPTED: Final = ""
"""In place of the id of a key, for what is not encrypted."""

OPTION: Final = "--store-key-file"
_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_MAKE: Final = "head -c 32 /dev/urandom | base64"


class UnknownKeyError(Exception):
    """Something was encrypted with a key that is not in the file."""


class Keys:
    """The keys of an operator's file; without any, values are stored as they are.

    Attributes:
        has_key: True if `seal` encrypts.
        key_ids: the ids for which `open` works, with a comma before and behind each.
    """

    def __init__(self, keys: Mapping[str, AESGCM] = {}) -> None:
        """`keys`: by their ids, the one that encrypts first."""
        self._keys = keys
        self.has_key = bool(keys)
        self.key_ids = "".join(f",{key_id}," for key_id in (NOT_ENCRYPTED, *keys))

    def seal(self, data: bytes, context: str) -> tuple[bytes, str]:
        """Encrypt a value with the first key; return it and the id of the key."""
        for key_id, key in self._keys.items():
            nonce = secrets.token_bytes(_NONCE_BYTES)
            return nonce + key.encrypt(nonce, data, context.encode()), key_id
        return data, NOT_ENCRYPTED

    def open(self, data: bytes, key_id: str, context: str) -> bytes:
        """Decrypt a value; raise `UnknownKeyError` without its key, or if it was changed."""
        if key_id == NOT_ENCRYPTED:
            return data
        if key_id not in self._keys:
            raise UnknownKeyError(key_id)
        from cryptography.exceptions import InvalidTag

        try:
            return self._keys[key_id].decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], context.encode())
        except (InvalidTag, ValueError) as error:  # changed, or too short
            raise UnknownKeyError(key_id) from error


def read_keys(path: Path) -> Keys:
    """Return the keys of a file, one in each line, 32 bytes in base64; raise `StoreOptionError` with the reason."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        msg = f"{OPTION} needs the package cryptography: pip install 'geartrain[encryption]'"
        raise StoreOptionError(msg) from error
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreOptionError(f"{OPTION}: cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    keys: dict[str, AESGCM] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text and not text.startswith("#"):
            key = _read_key(text, f"line {number} of {path}")
            keys[hashlib.sha256(key).hexdigest()[:16]] = AESGCM(key)
    if not keys:
        raise StoreOptionError(f"{OPTION}: {path} has no key. Make one with: {_MAKE} > {path}")
    return Keys(keys)


def _read_key(text: str, place: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except binascii.Error:
        key = b""
    if len(key) != _KEY_BYTES:
        msg = f"{OPTION}: {place} is no key: it has to be {_KEY_BYTES} bytes in base64, as made by: {_MAKE}"
        raise StoreOptionError(msg)
    return key
