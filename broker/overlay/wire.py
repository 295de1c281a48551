"""Packets as bytes, many in one message of a link.

All integers are big-endian. A text is its length in bytes (u16) and UTF-8; a list is its length (u32) and its entries.

    packet                          element of a run, its numbers in rising order
    0   u32 bytes after this field  0   u8  1: data, 2: vector change, 3: data with copies
    4   u8  kind                    1   u64 number
    5       fields in their order   9       vector change: two vectors
                                    9       data: u16 bytes of the key, u32 bytes of the content, key, content
                                            data with copies: a list of texts between key and content

A vector is a list of (text, u64), a space two texts, a conjunction a space and a text, a stream a text and a space. A
flag is a u8, 0 or 1; an optional list has a flag in front.
The hello begins with its version, so that brokers of other versions can say what they refuse.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Final

from broker.overlay.packets import (
    Ack,
    Conjunction,
    Data,
    Element,
    Hello,
    Nack,
    Packet,
    Resync,
    Space,
    StreamName,
    StreamRun,
    Update,
    UpdateAck,
    Vector,
    VectorChange,
)

__all__ = ["VERSION", "DamagedPacket", "decode", "encode"]

VERSION: Final = 2
"""What `Hello.version` says: brokers with different versions do not link."""

_U8: Final = Struct(">B")
_U16: Final = Struct(">H")
_U32: Final = Struct(">I")
_U64: Final = Struct(">Q")
_HEAD: Final = Struct(">IB")
_DATA_HEAD: Final = Struct(">BQHI")  # kind, number, bytes of the key, bytes of the content
_CHANGE_HEAD: Final = Struct(">BQ")
_DATA: Final = 1
_VECTOR_CHANGE: Final = 2
_DATA_WITH_COPIES: Final = 3


class DamagedPacket(ValueError):
    """Bytes that are no packets of this version; the text says what is wrong."""


class PacketWriter:
    """Writes the fields of one packet."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[bytes | memoryview] = []

    def packet(self, kind: int) -> bytes:
        """Return the packet."""
        fields = b"".join(self._pieces)
        return _HEAD.pack(len(fields) + 1, kind) + fields

    def flag(self, value: bool) -> None:
        """Write a flag."""
        self._pieces.append(b"\x01" if value else b"\x00")

    def count(self, value: int) -> None:
        """Write the length of a list."""
        self._pieces.append(_U32.pack(value))

    def number(self, value: int) -> None:
        """Write a number, serial or virtual time."""
        self._pieces.append(_U64.pack(value))

    def text(self, value: str) -> None:
        """Write a text."""
        encoded = value.encode()
        self._pieces.append(_U16.pack(len(encoded)))
        self._pieces.append(encoded)

    def texts(self, values: tuple[str, ...]) -> None:
        """Write a list of texts."""
        self.count(len(values))
        for value in values:
            self.text(value)

    def optional_texts(self, values: tuple[str, ...] | None) -> None:
        """Write a list of texts, or none."""
        self.flag(values is not None)
        self.texts(values or ())

    def vector(self, vector: Vector) -> None:
        """Write a vector."""
        self.count(len(vector))
        for leaf, virtual_time in vector.items():
            self.text(leaf)
            self.number(virtual_time)

    def space(self, space: Space) -> None:
        """Write a space."""
        self.text(space.vhost)
        self.text(space.exchange)

    def stream(self, stream: StreamName) -> None:
        """Write the name of a stream."""
        self.text(stream.leaf)
        self.space(stream.space)

    def conjunctions(self, conjunctions: tuple[Conjunction, ...]) -> None:
        """Write a list of conjunctions."""
        self.count(len(conjunctions))
        for conjunction in conjunctions:
            self.space(conjunction.space)
            self.text(conjunction.pattern)

    def element(self, element: Element) -> None:
        """Write an element of a run."""
        if isinstance(element, Data):
            if element.encoded:
                self._pieces.append(element.encoded)
                return
            key, content = element.key.encode(), element.content
            kind = _DATA_WITH_COPIES if element.copies else _DATA
            self._pieces.append(_DATA_HEAD.pack(kind, element.number, len(key), len(content)))
            self._pieces.append(key)
            if element.copies:
                self.texts(element.copies)
            self._pieces.append(content)
        else:
            self._pieces.append(_CHANGE_HEAD.pack(_VECTOR_CHANGE, element.number))
            self.vector(element.old)
            self.vector(element.new)


