"""TLS: the checks of its files, and certificates that are renewed; handshakes take place in memory."""

from __future__ import annotations

import contextlib
import logging
import ssl
from pathlib import Path
from typing import NamedTuple

import pytest

from geartrain.transport.wire.tls import (
    MAX_IDLE_RECORDS,
    TINY_RECORDS,
    TlsContext,
    TlsFiles,
    TlsFilesError,
    TlsOptions,
    check,
    make_context,
)
from tests.support.certificates import Party, make_party
from tests.support.tls_records import CHANGE_CIPHER, key_updates


class Authority(NamedTuple):
    """An authority, and two whose certificates it has signed."""

    ca: Party
    server: Party
    client: Party


@pytest.fixture(scope="module")
def ours() -> Authority:
    ca = make_party("ours")
    return Authority(ca, make_party("server", ca), make_party("client", ca))


@pytest.fixture(scope="module")
def others() -> Authority:
    ca = make_party("others")
    return Authority(ca, make_party("other server", ca), make_party("other client", ca))


@pytest.fixture
def files(tmp_path: Path, ours: Authority) -> TlsFiles:
    cert, key = ours.server.write(tmp_path, "server")
    return TlsFiles(cert=cert, key=key)


@pytest.fixture
def mutual(tmp_path: Path, files: TlsFiles, ours: Authority) -> TlsFiles:
    ours.ca.write(tmp_path, "ca")
    return TlsFiles(cert=files.cert, key=files.key, client_ca=tmp_path / "ca.pem")


class Client:
    """The other end of a handshake."""

    def __init__(self, *trusted: Party, folder: Path | None = None, own: Party | None = None) -> None:
        """It trusts some authorities, and may have a certificate, which is written to `folder`."""
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        for party in trusted:
            self.context.load_verify_locations(cadata=party.cert.decode())
        if own is not None and folder is not None:
            self.context.load_cert_chain(*own.write(folder, "client"))


class Link(NamedTuple):
    """Two ends whose handshake is over."""

    client: ssl.SSLObject
    server: ssl.SSLObject
    to_client: ssl.MemoryBIO
    to_server: ssl.MemoryBIO

    def exchange(self, text: bytes) -> bytes:
        """Send a text to the server and back."""
        self.client.write(text)
        self.server.write(self.server.read(len(text)))
        return self.client.read(len(text))


def connect(server: ssl.SSLContext, client: Client, session: ssl.SSLSession | None = None) -> Link:
    """Shake hands in memory; the client has read the server's tickets. Raises what either end raises."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = client.context.wrap_bio(to_client, to_server, server_hostname="localhost", session=session)
    there = server.wrap_bio(to_server, to_client, server_side=True)
    ends = [here, there]
    for _ in range(10):
        for end in tuple(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                continue
        if not ends:
            link = Link(here, there, to_client, to_server)
            assert link.exchange(b"hello") == b"hello"
            return link
    pytest.fail("the handshake has no end")


def shown(link: Link) -> str:
    """The name in the server's certificate."""
    certificate = link.client.getpeercert()
    assert certificate is not None
    return str(certificate["subject"][0][0][1])


def write_again(path: Path, content: bytes) -> None:
    """Write a file as a tool that renews certificates does: beside it, and then in its place."""
    beside = path.with_suffix(".new")
    beside.write_bytes(content)
    beside.replace(path)


def renew(files: TlsFiles, party: Party) -> None:
    write_again(files.cert, party.cert)
    write_again(files.key, party.key)


def refresh(tls: TlsContext) -> bool:
    """Look at the files as often as it takes for a change to count."""
    return not tls.refresh() and tls.refresh()


# the context


def test_client_that_trusts_the_authority_gets_in(files: TlsFiles, ours: Authority) -> None:
    link = connect(make_context(files), Client(ours.ca))
    assert shown(link) == "server"
    assert link.server.version() == "TLSv1.3"


def test_tls_1_2_is_the_oldest(files: TlsFiles, ours: Authority) -> None:
    client = Client(ours.ca)
    client.context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert connect(make_context(files), client).server.version() == "TLSv1.2"
    client.context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        client.context.minimum_version = client.context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError, match="UNSUPPORTED_PROTOCOL"):
        connect(make_context(files), client)


