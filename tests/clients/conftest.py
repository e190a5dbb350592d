"""The server that the clients ask."""

from __future__ import annotations

import json
import os

import pytest

from tests.clients.asking import Server
from tests.support.gates import gates

__all__ = ["gates"]

# Without `python -m tests.clients` there is neither a server nor an environment with the clients.
collect_ignore_glob = [] if "CLIENTS_SERVER" in os.environ else ["test_*.py"]


@pytest.fixture(scope="session")
def server() -> Server:
    """The server of this run."""
    return Server(**json.loads(os.environ["CLIENTS_SERVER"]))