class PacketReader:
    """Reads the fields of one packet. Raises: DamagedPacket."""

    __slots__ = ("_at", "_data", "_end")

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self._data = data
        self._at = at
        self._end = end

    def skip(self) -> None:
        """Leave out the fields that are left."""
        self._at = self._end

    def end(self) -> None:
        """Check that nothing is left."""
        if self._at != self._end:
            raise DamagedPacket(f"{self._end - self._at} bytes follow the last field of a packet")

    def _take(self, size_bytes: int) -> int:
        """Return where the next bytes begin, and pass them."""
        at = self._at
        if size_bytes > self._end - at:
            raise DamagedPacket("a packet ends within a field")
        self._at = at + size_bytes
        return at

    def octet(self) -> int:
        """Read one byte."""
        return self._data[self._take(1)]

    def flag(self) -> bool:
        """Read a flag."""
        value = self.octet()
        if value > 1:
            raise DamagedPacket(f"a flag is 0 or 1, not {value}")
        return value == 1

    def count(self) -> int:
        """Read the length of a list, whose entries have at least one byte each."""
        (value,) = _U32.unpack_from(self._data, self._take(4))
        if value > self._end - self._at:
            raise DamagedPacket(f"a list of {value} entries does not fit its packet")
        return int(value)

    def number(self) -> int:
        """Read a number, serial or virtual time."""
        (value,) = _U64.unpack_from(self._data, self._take(8))
        return int(value)

    def text(self) -> str:
        """Read a text."""
        (size_bytes,) = _U16.unpack_from(self._data, self._take(2))
        at = self._take(size_bytes)
        return _decoded(self._data[at : at + size_bytes])

    def texts(self) -> tuple[str, ...]:
        """Read a list of texts."""
        return tuple(self.text() for _ in range(self.count()))

    def optional_texts(self) -> tuple[str, ...] | None:
        """Read a list of texts, or none."""
        written = self.flag()
        values = self.texts()
        return values if written else None

    def vector(self) -> dict[str, int]:
        """Read a vector."""
        return {self.text(): self.number() for _ in range(self.count())}

    def space(self) -> Space:
        """Read a space."""
        return Space(self.text(), self.text())

    def stream(self) -> StreamName:
        """Read the name of a stream."""
        return StreamName(self.text(), self.space())

    def conjunctions(self) -> tuple[Conjunction, ...]:
        """Read a list of conjunctions."""
        return tuple(Conjunction(self.space(), self.text()) for _ in range(self.count()))

    def element(self) -> Element:
        """Read an element of a run."""
        data, begin, end = self._data, self._at, self._end
        kind = data[begin] if begin < end else 0
        if kind == _DATA or kind == _DATA_WITH_COPIES:
            key_at = begin + _DATA_HEAD.size
            if key_at > end:
                raise DamagedPacket("a packet ends within a field")
            _, number, key_bytes, size_bytes = _DATA_HEAD.unpack_from(data, begin)
            at = key_at + key_bytes
            if at + size_bytes > end:
                raise DamagedPacket("a packet ends within a field")
            key = _decoded(data[key_at:at])
            copies: tuple[str, ...] = ()
            if kind == _DATA_WITH_COPIES:
                self._at = at
                copies = self.texts()
                at = self._at
                if at + size_bytes > end:
                    raise DamagedPacket("a packet ends within a field")
            self._at = behind = at + size_bytes
            return Data(number, key, data[at:behind], copies, data[begin:behind])
        if kind == _VECTOR_CHANGE:
            _, number = _CHANGE_HEAD.unpack_from(data, self._take(_CHANGE_HEAD.size))
            return VectorChange(number, self.vector(), self.vector())
        raise DamagedPacket(f"no element of a run has kind {kind}")


def _decoded(text: bytes) -> str:
    """Return a text. Raises: DamagedPacket."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise DamagedPacket("a text is not UTF-8") from None


def encode(packet: Packet) -> bytes:
    """Return a packet as bytes."""
    kind, write = _WRITERS[type(packet)]
    writer = PacketWriter()
    write(writer, packet)
    return writer.packet(kind)


def decode(data: bytes) -> list[Packet]:
    """Return the packets of one message. Raises: DamagedPacket."""
    packets: list[Packet] = []
    at, size_bytes = 0, len(data)
    while at < size_bytes:
        if size_bytes - at < _HEAD.size:
            raise DamagedPacket("a message ends within the head of a packet")
        length, kind = _HEAD.unpack_from(data, at)
        end = at + _U32.size + length
        if length == 0 or end > size_bytes:
            raise DamagedPacket("a message ends within a packet")
        read = _READERS.get(kind)
        if read is None:
            raise DamagedPacket(f"no packet has kind {kind}")
        reader = PacketReader(data, at + _HEAD.size, end)
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


def _read_hello(reader: PacketReader) -> Hello:
    version, broker, tree_node, session = reader.number(), reader.text(), reader.text(), reader.number()
    leaf = reader.flag()
    if version != VERSION:  # what follows is not known, and the link will be refused
        reader.skip()
        return Hello(broker, tree_node, session, leaf, version)
    return Hello(broker, tree_node, session, leaf, version, reader.flag())


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


def _read_update_ack(reader: PacketReader) -> UpdateAck:
    return UpdateAck(reader.number())


def _write_resync(_writer: PacketWriter, _resync: Resync) -> None:
    """Write nothing: the kind says it all."""


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
    elements = tuple(reader.element() for _ in range(reader.count()))
    before = first - 1
    for element in elements:
        if not before < element.number <= last:
            raise DamagedPacket(f"element {element.number} is out of place in a run from {first} to {last}")
        before = element.number
    return StreamRun(stream, first, last, vector_at, elements, target, lost, vector if has_vector else None)


def _write_nack(writer: PacketWriter, nack: Nack) -> None:
    writer.stream(nack.stream)
    writer.number(nack.first)
    writer.number(nack.last)
    writer.text(nack.leaf)
    writer.number(nack.vst)
    writer.number(nack.limit_bytes)


def _read_nack(reader: PacketReader) -> Nack:
    stream, first, last = reader.stream(), reader.number(), reader.number()
    return Nack(stream, first, last, reader.text(), reader.number(), reader.number())


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
