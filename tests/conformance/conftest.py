"""The fixtures of a real server, and the loops of tests that are about short limits of time."""

from __future__ import annotations

from tests.support.gates import gates
from tests.support.servers import serve, serve_shared, server_process, setup_ends
from tests.support.steady import steady_loops

__all__ = ["gates", "pytest_asyncio_loop_factories", "serve", "serve_shared", "server_process", "setup_ends"]

pytest_asyncio_loop_factories = steady_loops("test_http_timeouts", "test_http2_timeouts", "test_http_resources")
