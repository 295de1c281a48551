"""The fields of packets as bytes; their form is in `wire`."""

from __future__ import annotations

from struct import Struct
from typing import Final

from broker.overlay.packets import Conjunction, Data, Element, Space, StreamName, Vector, VectorChange

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
    """Bytes that are not packets of this version; the text says what is wrong."""


class PacketWriter:
    """Writes the fields of one packet."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[bytes | memoryview] = []

    def packet(self, kind: int) -> bytes:
        """Return the packet. Cost: its bytes are copied once."""
        size_bytes = 1
        for piece in self._pieces:
            size_bytes += len(piece)
        return b"".join([PACKET_HEAD.pack(size_bytes, kind), *self._pieces])

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
        self.number(stream.incarnation)

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
            self.number(element.incarnation)


class PacketReader:
    """Reads the fields of one packet. Raises: DamagedPacket."""

    __slots__ = ("_at", "_data", "_end")

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self._data = data
        self._at = at
        self._end = end

    def skip(self) -> None:
        """Skip the remaining fields."""
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
        return StreamName(self.text(), self.space(), self.number())

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
            return Data(number, key, size_bytes, copies, data[begin:behind])
        if kind == _VECTOR_CHANGE:
            _, number = _CHANGE_HEAD.unpack_from(data, self._take(_CHANGE_HEAD.size))
            return VectorChange(number, self.vector(), self.vector(), self.number())
        raise DamagedPacket(f"no element of a run has kind {kind}")


def _decoded(text: bytes) -> str:
    """Return a text. Raises: DamagedPacket."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise DamagedPacket("a text is not UTF-8") from None
