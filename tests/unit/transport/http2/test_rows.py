"""Each rule of RFC 9113 that concerns a server: frames sent, and the reaction."""

from __future__ import annotations

import pytest

from tests.support.http2_rows import (
    ACK,
    ANY_STATUS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PING_A,
    ROWS,
    RST_STREAM,
    SETTINGS,
    Answered,
    Goaway,
    PingAcknowledged,
    Reset,
    Row,
    SettingsAcknowledged,
)
from tests.unit.transport.http2.parts import Client, Seen

NO_ERROR = bytes(4)


def code(seen: Seen) -> int:
    at = 4 if seen.kind == GOAWAY else 0
    return int.from_bytes(seen.payload[at : at + 4], "big")


def drive(row: Row, size: int) -> tuple[Client, list[Seen]]:
    """Send a row in pieces of so many bytes, answer what it asks, and return the frames that come."""
    client = Client(opening=b"")
    client.answer_all(client.send(row.opening))
    if row.before:
        client.answer_all(client.send(row.before))
        assert any(each.stream == 1 and each.flags & END_STREAM for each in client.take())
    seen = client.take()
    events = client.send(*(row.sent[at : at + size] for at in range(0, len(row.sent), size)))
    client.answer_all(events)
    return client, [*seen, *client.take_all()]


@pytest.mark.parametrize("size", [1 << 24, 7, 1], ids=["whole", "by7", "by1"])
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_reaction(row: Row, size: int) -> None:
    client, seen = drive(row, size)
    ended = [code(each) for each in seen if each.kind == GOAWAY]
    resets = [(each.stream, code(each)) for each in seen if each.kind == RST_STREAM and each.payload != NO_ERROR]
    reaction = row.reaction
    if isinstance(reaction, Goaway):
        assert ended == [reaction.code]
        return
    assert ended == []
    if isinstance(reaction, Reset):
        assert resets == [(reaction.stream, reaction.code)]
    else:
        assert [stream for stream, _ in resets] == [*row.resets]
    if isinstance(reaction, Answered):
        sections = client.fields(seen, reaction.stream)
        assert len(sections) == 1
        assert sections[0][0][0] == b":status"
        assert reaction.status in {ANY_STATUS, int(sections[0][0][1])}
        assert any(each.stream == reaction.stream and each.flags & END_STREAM for each in seen if each.kind <= HEADERS)
    elif isinstance(reaction, SettingsAcknowledged):
        assert sum(each.kind == SETTINGS and each.flags == ACK for each in seen) == reaction.count
    elif isinstance(reaction, PingAcknowledged):
        assert [each.payload for each in seen if each.kind == PING and each.flags == ACK] == [reaction.payload]
    client.send(PING_A)
    assert any(each.kind == PING and each.flags == ACK for each in client.take_all())


def test_names_differ() -> None:
    assert len({str(row) for row in ROWS}) == len(ROWS)
