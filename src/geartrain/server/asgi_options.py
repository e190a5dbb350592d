"""Options of `geartrain.asgi`. Made by `tools/make_options.py` of `server/option_table.py`: change that one."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Literal, TypedDict


class AsgiOptions(TypedDict, total=False):
    """The options of `geartrain serve` that mean something inside another server, all of them optional.

    Sizes are in bytes, times in seconds; where the command line takes 0 for no limit, so do these. docs/asgi.md lists
    the defaults.

    Attributes:
        wait_ready: whether the start lasts until the models are ready. It then fails if a model that is served alone
            cannot become so. Otherwise requests get 503 until their model is ready.
    """

    wait_ready: bool
    max_body_size: int
    upload_url: str
    max_download_size: int
    setup_timeout: float
    shutdown_grace: float
    allow_private_urls: bool
    shared_memory: bool
    no_pickle: bool
    api: str
    health_body: bool
    inference_queue: int
    queue: int
    keep: float
    stream_grace: float
    cancel_grace: float
    run_timeout: float
    max_output_size: int
    wakeup: Literal["adaptive", "blocking"]
    mirror_prints: Literal["auto", "on", "off"]
    default_model: str
    load: Iterable[str]
    replicas: int
    devices: str
    reload: bool
    restart: Literal["never", "on-crash"]
    restart_limit: int
    cache_dir: str | os.PathLike[str]
    verify_cache: bool
    store: str
    store_key_file: str | os.PathLike[str]
    store_keep: float
    store_size: int
    lease: float
    attempts: int
    latency_buckets: Iterable[float]
    size_buckets: Iterable[float]
    access_log: str
