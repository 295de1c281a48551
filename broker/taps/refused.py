"""The refusal of a request to taps, cursors and snapshots."""

from __future__ import annotations

from collections.abc import Mapping

from broker.core.vhost import Vhost

IN_CLUSTER = "taps, cursors and snapshots are not available in a cluster: they need a broker with its own log"


class TapRefused(ValueError):
    """The request cannot be carried out; the text is one line for the client or operator."""


def vhost_named(vhosts: Mapping[str, Vhost], name: str) -> Vhost:
    """Return a vhost. Raises: TapRefused."""
    vhost = vhosts.get(name)
    if vhost is None:
        raise TapRefused(f"no vhost '{name}'")
    return vhost
