"""The encoding of packets. A link transfers them as a byte stream: a packet may span several AMQP messages.

All integers are big-endian. A text is its length in bytes (u16) and UTF-8; a list is its length (u32) and its entries.

    packet                          element of a run, its numbers in rising order
    0   u32 bytes after this field  0   u8  1: data, 2: vector change, 3: data with copies
    4   u8  kind                    1   u64 number
    5       fields in their order   9       vector change: two vectors, u64 incarnation
                                    9       data: u16 bytes of the key, u32 bytes of the content, key, content
                                            data with copies: a list of texts between key and content

A vector is a list of (text, u64), a space two texts, a conjunction a space and a text, a stream a text, a space and a
u64, its incarnation. A flag is a u8, 0 or 1; an optional list is preceded by a flag. The hello begins with its version,
so that brokers of other versions can report the reason for a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
)  # fmt: skip

VERSION: Final = 3
"""The value of `Hello.version`: brokers with different versions do not link."""

OTHER_PACKETS_BYTES: Final = 64 << 20
"""The most bytes of a packet besides its largest message: for the rest of a run, or an update of a million leaves."""

_LENGTH_BYTES: Final = 4
PACKET_HEAD: Final = Struct(">IB")  # bytes after this field, kind
_U16: Final = Struct(">H")
_U32: Final = Struct(">I")
_U64: Final = Struct(">Q")
_DATA_HEAD: Final = Struct(">BQHI")  # kind, number, bytes of the key, bytes of the content
_CHANGE_HEAD: Final = Struct(">BQ")
_DATA: Final = 1
_VECTOR_CHANGE: Final = 2
_DATA_WITH_COPIES: Final = 3


class DamagedPacket(ValueError):
    """The bytes are not packets of this version; the text says why."""


class PacketWriter:
    """Write the fields of one packet."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[bytes | memoryview] = []

    def packet(self, kind: int) -> bytes:
        """Return the packet with the fields written so far. Cost: its bytes are copied once."""
        size_bytes = 1
        for piece in self._pieces:
            size_bytes += len(piece)
        return b"".join([PACKET_HEAD.pack(size_bytes, kind), *self._pieces])

    def flag(self, value: bool) -> None:
        self._pieces.append(b"\x01" if value else b"\x00")

    def count(self, value: int) -> None:
        """Write the length of a list."""
        self._pieces.append(_U32.pack(value))

    def number(self, value: int) -> None:
        """Write a number, serial or virtual time."""
        self._pieces.append(_U64.pack(value))

    def text(self, value: str) -> None:
        encoded = value.encode()
        self._pieces.append(_U16.pack(len(encoded)))
        self._pieces.append(encoded)

    def texts(self, values: tuple[str, ...]) -> None:
        self.count(len(values))
        for value in values:
            self.text(value)

    def optional_texts(self, values: tuple[str, ...] | None) -> None:
        self.flag(values is not None)
        self.texts(values or ())

    def vector(self, vector: Vector) -> None:
        self.count(len(vector))
        for leaf, virtual_time in vector.items():
            self.text(leaf)
            self.number(virtual_time)

    def space(self, space: Space) -> None:
        self.text(space.vhost)
        self.text(space.exchange)

    def stream(self, stream: StreamName) -> None:
        self.text(stream.leaf)
        self.space(stream.space)
        self.number(stream.incarnation)

    def element(self, element: Element) -> None:
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
            self.number(element.incarnation)


class PacketReader:
    """Read the fields of one packet. Raises: DamagedPacket."""

    __slots__ = ("_at", "_data", "_end")

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self._data = data
        self._at = at
        self._end = end

    def skip_rest(self) -> None:
        self._at = self._end

    def end(self) -> None:
        """Check that all bytes were read."""
        if self._at != self._end:
            raise DamagedPacket(f"{self._end - self._at} bytes follow the last field of a packet")

    def _advance(self, size_bytes: int) -> int:
        """Advance by a number of bytes, and return the position before them."""
        at = self._at
        if size_bytes > self._end - at:
            raise DamagedPacket("a packet ends within a field")
        self._at = at + size_bytes
        return at

    def octet(self) -> int:
        return self._data[self._advance(1)]

    def flag(self) -> bool:
        value = self.octet()
        if value > 1:
            raise DamagedPacket(f"a flag is 0 or 1, not {value}")
        return value == 1

    def count(self) -> int:
        """Read the length of a list. Each entry has at least one byte, which limits the length."""
        (value,) = _U32.unpack_from(self._data, self._advance(4))
        if value > self._end - self._at:
            raise DamagedPacket(f"a list of {value} entries does not fit its packet")
        return int(value)

    def number(self) -> int:
        """Read a number, serial or virtual time."""
        (value,) = _U64.unpack_from(self._data, self._advance(8))
        return int(value)

    def text(self) -> str:
        (size_bytes,) = _U16.unpack_from(self._data, self._advance(2))
        at = self._advance(size_bytes)
        return _decoded(self._data[at : at + size_bytes])

    def texts(self) -> tuple[str, ...]:
        return tuple(self.text() for _ in range(self.count()))

    def optional_texts(self) -> tuple[str, ...] | None:
        is_present = self.flag()
        values = self.texts()
        return values if is_present else None

    def vector(self) -> dict[str, int]:
        return {self.text(): self.number() for _ in range(self.count())}

    def space(self) -> Space:
        return Space(self.text(), self.text())

    def stream(self) -> StreamName:
        return StreamName(self.text(), self.space(), self.number())

    def element(self) -> Element:
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
            self._at = after = at + size_bytes
            return Data(number, key, size_bytes, copies, data[begin:after])
        if kind == _VECTOR_CHANGE:
            _, number = _CHANGE_HEAD.unpack_from(data, self._advance(_CHANGE_HEAD.size))
            return VectorChange(number, self.vector(), self.vector(), self.number())
        raise DamagedPacket(f"no element of a run has kind {kind}")


