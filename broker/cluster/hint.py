"""Hints: what nodes tell each other by NOTIFY.

A lost hint costs at most a second, because every node also looks by itself.

Format of a payload: kind, number, then the streams, separated by spaces. PostgreSQL takes fewer than 8,000 bytes, so
one hint may need several payloads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

__all__ = ["APPLIED", "DEFINITIONS", "FREE", "JOINED", "LOOK", "PRODUCERS", "TOPOLOGY", "WANTED", "Hint"]

FREE: Final = "free"  # the slot `number` has free messages for these streams
WANTED: Final = "wanted"  # a node found nothing free in these streams, and has room
APPLIED: Final = "applied"  # the member whose epoch is in `streams` has applied version `number` of the topology
TOPOLOGY: Final = "topology"  # version `number` was appended
DEFINITIONS: Final = "definitions"  # users, vhosts, rights, policies or parameters have changed
JOINED: Final = "joined"  # a node has joined as epoch `number`
PRODUCERS: Final = "producers"  # a node needs the numbered producer whose name has the checksum `number`
LOOK: Final = "look"  # hints may have been lost: not sent, but given to the own node after a break
PAYLOAD_BYTES_MAX: Final = 7999


class Hint(NamedTuple):
    """One hint of another node."""

    kind: str
    number: int = 0
    streams: Sequence[int] = ()

    def payloads(self) -> list[str]:
        """Return the payloads that carry this hint, at least one."""
        head = f"{self.kind} {self.number}"
        result, piece, size = [], [head], len(head)
        for stream in self.streams:
            text = str(stream)
            if size + 1 + len(text) > PAYLOAD_BYTES_MAX:
                result.append(" ".join(piece))
                piece, size = [head], len(head)
            piece.append(text)
            size += 1 + len(text)
        result.append(" ".join(piece))
        return result

    @classmethod
    def from_payload(cls, payload: str) -> Hint | None:
        """Return the hint of a payload, None for one that this version does not know."""
        kind, *numbers = payload.split(" ")
        try:
            number, *streams = (int(text) for text in numbers)
        except ValueError:
            return None
        return cls(kind, number, streams)
