"""The outside world as the models of a server reach it: input files, output files, webhooks, directories."""

from __future__ import annotations

import asyncio
import logging
import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from geartrain.apis import cog
from geartrain.authoring import __version__
from geartrain.service.durable.durability import Durability
from geartrain.service.models.nested import ModelCaller
from geartrain.service.webhooks import DEFAULT_INTERVAL, Webhooks
from geartrain.telemetry.settings import MISSING, TelemetryError, is_installed, wants_traces

if TYPE_CHECKING:
    from geartrain.domain.predictions.prediction import Prediction, WebhookEvent
    from geartrain.domain.predictions.tracing import TracerPort
    from geartrain.domain.signature.types import Signature
    from geartrain.outbound.outputs import OutputDestinations
    from geartrain.outbound.policy import UrlPolicy
    from geartrain.outbound.workspace import Workspace
    from geartrain.server.options import ServeOptions
    from geartrain.service.ports import AttachmentStorePort, FolderPort, InputFilesPort

logger = logging.getLogger("geartrain.server.tracing")

_DOWNLOAD_SILENCE: Final = 10.0  # seconds without a byte; observed Cog, section 15
_USER_AGENT: Final = f"geartrain/{__version__}"


def open_tracer() -> TracerPort | None:
    """Return the tracer that the variables ask for; None if there can be none, and the log says why."""
    if not wants_traces(os.environ):
        return None
    if not is_installed():
        logger.warning(MISSING)
        return None
    from geartrain.telemetry.tracer import OtelTracer

    try:
        return OtelTracer(__version__)
    except TelemetryError as error:
        logger.warning("there are no traces: %s", error)
        return None


async def _body_of(prediction: Prediction, event: WebhookEvent) -> bytes:
    """Return the body of a webhook. A large one is written in a thread."""
    text = cog.webhook_snapshot(prediction, event)
    return await asyncio.to_thread(text.whole) if text.is_large else text.whole()


class Outbound:
    """Shared outbound parts of all models of a server; see `OutboundPort`. Each is imported on first use."""

    def __init__(self, options: ServeOptions) -> None:
        self._options = options
        self.caller = ModelCaller()
        self.durability: Durability | None = None
        self._webhooks: dict[tuple[str | None, float], Webhooks] = {}

    @cached_property
    def tracer(self) -> TracerPort | None:
        """Tracer of the predictions."""
        return open_tracer()

    @cached_property
    def outputs(self) -> OutputDestinations:
        """Destination of output files."""
        from geartrain.outbound.outputs import OutputDestinations

        return OutputDestinations(self._policy, upload_url=self._options.upload_url, user_agent=_USER_AGENT)

    def new_folder(self) -> FolderPort:
        """Return a directory for one prediction."""
        return self._workspace.folder()

    def new_attachments(self) -> AttachmentStorePort:
        """Create the store for the files of one request."""
        from geartrain.outbound.workspace import AttachmentStore

        return AttachmentStore(self._workspace.folder(), self._options.max_download_bytes)

    def input_files(self, signature: Signature, user_agent: str | None, *, root: Path | None = None) -> InputFilesPort:
        """Create the fetcher of the URLs in a model's inputs."""
        from geartrain.outbound.inputs import InputFiles

        return InputFiles(
            signature,
            policy=self._policy,
            max_bytes=self._options.max_download_bytes,
            timeout=_DOWNLOAD_SILENCE,
            user_agent=user_agent,
            on_bytes=self._options.on_download,
            root=root,
        )

    def webhooks(self, token: str | None, interval: float) -> Webhooks:
        """Create the sender of webhooks with this token, at least `interval` seconds apart."""
        found = self._webhooks.get((token, interval))
        if found is None:
            from geartrain.outbound.webhooks import WebhookSender

            retries = self._options.webhooks.retries
            sender = WebhookSender(self._policy, user_agent=_USER_AGENT, token=token, retries=retries)
            found = self._webhooks[token, interval] = Webhooks(sender, _body_of, interval=interval)
        return found

    def own_webhooks(self) -> Webhooks:
        """Create the sender of webhooks with the server's own settings."""
        options = self._options.webhooks
        return self.webhooks(options.token, DEFAULT_INTERVAL if options.interval is None else options.interval)

    async def drain_webhooks(self, grace: float) -> None:
        """Deliver what webhooks there are within `grace` seconds."""
        await asyncio.gather(*(webhooks.drain(grace) for webhooks in self._webhooks.values()))

    async def close(self) -> None:
        """Close what is open, and remove what is left."""
        for webhooks in self._webhooks.values():
            await webhooks.close()
        made = vars(self)  # a part that was not needed was never made
        if "tracer" in made and self.tracer is not None:
            await self.tracer.close()
        if "outputs" in made:
            await self.outputs.close()
        if "_workspace" in made:
            await self._workspace.close()

    @cached_property
    def _policy(self) -> UrlPolicy:
        from geartrain.outbound.policy import UrlPolicy

        return UrlPolicy(allow_private=self._options.allow_private_urls)

    @cached_property
    def _workspace(self) -> Workspace:
        from geartrain.outbound.workspace import Workspace

        return Workspace()
