"""Clients of a geartrain server: `Client`, and `AsyncClient` for asyncio. See docs/client.md."""

from __future__ import annotations

from geartrain.client.async_client import AsyncClient, AsyncHandle, AsyncModel, AsyncStream
from geartrain.client.client import Client, Handle, Model, Stream
from geartrain.client.errors import (
    AccessError,
    BusyError,
    ClientError,
    InvalidInputError,
    NotFoundError,
    RefusedError,
    TimedOutError,
    UnreachableError,
)
from geartrain.client.inputs import OutputFile
from geartrain.client.predictions import Event, Prediction, PredictionCanceledError, PredictionFailedError

__all__ = [
    "AccessError",
    "AsyncClient",
    "AsyncHandle",
    "AsyncModel",
    "AsyncStream",
    "BusyError",
    "Client",
    "ClientError",
    "Event",
    "Handle",
    "InvalidInputError",
    "Model",
    "NotFoundError",
    "OutputFile",
    "Prediction",
    "PredictionCanceledError",
    "PredictionFailedError",
    "RefusedError",
    "Stream",
    "TimedOutError",
    "UnreachableError",
]
