"""Certificates for tests, each with a key of its own."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_OWN = x509.ObjectIdentifier("1.3.6.1.4.1.55555.1")
_HOUR = datetime.timedelta(hours=1)


class Party(NamedTuple):
    """A certificate with its key, and both as PEM."""

    key: bytes
    cert: bytes
    certificate: x509.Certificate
    private_key: ec.EllipticCurvePrivateKey

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Write both into a folder; return the paths of the certificate and of the key."""
        cert, key = folder / f"{name}.pem", folder / f"{name}.key"
        cert.write_bytes(self.cert)
        key.write_bytes(self.key)
        return cert, key

    def encrypted_key(self, passphrase: bytes) -> bytes:
        """Return the key as PEM that cannot be read without the passphrase."""
        return _pem(self.private_key, serialization.BestAvailableEncryption(passphrase))


def make_party(
    name: str,
    issuer: Party | None = None,
    *,
    is_authority: bool = False,
    is_expired: bool = False,
    padding: int = 0,
) -> Party:
    """Make a certificate for 127.0.0.1 and localhost; without an issuer it is an authority of its own.

    `padding`: bytes of an extension that means nothing.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 2 * _HOUR)
        .not_valid_after(now - _HOUR if is_expired else now + _HOUR)
        .add_extension(x509.BasicConstraints(ca=issuer is None or is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.UnrecognizedExtension(_OWN, bytes(padding)), critical=False)
        .sign(key if issuer is None else issuer.private_key, hashes.SHA256())
    )
    cert = certificate.public_bytes(serialization.Encoding.PEM)
    return Party(_pem(key, serialization.NoEncryption()), cert, certificate, key)


def _pem(key: ec.EllipticCurvePrivateKey, encryption: serialization.KeySerializationEncryption) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
