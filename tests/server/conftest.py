"""The fixtures of a real server."""

from __future__ import annotations

from tests.support.person import at_terminal
from tests.support.servers import serve, serve_once, serve_shared, server_process, setup_ends
from tests.support.supervisor import supervisor

__all__ = ["at_terminal", "serve", "serve_once", "serve_shared", "server_process", "setup_ends", "supervisor"]