@pytest.mark.parametrize(
    ("offered", "spoken"),
    [(["http/1.1"], "http/1.1"), (["http/1.1", "h2"], "h2"), (["h2"], "h2"), (["spdy/3"], None), ([], None)],
)
def test_alpn_prefers_http_2(files: TlsFiles, ours: Authority, offered: list[str], spoken: str | None) -> None:
    client = Client(ours.ca)
    if offered:
        client.context.set_alpn_protocols(offered)
    assert connect(make_context(files), client).server.selected_alpn_protocol() == spoken


def test_alpn_is_what_the_caller_says(files: TlsFiles, ours: Authority) -> None:
    client = Client(ours.ca)
    client.context.set_alpn_protocols(["http/1.1", "h2"])
    context = make_context(files, ("h2", "http/1.1"))
    assert connect(context, client).server.selected_alpn_protocol() == "h2"


def test_client_needs_a_certificate_where_there_is_an_authority_for_clients(
    mutual: TlsFiles, ours: Authority, others: Authority, tmp_path: Path
) -> None:
    context = make_context(mutual)
    assert shown(connect(context, Client(ours.ca, folder=tmp_path, own=ours.client))) == "server"
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        connect(context, Client(ours.ca))
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        connect(context, Client(ours.ca, folder=tmp_path, own=others.client))


# the files


def test_files_that_fit_pass(files: TlsFiles, mutual: TlsFiles) -> None:
    check(files)
    check(mutual)


@pytest.mark.parametrize(
    ("name", "option"), [("server.pem", "--tls-cert"), ("server.key", "--tls-key"), ("ca.pem", "--tls-client-ca")]
)
def test_missing_file_is_named_with_its_option(mutual: TlsFiles, tmp_path: Path, name: str, option: str) -> None:
    (tmp_path / name).unlink()
    with pytest.raises(TlsFilesError, match=f"^{option}: there is no file {tmp_path / name}$"):
        check(mutual)
    (tmp_path / name).mkdir()
    with pytest.raises(TlsFilesError, match=f"^{option}: there is no file"):
        check(mutual)


def test_unreadable_file_is_named_with_its_option(files: TlsFiles, tmp_path: Path) -> None:
    unreadable = TlsFiles(cert=files.cert, key=tmp_path / ("x" * 300))
    with pytest.raises(TlsFilesError, match=r"^--tls-key: cannot read .*: File name too long$"):
        check(unreadable)


def test_encrypted_key_is_refused_without_a_question(files: TlsFiles, ours: Authority) -> None:
    files.key.write_bytes(ours.server.encrypted_key(b"secret"))
    with pytest.raises(TlsFilesError, match=f"^--tls-key: {files.key} is encrypted; write it without a passphrase"):
        check(files)


def test_files_that_do_not_fit_are_refused(files: TlsFiles, mutual: TlsFiles, others: Authority) -> None:
    assert mutual.client_ca is not None
    mutual.client_ca.write_bytes(b"none")
    with pytest.raises(TlsFilesError, match=r"^--tls-client-ca has no certificate: "):
        check(mutual)
    files.key.write_bytes(others.server.key)
    with pytest.raises(TlsFilesError, match=r"^--tls-cert and --tls-key are no certificate and its key: .*MISMATCH"):
        check(files)
    files.cert.write_bytes(b"")
    with pytest.raises(TlsFilesError, match=r"^--tls-cert and --tls-key are no certificate and its key: "):
        check(files)


def test_options_can_have_other_names(files: TlsFiles, tmp_path: Path) -> None:
    named = TlsFiles(cert=tmp_path / "none", key=files.key, options=TlsOptions(cert="--other-cert"))
    with pytest.raises(TlsFilesError, match=r"^--other-cert: there is no file"):
        check(named)


# renewal


def test_renewed_certificate_is_for_new_connections(files: TlsFiles, ours: Authority) -> None:
    tls = TlsContext(files)
    client, context = Client(ours.ca), tls.context
    before = connect(context, client)
    renew(files, make_party("renewed", ours.ca))
    assert refresh(tls)
    assert tls.context is context
    assert shown(connect(context, client)) == "renewed"
    assert before.exchange(b"still here") == b"still here"


