"""Where the codec and h2 may differ, and why."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from geartrain.transport.http2.frames import (
    ACK,
    CONTINUATION,
    END_HEADERS,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
)
from geartrain.transport.http2.interface import PREFACE, ErrorCode
from tools.fuzz.http2_sequences import ALIVE, Frame, Piece, Step, frames_of, run_h2, run_ours

_TOKEN: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_PATH: Final = re.compile(rb"/[!\"$-~]*")
_HOST: Final = re.compile(rb"(?:[A-Za-z0-9\-._~%!$&'()*+,;=]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")
_CONTROLS: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_E = ErrorCode


class Verdict(msgspec.Struct, frozen=True):
    """What a comparison has come to: why both differ, if they do; `fault`: there is no reason for it."""

    reason: str = ""
    fault: str = ""


class Difference(msgspec.Struct, frozen=True):
    """A step that both see differently.

    Attributes:
        frames: those that the piece has completed.
        rest: the beginning of one that is not complete.
        before: all frames before.
    """

    ours: Step
    theirs: Step
    frames: Sequence[Frame]
    rest: bytes
    before: Sequence[Frame]

    def has(self, *kinds: int) -> bool:
        """Whether a frame of these kinds is among them, in part or whole."""
        return any(kind in kinds for kind, *_ in self.frames) or self.rest[3:4] in [bytes((kind,)) for kind in kinds]

    def codes(self) -> set[int]:
        """Return the codes of the streams that the codec resets."""
        return {code for _, code in self.ours.resets}


def _is_stricter(found: Difference) -> bool:
    """Whether h2 takes a head that is refused for what h2 does not look at."""
    refused = {stream for stream, code in found.ours.resets if code == _E.PROTOCOL_ERROR}
    for stream, method, path, fields in found.theirs.heads:
        names = [name for name, _ in fields]
        if stream in refused and (
            _TOKEN.fullmatch(method) is None
            or method == b"CONNECT"
            or (_PATH.fullmatch(path) is None and path != b"*")
            or (path == b"*" and method != b"OPTIONS")
            or any(name == b"host" and _HOST.fullmatch(value) is None for name, value in fields)
            or any(_TOKEN.fullmatch(name) is None or _CONTROLS.search(value) for name, value in fields)
            or len(_lengths(fields)) > 1
            or b"cookie" in names  # h2 moves it to the end, and then looks whether all pseudo-fields come first
            or (stream in found.theirs.ended and any(each not in {b"0", b""} for each in _lengths(fields)))
        ):
            return True
    return False


def _lengths(fields: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    return [value for name, value in fields if name == b"content-length"]


def _has_wrong_stream(found: Difference) -> bool:
    alone = {SETTINGS, PING, GOAWAY}
    return any(
        (kind in alone) == bool(stream) or (kind == HEADERS and not stream & 1)
        for kind, _, stream, _ in found.frames
        if kind != WINDOW_UPDATE
    )


Reason = Callable[[Difference], bool]
RESET_AGAIN: Final = "5.1: what comes behind a reset of the server is ignored; h2 resets the stream again"
REASONS: Final[Sequence[tuple[str, Reason]]] = (
    (
        "4.3: a block that cannot be decoded is a COMPRESSION_ERROR; h2 calls it a PROTOCOL_ERROR",
        lambda found: found.ours.end == _E.COMPRESSION_ERROR and found.theirs.end == _E.PROTOCOL_ERROR,
    ),
    (
        "8.1.1: what is malformed is an error of its stream; h2 ends the connection",
        lambda found: _E.PROTOCOL_ERROR in found.codes() and found.theirs.end == _E.PROTOCOL_ERROR,
    ),
    (
        "5.1: what comes on a stream that is over may end the connection; h2 resets the stream again",
        lambda found: found.ours.end == _E.STREAM_CLOSED and _resets_again(found),
    ),
    (
        "5.1: behind the end of a stream a frame is an error of the stream; h2 ends the connection",
        lambda found: _E.STREAM_CLOSED in found.codes() and found.theirs.end == _E.STREAM_CLOSED,
    ),
    (
        "6.4: to reset an idle stream is an error; h2 ignores it",
        lambda found: found.ours.end == _E.PROTOCOL_ERROR and found.has(RST_STREAM) and found.theirs.end == ALIVE,
    ),
    (
        "8.4: a client cannot push, on whatever stream; h2 looks at the stream, or at the frame, first",
        lambda found: found.ours.end == _E.PROTOCOL_ERROR and found.has(PUSH_PROMISE),
    ),
    (
        "6.3: PRIORITY of another size is an error of its stream; h2 ends the connection",
        lambda found: _E.FRAME_SIZE_ERROR in found.codes() and found.has(PRIORITY) and found.theirs.end > 0,
    ),
    (
        "5.3: a stream may depend on itself, since priorities mean nothing; h2 ends the connection",
        lambda found: found.theirs.end == _E.PROTOCOL_ERROR and _depends_on_itself(found),
    ),
    (
        "a frame that is not complete: its header may be refused at once, or with the rest of it",
        lambda found: bool(found.rest) and {found.ours.end, found.theirs.end} <= {ALIVE, 1, 5, 6},
    ),
    (
        "4.3: within a field block any other frame is a PROTOCOL_ERROR; h2 looks at its size first",
        lambda found: (
            found.ours.end == _E.PROTOCOL_ERROR
            and found.theirs.end == _E.FRAME_SIZE_ERROR
            and any(
                kind in {HEADERS, CONTINUATION} and not flags & END_HEADERS for kind, flags, *_ in found.before[-1:]
            )
        ),
    ),
    (
        "a frame on the wrong stream and of a wrong size: either fault may be named",
        lambda found: {found.ours.end, found.theirs.end} == {1, 6} and _has_wrong_stream(found),
    ),
    (
        "6.9.2: the windows of open streams are changed; h2 changes those of streams that are over too",
        lambda found: found.theirs.end == _E.FLOW_CONTROL_ERROR and found.has(SETTINGS) and found.ours.end == ALIVE,
    ),
    (
        "6.8: the streams of a client that leaves go on; h2 refuses every frame behind GOAWAY",
        lambda found: any(kind == GOAWAY for kind, *_ in (*found.before, *found.frames)),
    ),
    ("8.2, 8.3: a head is looked at more closely than by h2", _is_stricter),
    (
        "8.1.1: a body that trailers end is as long as content-length says; h2 does not count it then",
        lambda found: (
            found.has(HEADERS, CONTINUATION)
            and any(stream in found.theirs.ended and code == _E.PROTOCOL_ERROR for stream, code in found.ours.resets)
            and not found.theirs.heads
        ),
    ),
    (
        "6.2: a padded HEADERS frame may have no field; h2 refuses it",
        lambda found: (
            any(kind == HEADERS and flags & PADDED for kind, flags, *_ in (*found.before[-1:], *found.frames))
            and found.theirs.end == _E.PROTOCOL_ERROR
        ),
    ),
    (
        "6.10: CONTINUATION without a field block is a PROTOCOL_ERROR; h2 looks at the stream first",
        lambda found: (
            found.ours.end == _E.PROTOCOL_ERROR
            and found.has(CONTINUATION)
            and (_resets_again(found) or found.theirs.end == _E.STREAM_CLOSED)
        ),
    ),
    (
        "6.5: an acknowledgement with settings is a FRAME_SIZE_ERROR; h2 calls it a PROTOCOL_ERROR",
        lambda found: (
            found.ours.end == _E.FRAME_SIZE_ERROR
            and any(kind == SETTINGS and flags & ACK and payload for kind, flags, _, payload in found.frames)
        ),
    ),
    (
        "6.9: the reserved bit of an increment is ignored; h2 refuses it",
        lambda found: (
            found.theirs.end == _E.PROTOCOL_ERROR
            and found.ours.end == ALIVE
            and any(kind == WINDOW_UPDATE and payload[:1] >= b"\x80" for kind, _, _, payload in found.frames)
        ),
    ),
    (
        "6.9: no credit for a stream that is over means nothing; h2 ends the connection",
        lambda found: (
            found.theirs.end == _E.PROTOCOL_ERROR
            and found.ours.end == ALIVE
            and any(kind == WINDOW_UPDATE and stream for kind, _, stream, _ in found.frames)
        ),
    ),
    (
        "5.1.1: the number of a stream is looked at before all of its fields have come; h2 waits for them",
        lambda found: (
            found.ours.end == _E.PROTOCOL_ERROR
            and any(kind == HEADERS and not flags & END_HEADERS for kind, flags, *_ in found.frames)
        ),
    ),
)


def _resets_again(found: Difference) -> bool:
    return any(code == _E.STREAM_CLOSED for _, code in found.theirs.resets)


def _depends_on_itself(found: Difference) -> bool:
    for kind, flags, stream, payload in found.frames:
        at = 1 if kind == HEADERS and flags & PADDED else 0
        if kind in {HEADERS, PRIORITY} and int.from_bytes(payload[at : at + 4], "big") & 0x7FFFFFFF == stream:
            return True
    return False


def compare(pieces: Sequence[Piece], chance: random.Random) -> Verdict:
    """Return how the codec and h2 differ, and check that the codec sees the same in other pieces."""
    steps = list(run_ours(pieces))
    fault = _in_pieces(pieces, chance)
    if fault:
        return Verdict(fault=fault)
    before: list[Frame] = []
    rest = b""
    reason = ""
    bodies: tuple[dict[int, bytes], dict[int, bytes]] = ({}, {})
    for number, (piece, ours, theirs) in enumerate(zip(pieces, steps, run_h2(pieces), strict=False)):
        frames, rest = frames_of(rest + (piece.data[len(PREFACE) :] if not number else piece.data))
        if _drop_repeated_resets(ours, theirs):
            reason = RESET_AGAIN
        if not _is_same(ours, theirs, bodies):
            found = Difference(ours, theirs, frames, rest, before)
            reason = next((text for text, holds in REASONS if holds(found)), "")
            return Verdict(reason) if reason else Verdict(fault=_describe(number, found))
        if ours.end != ALIVE:
            break
        before += frames
    return Verdict(reason)


def _drop_repeated_resets(ours: Step, theirs: Step) -> bool:
    """Take from h2's step the resets of streams that had been reset before; return whether there were any."""
    if ours.end != ALIVE or theirs.end != ALIVE:
        return False
    told = {*ours.bodies, *ours.ended}
    kept: list[tuple[int, int]] = []
    for each in theirs.resets:
        is_known = each in ours.resets or each[0] in told
        if each[1] != _E.STREAM_CLOSED or (is_known and each not in kept):
            kept.append(each)
    is_any = len(kept) < len(theirs.resets)
    theirs.resets = kept
    return is_any


