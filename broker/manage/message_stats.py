"""Counters as RabbitMQ's API shows them: each number, and beside it a table with its rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ["DISK_STATS", "EXCHANGE_STATS", "MESSAGE_STATS", "NO_PROCESS", "QUEUE_STATS", "with_rates"]

MESSAGE_STATS: Final = (
    "publish",
    "confirm",
    "return_unroutable",
    "drop_unroutable",
    "deliver",
    "deliver_no_ack",
    "get",
    "get_no_ack",
    "get_empty",
    "redeliver",
    "ack",
    "deliver_get",
)
"""The counters of a channel, a vhost and the broker."""
QUEUE_STATS: Final = (
    "publish",
    "deliver",
    "deliver_no_ack",
    "get",
    "get_no_ack",
    "get_empty",
    "redeliver",
    "ack",
    "deliver_get",
)
EXCHANGE_STATS: Final = ("publish_in", "publish_out")
DISK_STATS: Final = ("disk_reads", "disk_writes")

STILL: Final[Mapping[str, float]] = {"rate": 0.0}
NO_PROCESS: Final[Mapping[str, Any]] = {
    "garbage_collection": {
        "fullsweep_after": 0,
        "max_heap_size": 0,
        "min_bin_vheap_size": 0,
        "min_heap_size": 0,
        "minor_gcs": 0,
    },
    "reductions": 0,
    "reductions_details": STILL,
}
"""What RabbitMQ says of the Erlang process of a queue, a channel or a connection; tools expect the fields."""


def with_rates(
    names: Sequence[str], counts: Sequence[int], rates: Sequence[float] | None, suffix: str = "_details"
) -> dict[str, Any]:
    """Return each counter by its name, and its rate in a table beside it; without rates all are 0.

    Units: rates are per second.
    """
    found: dict[str, Any] = dict(zip(names, counts, strict=True))
    if rates is None:
        for name in names:
            found[name + suffix] = STILL
    else:
        for name, rate in zip(names, rates, strict=True):
            found[name + suffix] = {"rate": rate}
    return found
