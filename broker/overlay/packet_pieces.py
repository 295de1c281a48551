"""Packets that arrive in pieces: the messages of a link are one row of bytes, and a packet may continue in the next."""

from __future__ import annotations

from typing import Final

from broker.overlay.packet_fields import PACKET_HEAD, DamagedPacket

__all__ = ["OTHER_PACKETS_BYTES", "PacketPieces"]

OTHER_PACKETS_BYTES: Final = 64 << 20
"""What a packet may have beside one message: a run of other messages, or an update of a million leaves."""

_LENGTH_BYTES: Final = 4


class PacketPieces:
    """Joins the messages of one direction of a link to whole packets.

    Cost: each byte is copied twice at most, however many pieces a packet has.
    """

    __slots__ = ("_held_bytes", "_limit_bytes", "_needed_bytes", "_pieces")

    def __init__(self, message_bytes: int) -> None:
        """`message_bytes` is the largest message of a stream that this end takes."""
        self._limit_bytes = message_bytes + OTHER_PACKETS_BYTES
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._needed_bytes = 0

    def whole(self, piece: bytes) -> bytes:
        """Take a piece, and return all packets that are complete now. Raises: DamagedPacket if one is too long."""
        if self._pieces:
            self._pieces.append(piece)
            self._held_bytes += len(piece)
            if self._held_bytes < self._needed_bytes:
                return b""
            piece = b"".join(self._pieces)
            self._pieces = []
        at, size_bytes = 0, len(piece)
        while True:
            if size_bytes - at < PACKET_HEAD.size:
                needed = PACKET_HEAD.size
                break
            needed = _LENGTH_BYTES + int.from_bytes(piece[at : at + _LENGTH_BYTES], "big")
            if needed > self._limit_bytes:
                raise DamagedPacket(f"a packet of {needed} bytes, more than {self._limit_bytes}")
            if size_bytes - at < needed:
                break
            at += needed
        if at == size_bytes:
            return piece
        self._pieces = [piece[at:]]
        self._held_bytes = size_bytes - at
        self._needed_bytes = needed
        return piece[:at]