def _is_same(ours: Step, theirs: Step, bodies: tuple[dict[int, bytes], dict[int, bytes]]) -> bool:
    """Whether both see the same. Of bodies the codec may have seen more: it does not wait for the end of a frame."""
    if theirs.end != ALIVE:
        return ours.end == theirs.end  # h2 tells nothing of the frames before the fault
    for known, step in zip(bodies, (ours, theirs), strict=True):
        for stream, data in step.bodies.items():
            known[stream] = known.get(stream, b"") + data
    for stream, data in bodies[1].items():
        seen = bodies[0].get(stream, b"")
        if seen[: len(data)] != data or (stream in theirs.ended and seen != data):
            return False
    return all(getattr(ours, name) == getattr(theirs, name) for name in Step.__struct_fields__ if name != "bodies")


def _describe(number: int, found: Difference) -> str:
    frames = [(*frame[:3], frame[3][:60]) for frame in found.frames]
    return f"piece {number}, {frames!r}, and then {found.rest[:20]!r}\n    ours {found.ours}\n    h2   {found.theirs}"


def _in_pieces(pieces: Sequence[Piece], chance: random.Random) -> str:
    """Return how the codec differs when the same bytes come in other pieces, with the answers at the same places.

    Where a window has been exceeded nothing is compared: credit may be given for the first part of a frame already.
    """
    cut = [part for piece in pieces for part in _cut(piece, chance)]
    found = [_merged(list(run_ours(given))) for given in (pieces, cut)]
    if _E.FLOW_CONTROL_ERROR in {found[0].end, found[1].end}:
        return ""
    return "" if found[0] == found[1] else f"in pieces {[each.data for each in cut]!r}:\n    {found[1]}\n    {found[0]}"


def _cut(piece: Piece, chance: random.Random) -> list[Piece]:
    places = sorted(chance.randrange(len(piece.data) + 1) for _ in range(chance.randrange(4)))
    bounds = [0, *places, len(piece.data)]
    parts = [Piece(piece.data[begin:end]) for begin, end in itertools.pairwise(bounds)]
    return [*parts[:-1], Piece(parts[-1].data, piece.answers, piece.answers_early)]


def _merged(steps: Sequence[Step]) -> Step:
    """Return all steps as one. Bodies of streams that are not complete are left out: a fault may be found later."""
    merged = Step()
    for step in steps:
        for name in ("heads", "ended", "aborted", "resets", "pings"):
            getattr(merged, name).extend(getattr(step, name))
        for stream, data in step.bodies.items():
            merged.bodies[stream] = merged.bodies.get(stream, b"") + data
        merged.settings += step.settings
        merged.end = step.end
    merged.bodies = {stream: data for stream, data in merged.bodies.items() if stream in merged.ended}
    return merged
