"""The options of `geartrain serve` for the store of predictions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from geartrain.cli.declared import Option, unusable
from geartrain.cli.options import parse_duration, parse_size

if TYPE_CHECKING:
    from geartrain.project.variables import Variables
    from geartrain.server import ClusterOptions, StoreOptions

STORE: Final = "Store"  # a group of options in `geartrain serve --help`
DEFAULT_KEEP: Final = 86_400.0
DEFAULT_MAX_BYTES: Final = 1_000_000_000
DEFAULT_LEASE: Final = 15.0
DEFAULT_ATTEMPTS: Final = 3

Store = Annotated[
    str | None,
    Option(
        "--store",
        metavar="URL",
        help="Where predictions are kept that have an id or are answered with 202, so that they outlive the server: "
        "sqlite:///PATH, or postgres://USER@HOST/DATABASE. GEARTRAIN_STORE says the same.",
        rich_help_panel=STORE,
    ),
]
StoreKeyFile = Annotated[
    Path | None,
    Option(
        metavar="FILE",
        help="Keys that stored inputs are encrypted with, 32 bytes in base64 on each line; the first one encrypts. "
        "GEARTRAIN_STORE_KEY_FILE says the same.",
        rich_help_panel=STORE,
    ),
]
StoreKeep = Annotated[
    float,
    Option(
        parser=parse_duration,
        metavar="TIME",
        show_default=False,
        help="How long a finished prediction stays in the store; 24h by default.",
        rich_help_panel=STORE,
    ),
]
StoreSize = Annotated[
    int,
    Option(
        parser=parse_size,
        metavar="SIZE",
        show_default=False,
        help="How large finished predictions may be together; the oldest go first. 1GB by default.",
        rich_help_panel=STORE,
    ),
]
Lease = Annotated[
    float,
    Option(
        parser=parse_duration,
        metavar="TIME",
        show_default=False,
        help="After how long without a sign of life another server takes up what this one had accepted; 15s by "
        "default.",
        rich_help_panel=STORE,
    ),
]
Attempts = Annotated[
    int,
    Option(
        min=1,
        metavar="N",
        help="How often an accepted prediction is run at most when its server is lost each time.",
        rich_help_panel=STORE,
    ),
]


Advertise = Annotated[
    str,
    Option(
        metavar="HOST:PORT",
        show_default=False,
        help="Where servers that share the store reach this one, so that each of them answers for the predictions of "
        "all; without :PORT its own port. Needs a store in Postgres and --cluster-token-file.",
        rich_help_panel=STORE,
    ),
]
ClusterTokenFile = Annotated[
    Path | None,
    Option(
        metavar="FILE",
        help="The token by which these servers know each other, 32 characters or more; of several lines the first one "
        "is sent, and all of them are taken.",
        rich_help_panel=STORE,
    ),
]
ClusterCa = Annotated[
    Path | None,
    Option(
        metavar="FILE",
        help="The CA that the certificates of these servers are checked against, where they have TLS; by default those "
        "of the machine.",
        rich_help_panel=STORE,
    ),
]

Bounds = tuple[float, int, float, int]
"""How long and how large, the lease, and the attempts, as the options say."""


def read(url: str | None, key_file: Path | None, variables: Variables, *, bounds: Bounds) -> StoreOptions:
    """Return the place of stored predictions: an option comes before its variable. Raises BadParameter."""
    from geartrain.server import StoreOptions

    keep, max_bytes, lease, attempts = bounds
    if not lease:
        raise unusable("--lease is 0; write a time such as 15s")
    named = variables.store_key_file
    return StoreOptions(
        url=url or variables.store or "",
        key_file=key_file or (None if named is None else Path(named)),
        keep=keep,
        max_bytes=max_bytes,
        lease=lease,
        attempts=attempts,
    )


def cluster(advertise: str, token_file: Path | None, ca: Path | None) -> ClusterOptions:
    """Return the connections of servers that share the store."""
    from geartrain.server import ClusterOptions

    return ClusterOptions(advertise=advertise, token_file=token_file, ca=ca)