def test_handshake_takes_up_a_renewed_certificate_by_itself(files: TlsFiles, ours: Authority) -> None:
    tls, client = TlsContext(files), Client(ours.ca)
    renewed = make_party("renewed", ours.ca)
    write_again(files.cert, renewed.cert)
    assert shown(connect(tls.context, client)) == "server", "without its key it cannot be used"
    write_again(files.key, renewed.key)
    assert shown(connect(tls.context, client)) == "renewed"
    assert not any(tls.refresh() for _ in range(3))


def test_nothing_is_read_while_the_files_stay_as_they_are(files: TlsFiles, ours: Authority) -> None:
    tls = TlsContext(files)
    assert not any(tls.refresh() for _ in range(3))
    renew(files, make_party("renewed", ours.ca))
    assert [tls.refresh() for _ in range(4)] == [False, True, False, False]


def test_renewal_in_two_steps_is_taken_up_as_one(
    files: TlsFiles, ours: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    tls, renewed = TlsContext(files), make_party("renewed", ours.ca)
    write_again(files.cert, renewed.cert)
    assert not tls.refresh()
    write_again(files.key, renewed.key)
    assert [tls.refresh(), tls.refresh()] == [False, True]
    assert [record.levelno for record in caplog.records if record.levelno > logging.INFO] == []
    assert shown(connect(tls.context, Client(ours.ca))) == "renewed"


def test_renewal_by_a_link_to_another_folder_is_seen(tmp_path: Path, ours: Authority) -> None:
    for name, party in (("first", ours.server), ("second", make_party("renewed", ours.ca))):
        (tmp_path / name).mkdir()
        party.write(tmp_path / name, "tls")
    (tmp_path / "now").symlink_to("first")  # as Kubernetes mounts a secret
    tls = TlsContext(TlsFiles(cert=tmp_path / "now" / "tls.pem", key=tmp_path / "now" / "tls.key"))
    (tmp_path / "next").symlink_to("second")
    (tmp_path / "next").replace(tmp_path / "now")
    assert refresh(tls)
    assert shown(connect(tls.context, Client(ours.ca))) == "renewed"


def test_broken_renewal_keeps_the_certificate_and_is_said_once(
    files: TlsFiles, ours: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    tls = TlsContext(files)
    write_again(files.cert, b"broken")
    assert not any(tls.refresh() for _ in range(5))
    assert shown(connect(tls.context, Client(ours.ca))) == "server"
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage().startswith("the certificate that was in use stays: --tls-cert and --tls-key are no")
    renew(files, make_party("renewed", ours.ca))
    assert refresh(tls)
    assert shown(connect(tls.context, Client(ours.ca))) == "renewed"


def test_files_that_are_gone_are_said_once(files: TlsFiles, ours: Authority, caplog: pytest.LogCaptureFixture) -> None:
    tls = TlsContext(files)
    files.key.unlink()
    assert not any(tls.refresh() for _ in range(5))
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        f"--tls-key: there is no file {files.key}"
    ]
    write_again(files.key, ours.server.key)
    assert refresh(tls)


def test_changed_authority_of_clients_counts_for_new_connections(
    mutual: TlsFiles, ours: Authority, others: Authority, tmp_path: Path
) -> None:
    tls = TlsContext(mutual)
    former = Client(ours.ca, folder=tmp_path, own=ours.client)
    before = connect(tls.context, former)
    assert mutual.client_ca is not None
    write_again(mutual.client_ca, others.ca.cert)
    assert refresh(tls)
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        connect(tls.context, former)
    assert shown(connect(tls.context, Client(ours.ca, folder=tmp_path, own=others.client))) == "server"
    assert before.exchange(b"still here") == b"still here"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_session_of_a_former_authority_does_not_get_in(
    mutual: TlsFiles, ours: Authority, others: Authority, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    tls = TlsContext(mutual)
    former = Client(ours.ca, folder=tmp_path, own=ours.client)
    former.context.maximum_version = version
    session = connect(tls.context, former).client.session
    assert session is not None
    again = connect(tls.context, former, session)
    assert again.server.session_reused
    assert mutual.client_ca is not None
    write_again(mutual.client_ca, others.ca.cert)
    assert refresh(tls)
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        connect(tls.context, former, again.client.session)


def test_context_takes_no_files_that_do_not_fit(files: TlsFiles) -> None:
    files.cert.unlink()
    with pytest.raises(TlsFilesError, match="--tls-cert: there is no file"):
        TlsContext(files)


# records


def test_records_are_read_however_they_come(files: TlsFiles, ours: Authority) -> None:
    link = connect(TlsContext(files).context, Client(ours.ca))
    text = bytes(range(256)) * 400
    link.client.write(text)
    sent, arrives, read = link.to_server.read(), link.to_server, bytearray()
    for number, byte in enumerate(sent):
        arrives.write(bytes((byte,)))
        if number % 7 == 0 or number > len(sent) - 40:
            with contextlib.suppress(ssl.SSLWantReadError):
                read += link.server.read(200_000)
    assert read == text
    link.client.write(text)
    link.client.write(b"last")
    buffer = bytearray(1000)
    while len(read) < 2 * len(text) + 4:  # as an event loop does: while something is there
        assert arrives.pending or link.server.pending()
        read += buffer[: int(link.server.read(1000, buffer))]
    assert read == text + text + b"last"
    with pytest.raises(ssl.SSLWantReadError):
        link.server.read(1)
    assert not link.server.pending()


def test_flood_of_key_updates_ends_the_connection(files: TlsFiles, ours: Authority) -> None:
    link = connect(TlsContext(files).context, Client(ours.ca))
    updates = key_updates(link.client, link.to_server, MAX_IDLE_RECORDS - 1)  # "hello" was a little one
    link.to_server.write(updates)
    with pytest.raises(ssl.SSLWantReadError):
        link.server.read(1)
    assert link.exchange(b"still here") == b"still here"
    link.to_server.write(key_updates(link.client, link.to_server, 10_000))
    with pytest.raises(ssl.SSLError, match="too many records with little or no data"):
        link.server.read(1)
    assert link.to_client.pending < 100 * 64  # an answer to each that was read


def test_key_updates_between_data_are_taken(files: TlsFiles, ours: Authority) -> None:
    link = connect(TlsContext(files).context, Client(ours.ca))
    for _ in range(2 * MAX_IDLE_RECORDS):
        link.to_server.write(key_updates(link.client, link.to_server, 1))
        for _ in range(2):
            link.client.write(bytes(1_000_000))
            read = 0
            while read < 1_000_000:
                read += len(link.server.read(1_000_000))


def test_flood_of_records_with_a_byte_each_ends_the_connection(files: TlsFiles, ours: Authority) -> None:
    link = connect(TlsContext(files).context, Client(ours.ca))
    for _ in range(MAX_IDLE_RECORDS * TINY_RECORDS - 1):  # "hello" was one
        link.client.write(b"x")
        assert link.server.read(10) == b"x"
    link.client.write(b"x")
    with pytest.raises(ssl.SSLError, match="too many records with little or no data"):
        link.server.read(10)


def test_handshake_without_end_is_refused(files: TlsFiles, ours: Authority) -> None:
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = Client(ours.ca).context.wrap_bio(to_client, to_server, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    server = TlsContext(files).context.wrap_bio(to_server, to_client, server_side=True)
    with pytest.raises(ssl.SSLWantReadError):
        server.do_handshake()
    to_server.write(CHANGE_CIPHER * 100_000)
    with pytest.raises(ssl.SSLError) as raised:
        server.do_handshake()
    assert not isinstance(raised.value, ssl.SSLWantReadError)


def test_hello_in_records_of_a_byte_is_refused_beyond_a_size(files: TlsFiles) -> None:
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = TlsContext(files).context.wrap_bio(to_server, to_client, server_side=True)
    to_server.write(b"\x16\x03\x01\x00\x04\x01\x01\xff\xf0" + b"\x16\x03\x01\x00\x01x" * 100_000)
    with pytest.raises(ssl.SSLError, match="the handshake is too long"):
        server.do_handshake()