def _decoded(text: bytes) -> str:
    """Decode UTF-8. Raises: DamagedPacket."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise DamagedPacket("a text is not UTF-8") from None


class PacketPieces:
    """Assemble packets from the AMQP messages of one direction of a link, the pieces.

    Cost: each byte is copied a few times at most, however many pieces a packet has.
    """

    __slots__ = ("_held_bytes", "_limit_bytes", "_needed_bytes", "_pieces")

    def __init__(self, message_bytes: int) -> None:
        """`message_bytes` is the largest message of a stream that this end accepts."""
        self._limit_bytes = message_bytes + OTHER_PACKETS_BYTES
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._needed_bytes = 0

    def add(self, piece: bytes) -> bytes:
        """Add a piece, and return the packets that are complete now. Raises: DamagedPacket if one is too long."""
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
    """Encode a packet."""
    writer = PacketWriter()
    if isinstance(packet, StreamRun):
        _write_run(writer, packet)
        return writer.packet(_RUN)
    kind, fields = _LAYOUTS[type(packet)]
    for name, (write, _) in fields.items():
        write(writer, getattr(packet, name))
    return writer.packet(kind)


def decode(data: bytes) -> list[Packet]:
    """Decode a sequence of whole packets. Raises: DamagedPacket."""
    packets: list[Packet] = []
    at, size_bytes = 0, len(data)
    while at < size_bytes:
        if size_bytes - at < PACKET_HEAD.size:
            raise DamagedPacket("a message ends within the head of a packet")
        length, kind = PACKET_HEAD.unpack_from(data, at)
        end = at + _LENGTH_BYTES + length
        if length == 0 or end > size_bytes:
            raise DamagedPacket("a message ends within a packet")
        reader = PacketReader(data, at + PACKET_HEAD.size, end)
        packets.append(_read_run(reader) if kind == _RUN else _read(reader, kind))
        reader.end()
        at = end
    return packets


def _read(reader: PacketReader, kind: int) -> Packet:
    """Read a packet of any kind but a run. Raises: DamagedPacket."""
    packet_type = _KINDS.get(kind)
    if packet_type is None:
        raise DamagedPacket(f"no packet has kind {kind}")
    values: dict[str, Any] = {}
    for name, (_, read) in _LAYOUTS[packet_type][1].items():
        values[name] = read(reader)
        if name == "leaf" and packet_type is Hello and values["version"] != VERSION:
            reader.skip_rest()  # this version cannot parse the rest, and the link will be refused
            break
    packet: Packet = packet_type(**values)
    return packet


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


_Codec = tuple[Callable[[PacketWriter, Any], None], Callable[[PacketReader], Any]]
"""The function that writes a value, and the one that reads it."""


def _codec(name: str) -> _Codec:
    """Return the writer's method of this name and the reader's."""
    return getattr(PacketWriter, name), getattr(PacketReader, name)


def _list_of(make: Callable[[list[Any]], Any], *names: str) -> _Codec:
    """Return the codec of a list. `make` creates an entry from its fields, whose codecs have these names."""
    codecs = [_codec(name) for name in names]

    def write(writer: PacketWriter, entries: Sequence[Sequence[Any]]) -> None:
        writer.count(len(entries))
        for entry in entries:
            for (write_field, _), field in zip(codecs, entry, strict=True):
                write_field(writer, field)

    def read(reader: PacketReader) -> tuple[Any, ...]:
        return tuple(make([read_field(reader) for _, read_field in codecs]) for _ in range(reader.count()))

    return write, read


_LISTS: Final[dict[str, _Codec]] = {
    "conjunctions": _list_of(Conjunction._make, "space", "text"),
    "incarnations": _list_of(tuple, "number", "number"),
    "interests": _list_of(tuple, "space", "texts"),
    "spaces": _list_of(Space._make, "text", "text"),
}


def _layout(packet: type[Packet], kind: int, fields: str) -> tuple[type[Packet], tuple[int, dict[str, _Codec]]]:
    """Return the layout of a packet. Shapes: `fields` are NAME:CODEC; a codec is named in `_LISTS` or by `_codec`."""
    pairs = (field.split(":") for field in fields.split())
    return packet, (kind, {name: _LISTS.get(codec) or _codec(codec) for name, codec in pairs})


_LAYOUTS: Final[dict[type[Packet], tuple[int, dict[str, _Codec]]]] = dict(
    (
        _layout(Hello, 1, "version:number broker:text tree_node:text session:number leaf:flag "
                "subscriptions:flag message_bytes:number process:number"),
        _layout(Update, 2, "serial:number full:flag last:flag added:conjunctions removed:conjunctions slice:vector "
                "gone:texts interested:interests touched:spaces durable:optional_texts unreachable:optional_texts"),
        _layout(UpdateAck, 3, "serial:number time:number"),
        _layout(Resync, 4, ""),
        _layout(Nack, 6, "stream:stream first:number last:number leaf:text vst:number limit_bytes:number "
                "former:incarnations"),
        _layout(Ack, 7, "stream:stream number:number serial:number"),
    )
)  # fmt: skip
_RUN: Final = 5
_KINDS: Final = {kind: packet for packet, (kind, _) in _LAYOUTS.items()}
