"""Arguments and rows of the functions of the schema.

A `bit varying` is a bitarray here. Its format: the number of bits in four bytes, big-endian, then the bits, beginning
with the highest bit of the first byte. asyncpg would encode a bitarray inside a list as an array, so statements get the
packed bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, NamedTuple

from bitarray import bitarray

_LENGTH: Final = Struct("!i")
BIG: Final = "big"
_BITS: Final = (5, 6, 11, 17)  # the indexes of s_mine, s_free, t_bits and n_bits


def as_text(value: Any) -> str:
    """Return names as ASCII JSON, because PostgreSQL's text type cannot hold a NUL character."""
    return json.dumps(value)


class SharedCall(NamedTuple):
    """The contents of one call of `commit`. With `atomic`, the call is executed completely or not at all.

    Shapes: lists with the prefix s_ are published messages, one entry per level; t_ are settled messages, one per row;
        u_ are used producer numbers; n_ are messages with a time to live of 0 that are not dead-lettered: free ones are
        dropped if their queue has no consumers. `s_sizes` are, for levels with limits, sizes as int4, big-endian.
    """

    atomic: bool = False
    parts: Sequence[bytes] = ()
    s_level: Sequence[int] = ()
    s_count: Sequence[int] = ()
    s_bytes: Sequence[int] = ()
    s_mine: Sequence[bitarray] = ()
    s_free: Sequence[bitarray] = ()
    s_due: Sequence[int | None] = ()
    s_sizes: Sequence[bytes | None] = ()
    t_level: Sequence[int] = ()
    t_number: Sequence[int] = ()
    t_bits: Sequence[bitarray] = ()
    u_producer: Sequence[str] = ()
    u_first: Sequence[int] = ()
    u_last: Sequence[int] = ()
    n_level: Sequence[int] = ()
    n_queue: Sequence[int] = ()
    n_bits: Sequence[bitarray] = ()

    def arguments(self) -> list[Any]:
        """Return the arguments of the function in order."""
        shares: list[Any] = list(self)
        for place in _BITS:
            shares[place] = pack_rows(shares[place])
        return shares


class RefusedShare(NamedTuple):
    """Messages that a full queue refused: the index of their share in the call, and whether to dead-letter them."""

    place: int
    bits: bitarray
    dead_letters: bool

    @classmethod
    def all_from(cls, rows: Sequence[Sequence[Any]] | None) -> list[RefusedShare]:
        """Return the refused shares of an answer. A row is a share's place from 1, bits as text, and `dead_letters`."""
        return [cls(place - 1, bitarray(bits, "big"), dead_letters) for place, bits, dead_letters in rows or ()]


class CommittedCall(NamedTuple):
    """The result of a call: its number, the table of its chunk, and the messages of each share that full queues
    refused. `repeated` is set if the call was sent more than once.
    """

    number: int
    ring: int
    refused: Sequence[RefusedShare] = ()
    repeated: bool = False


class Joined(NamedTuple):
    """The answer to a join."""

    epoch: int
    generation: int
    version: int
    now_ms: int


class ClusterMember(NamedTuple):
    """A node as of its last heartbeat."""

    node: str
    epoch: int
    beats: int
    applied_version: int
    url: str
    reports: dict[str, Any]

    @property
    def lease_s(self) -> float:
        """The lease that the node reports, or 0 if it has not reported any."""
        return float(self.reports.get("lease_ms", 0)) / 1000

    @classmethod
    def from_row(cls, row: Any) -> ClusterMember:
        """Return the member in a row of `beat` or `members`."""
        return cls(row["node"], row["epoch"], row["beats"], row["applied"], row["url"], row["reports"] or {})


class Pulse(NamedTuple):
    """The answer to a heartbeat."""

    now_ms: int
    generation: int
    members: list[ClusterMember]


@dataclass(slots=True)  # a frozen dataclass takes six times as long to create
class LeasedRow:
    """A row leased to this node, the bits of a row that were just leased, or a row at which an operator peeks.

    `number` is None if no message was leased; `more` is set in the last row of a level if free messages are left.
    `began` is the transaction id of the lease; all calls with ids below `finished` had ended before the lease.
    """

    level: int
    number: int | None
    ring: int
    count: int
    bits: bitarray
    seen: bitarray | None
    counts: dict[str, Sequence[int]] | None
    more: bool = False
    began: int = 0
    finished: int = 0

    def hold(self, bits: bitarray) -> None:
        """Set the bits that are leased to this node now."""
        self.bits = bits


def pack_bits(bits: bitarray) -> bytes:
    """Return a bitarray as PostgreSQL receives it."""
    if bits.endian != BIG:
        bits = bitarray(bits, endian=BIG)
    return _LENGTH.pack(len(bits)) + bits.tobytes()


def unpack_bits(packed: bytes) -> bitarray:
    """Return a bitarray from PostgreSQL's encoding."""
    bits = bitarray(endian=BIG)
    bits.frombytes(packed[_LENGTH.size :])
    del bits[_LENGTH.unpack_from(packed)[0] :]
    return bits


def pack_rows(rows: Sequence[bitarray | None]) -> list[bytes | None]:
    """Return bitarrays as the elements of an array of `bit varying`."""
    return [None if bits is None else pack_bits(bits) for bits in rows]
