"""Packets as bytes. A link carries them one after another, whatever messages they are cut into.

All integers are big-endian. A text is its length in bytes (u16) and UTF-8; a list is its length (u32) and its entries.

    packet                          element of a run, its numbers in rising order
    0   u32 bytes after this field  0   u8  1: data, 2: vector change, 3: data with copies
    4   u8  kind                    1   u64 number
    5       fields in their order   9       vector change: two vectors, u64 incarnation
                                    9       data: u16 bytes of the key, u32 bytes of the content, key, content
                                            data with copies: a list of texts between key and content

A vector is a list of (text, u64), a space two texts, a conjunction a space and a text, a stream a text, a space and a
u64, its incarnation. A flag is a u8, 0 or 1; an optional list has a flag in front.
The hello begins with its version, so that brokers of other versions can name what they refuse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from broker.overlay.packet_fields import PACKET_HEAD, DamagedPacket, PacketReader, PacketWriter
from broker.overlay.packets import (
    Ack,
    Element,
    Hello,
    Nack,
    Packet,
    Resync,
    StreamRun,
    Update,
    UpdateAck,
)

VERSION: Final = 3
"""The value of `Hello.version`: brokers with different versions do not link."""

OTHER_PACKETS_BYTES: Final = 64 << 20
"""What a packet may have besides one message: a run of other messages, or an update of a million leaves."""

_LENGTH_BYTES: Final = 4


class PacketPieces:
    """Joins the messages of one direction of a link to whole packets.

    Cost: each byte is copied at most twice, however many pieces a packet has.
    """

    __slots__ = ("_held_bytes", "_limit_bytes", "_needed_bytes", "_pieces")

    def __init__(self, message_bytes: int) -> None:
        """`message_bytes` is the largest message of a stream that this end accepts."""
        self._limit_bytes = message_bytes + OTHER_PACKETS_BYTES
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._needed_bytes = 0

    def whole(self, piece: bytes) -> bytes:
        """Add a piece, and return all packets that are complete now. Raises: DamagedPacket if one is too long."""
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


def encode(packet: Packet) -> bytes:
    """Return a packet as bytes."""
    kind, write = _WRITERS[type(packet)]
    writer = PacketWriter()
    write(writer, packet)
    return writer.packet(kind)


def decode(data: bytes) -> list[Packet]:
    """Return the packets that bytes hold. Raises: DamagedPacket."""
    packets: list[Packet] = []
    at, size_bytes = 0, len(data)
    while at < size_bytes:
        if size_bytes - at < PACKET_HEAD.size:
            raise DamagedPacket("a message ends within the head of a packet")
        length, kind = PACKET_HEAD.unpack_from(data, at)
        end = at + _LENGTH_BYTES + length
        if length == 0 or end > size_bytes:
            raise DamagedPacket("a message ends within a packet")
        read = _READERS.get(kind)
        if read is None:
            raise DamagedPacket(f"no packet has kind {kind}")
        reader = PacketReader(data, at + PACKET_HEAD.size, end)
        packets.append(read(reader))
        reader.end()
        at = end
    return packets


def _write_hello(writer: PacketWriter, hello: Hello) -> None:
    writer.number(hello.version)
    writer.text(hello.broker)
    writer.text(hello.tree_node)
    writer.number(hello.session)
    writer.flag(hello.leaf)
    writer.flag(hello.subscriptions)
    writer.number(hello.message_bytes)
    writer.number(hello.process)


def _read_hello(reader: PacketReader) -> Hello:
    version, broker, tree_node, session = reader.number(), reader.text(), reader.text(), reader.number()
    leaf = reader.flag()
    if version != VERSION:  # the rest cannot be parsed, and the link will be refused
        reader.skip()
        return Hello(broker, tree_node, session, leaf, version)
    limits = reader.flag(), reader.number()
    return Hello(broker, tree_node, session, leaf, version, *limits, reader.number())


def _write_update(writer: PacketWriter, update: Update) -> None:
    writer.number(update.serial)
    writer.flag(update.full)
    writer.flag(update.last)
    writer.conjunctions(update.added)
    writer.conjunctions(update.removed)
    writer.vector(update.slice)
    writer.texts(update.gone)
    writer.count(len(update.interested))
    for space, leaves in update.interested:
        writer.space(space)
        writer.texts(leaves)
    writer.count(len(update.touched))
    for space in update.touched:
        writer.space(space)
    writer.optional_texts(update.durable)
    writer.optional_texts(update.unreachable)


def _read_update(reader: PacketReader) -> Update:
    serial, full, last = reader.number(), reader.flag(), reader.flag()
    added, removed = reader.conjunctions(), reader.conjunctions()
    later, gone = reader.vector(), reader.texts()
    interested = tuple((reader.space(), reader.texts()) for _ in range(reader.count()))
    touched = tuple(reader.space() for _ in range(reader.count()))
    durable, unreachable = reader.optional_texts(), reader.optional_texts()
    return Update(serial, full, last, added, removed, later, gone, interested, touched, durable, unreachable)


def _write_update_ack(writer: PacketWriter, ack: UpdateAck) -> None:
    writer.number(ack.serial)
    writer.number(ack.time)


def _read_update_ack(reader: PacketReader) -> UpdateAck:
    return UpdateAck(reader.number(), reader.number())


def _write_resync(_writer: PacketWriter, _resync: Resync) -> None:
    """Write nothing: the kind is all."""


def _read_resync(_reader: PacketReader) -> Resync:
    return Resync()


def _write_run(writer: PacketWriter, run: StreamRun) -> None:
    writer.stream(run.stream)
    writer.number(run.first)
    writer.number(run.last)
    writer.number(run.vector_at)
    writer.text(run.target)
    writer.flag(run.lost)
    writer.flag(run.vector is not None)
    writer.vector(run.vector or {})
    writer.count(len(run.elements))
    for element in run.elements:
        writer.element(element)


def _read_run(reader: PacketReader) -> StreamRun:
    stream, first, last, vector_at = reader.stream(), reader.number(), reader.number(), reader.number()
    target, lost = reader.text(), reader.flag()
    has_vector, vector = reader.flag(), reader.vector()
    if first == 0 or first > last + 1:
        raise DamagedPacket(f"a run cannot reach from {first} to {last}")
    elements: list[Element] = []
    before = first - 1
    for _ in range(reader.count()):
        element = reader.element()
        if not before < element.number <= last:
            raise DamagedPacket(f"element {element.number} is out of place in a run from {first} to {last}")
        before = element.number
        elements.append(element)
    return StreamRun(stream, first, last, vector_at, tuple(elements), target, lost, vector if has_vector else None)


def _write_nack(writer: PacketWriter, nack: Nack) -> None:
    writer.stream(nack.stream)
    writer.number(nack.first)
    writer.number(nack.last)
    writer.text(nack.leaf)
    writer.number(nack.vst)
    writer.number(nack.limit_bytes)
    writer.count(len(nack.had))
    for incarnation, number in nack.had:
        writer.number(incarnation)
        writer.number(number)


def _read_nack(reader: PacketReader) -> Nack:
    stream, first, last = reader.stream(), reader.number(), reader.number()
    leaf, vst, limit_bytes = reader.text(), reader.number(), reader.number()
    had = tuple((reader.number(), reader.number()) for _ in range(reader.count()))
    return Nack(stream, first, last, leaf, vst, limit_bytes, had)


def _write_ack(writer: PacketWriter, ack: Ack) -> None:
    writer.stream(ack.stream)
    writer.number(ack.number)
    writer.number(ack.serial)


def _read_ack(reader: PacketReader) -> Ack:
    return Ack(reader.stream(), reader.number(), reader.number())


_WRITERS: Final[dict[type[Packet], tuple[int, Callable[[PacketWriter, Any], None]]]] = {
    Hello: (1, _write_hello),
    Update: (2, _write_update),
    UpdateAck: (3, _write_update_ack),
    Resync: (4, _write_resync),
    StreamRun: (5, _write_run),
    Nack: (6, _write_nack),
    Ack: (7, _write_ack),
}
_READERS: Final[dict[int, Callable[[PacketReader], Packet]]] = {
    1: _read_hello,
    2: _read_update,
    3: _read_update_ack,
    4: _read_resync,
    5: _read_run,
    6: _read_nack,
    7: _read_ack,
}
