"""The fixtures of a real server."""

from __future__ import annotations

from tests.support.servers import serve, serve_shared, server_process, setup_ends

__all__ = ["serve", "serve_shared", "server_process", "setup_ends"]
