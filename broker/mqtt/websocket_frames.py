"""Decode a client's WebSocket frames without I/O, and encode those of the broker. Source: RFC 6455.

wsproto is not used: its parser is a generator that refers to its own object, a reference cycle for each client. Such
cycles would never be freed, because old objects are frozen.
"""

from __future__ import annotations

from typing import Final

TEXT: Final = 0x1
BINARY: Final = 0x2
CLOSE: Final = 0x8
PING: Final = 0x9
PONG: Final = 0xA
FINAL: Final = 0x80
RESERVED: Final = 0x70
MASKED: Final = 0x80
CONTROL_MAX_BYTES: Final = 125
TWO_OCTETS: Final = 126  # the size is in the next two octets
EIGHT_OCTETS: Final = 127
MASK_BYTES: Final = 4
XORED: Final = tuple([bytes([octet ^ key for octet in range(256)]) for key in range(256)])

OPEN: Final = 0
NORMAL: Final = 1000
PROTOCOL_ERROR: Final = 1002
UNSUPPORTED: Final = 1003
NO_CODE: Final = 1005
NOT_UTF_8: Final = 1007
CODES: Final = frozenset({1000, 1001, 1002, 1003, *range(1007, 1015), *range(3000, 5000)})
"""The codes that a client's close frame may have."""


class WebSocketFrames:
    """The frames that one client sends.

    Shapes: `ping` is the payload of the last unanswered ping. `code` is OPEN until a frame ends the connection; then it
        is the code of the client's close frame, or that of an error, which `reason` describes.
    Invariant: the payload of a data frame is returned as it arrives, so at most one control frame is collected.
    """

    __slots__ = ("_at", "_buffer", "_is_amid_message", "_left", "_mask", "code", "ping", "reason")

    def __init__(self) -> None:
        self._buffer = b""
        self._at = 0
        self._left = 0  # octets of the data frame that were not read yet
        self._mask = b""
        self._is_amid_message = False
        self.ping: bytes | None = None
        self.code = OPEN
        self.reason = ""

    def feed(self, data: bytes) -> None:
        self._buffer = self._buffer[self._at :] + data if self._at < len(self._buffer) else data
        self._at = 0

    def read(self, frames_max: int) -> tuple[bytes, bool]:
        """Read up to `frames_max` frames; return the payload of data frames, and whether there may be more frames."""
        pieces: list[bytes] = []
        count = 0
        while self.code == OPEN:
            if self._left:
                piece = self._buffer[self._at : self._at + self._left]
                if not piece:
                    break
                self._at += len(piece)
                self._left -= len(piece)
                pieces.append(unmasked(piece, self._mask))
                turn = len(piece) % MASK_BYTES
                self._mask = self._mask[turn:] + self._mask[:turn]
            if count == frames_max:
                return b"".join(pieces), True
            if self._left or not self._begin_frame():
                break
            count += 1
        return b"".join(pieces), False

    def _begin_frame(self) -> bool:
        """Read the next frame's header, or a whole control frame; return False if it is incomplete or not allowed."""
        buffer, at = self._buffer, self._at
        if len(buffer) - at < 2:
            return False
        first, size = buffer[at], buffer[at + 1] & ~MASKED
        kind = first & ~(FINAL | RESERVED)
        if first & RESERVED or not buffer[at + 1] & MASKED:
            return self._end(PROTOCOL_ERROR, "a frame with a reserved bit, or without a mask")
        if kind >= CLOSE and (kind > PONG or size > CONTROL_MAX_BYTES or not first & FINAL):
            return self._end(PROTOCOL_ERROR, "a control frame that is fragmented, too long or of an unknown kind")
        at += 2
        if size >= TWO_OCTETS:
            after = at + (2 if size == TWO_OCTETS else 8)
            if len(buffer) < after:
                return False
            size, at = int.from_bytes(buffer[at:after], "big"), after
        if len(buffer) < at + MASK_BYTES + (size if kind >= CLOSE else 0):
            return False
        mask = buffer[at : at + MASK_BYTES]
        at += MASK_BYTES
        if kind >= CLOSE:
            self._at = at + size
            self._control(kind, unmasked(buffer[at : at + size], mask))
            return True
        if kind == TEXT:
            return self._end(UNSUPPORTED, "a text frame: MQTT uses binary frames")
        if kind > BINARY or (kind == BINARY) == self._is_amid_message:
            return self._end(PROTOCOL_ERROR, "a frame of an unknown kind, or out of order")
        self._at, self._left, self._mask = at, size, mask
        self._is_amid_message = not first & FINAL
        return True

    def _control(self, kind: int, payload: bytes) -> None:
        if kind == PING:
            self.ping = payload
        elif kind == CLOSE:
            code = int.from_bytes(payload[:2], "big") if payload else NO_CODE
            if payload and (len(payload) < 2 or code not in CODES):
                self._end(PROTOCOL_ERROR, "a close frame with a code that is not allowed")
                return
            try:
                payload[2:].decode()
            except UnicodeDecodeError:
                self._end(NOT_UTF_8, "a close frame with a reason that is not UTF-8")
                return
            self._end(code, "")

    def _end(self, code: int, reason: str) -> bool:
        self.code, self.reason = code, reason
        return False

    def take_ping(self) -> bytes | None:
        """Return the payload of the last unanswered ping once, then None."""
        ping, self.ping = self.ping, None
        return ping


def unmasked(payload: bytes, mask: bytes) -> bytes:
    """Unmask a payload. Cost: four passes in C, 3 ns per octet."""
    octets = bytearray(payload)
    for at in range(MASK_BYTES):
        octets[at::MASK_BYTES] = octets[at::MASK_BYTES].translate(XORED[mask[at]])
    return bytes(octets)


def encode_frame(kind: int, payload: bytes) -> bytes:
    """Encode a frame of the broker, without a mask."""
    size = len(payload)
    if size < TWO_OCTETS:
        return bytes((FINAL | kind, size)) + payload
    if size <= 0xFFFF:
        return bytes((FINAL | kind, TWO_OCTETS)) + size.to_bytes(2, "big") + payload
    return bytes((FINAL | kind, EIGHT_OCTETS)) + size.to_bytes(8, "big") + payload


def encode_close(code: int, reason: str = "") -> bytes:
    """Encode a close frame."""
    return encode_frame(CLOSE, b"" if code == NO_CODE else code.to_bytes(2, "big") + reason.encode())
