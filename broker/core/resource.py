"""The name of an exchange or queue of a vhost, as reply texts print it.

A resource is only a name: it may not exist. Permissions are checked for it and errors print it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Resource(NamedTuple):
    """The name of an exchange or a queue of a vhost."""

    kind: Literal["exchange", "queue"]
    vhost: str
    name: str

    def __str__(self) -> str:
        """Return RabbitMQ's wording, for which people search logs: queue 'q' in vhost '/'."""
        return f"{self.kind} '{self.name}' in vhost '{self.vhost}'"
