"""State of a socket in the system, and its hard end."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from typing import NamedTuple


def unsent(transport: asyncio.Transport) -> int:
    """Return the bytes that wait for the client, in the transport and in the system."""
    waiting = transport.get_write_buffer_size()
    return waiting and waiting + _queued(transport.get_extra_info("socket").fileno())


def has_sent_all(transport: asyncio.Transport) -> bool:
    """Tell whether nothing waits for the client any more, neither here nor in the system."""
    return not transport.get_write_buffer_size() and not _queued(transport.get_extra_info("socket").fileno())


class Progress(NamedTuple):
    """Bytes that wait for a client, and the last moment of progress; the present if there are none."""

    unsent: int
    since: float


def progress(transport: asyncio.Transport, before: Progress, now: float, *, held: int = 0) -> Progress:
    """Return the progress since the last look; `held`: bytes that the transport does not have yet."""
    waiting = unsent(transport) + held
    return before if waiting and waiting == before.unsent else Progress(waiting, now)


def close_at_once(transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
    """Close a connection on which little was written just now, and nothing waited before that."""
    transport.close()
    if transport.get_extra_info("ssl_object") is not None:
        # TLS would wait for the client's own word. A turn of the loop later ours has been written.
        loop.call_soon(loop.call_soon, transport.abort)


def reset(transport: asyncio.Transport) -> None:
    """End a connection now, and have the system forget what it still has for the client."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def peer_of(transport: asyncio.BaseTransport) -> str:
    """Return the address of the client and its port; empty where there is none, as of a Unix socket."""
    name = transport.get_extra_info("peername")
    if not isinstance(name, tuple):
        return ""
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _queued(descriptor: int) -> int:
    """Return the bytes in the system that a socket's peer has not taken; 0 if unknown."""
    try:
        (size,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)))
    except (OSError, ValueError):  # of a system that does not tell, or a socket that is gone
        return 0
    return int(size)
