"""Frames: received bytes are cut into (type, channel, payload).

A frame is a 7-octet head (type, channel, payload size), the payload, and the octet 0xCE (AMQP 0-9-1 section 4.2.3).
What the payload means is not decided here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from broker.amqp.errors import ConnectionFault

FRAME_METHOD: Final = 1
FRAME_HEADER: Final = 2
FRAME_BODY: Final = 3
FRAME_HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
FRAME_END_OCTET: Final = b"\xce"
HEAD_BYTES: Final = 7
FRAME_OVERHEAD_BYTES: Final = 8
HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

# What a publish begins with: class basic, method publish. It is the one method that clients send with a content.
PUBLISH: Final = b"\x00\x3c\x00\x28"
# Stands for the three frames of a publish where a frame type is expected; a type on the wire is an octet.
FRAMES_OF_PUBLISH: Final = 256
MIN_CONTENT_BYTES: Final = 2 * FRAME_OVERHEAD_BYTES

# Type, channel and payload; of a publish also the payloads of its content header and body frames.
Frame = tuple[int, int, bytes, bytes, bytes]

# Quite a few clients count the negotiated size without the head and the end octet; RabbitMQ lets these 8 octets pass.
FUDGE_BYTES: Final = FRAME_OVERHEAD_BYTES

HEAD: Final = struct.Struct(">BHI")
# The end octet of one frame with the head of the next.
END_AND_HEAD: Final = struct.Struct(">BBHI")
# No frame holds it: it begins with an octet that no frame ends with.
NO_BYTES: Final = b"\x00"


class FrameCutter:
    """Cuts frames out of the received bytes by offset, each when it is asked for.

    Invariant: a frame is cut once; an iteration that was left early is taken up by the next call of frames().
    Cost: one copy per payload, and one per chunk for a frame that came in several chunks.
    """

    __slots__ = ("_at", "_between", "_buffer", "_late", "_missing_bytes", "broken", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.broken = False
        self._buffer = b""
        self._at = 0
        # Chunks that cannot complete a frame yet wait apart, so that a large frame in small chunks is joined once.
        self._late: list[bytes] = []
        self._missing_bytes = 0
        # What stood between method and body of the last whole publish: a publisher repeats its content header and its
        # body size, so that one comparison tells what three would have to read. The header, the channel and the body's
        # size are what it stands for.
        self._between = (NO_BYTES, b"", 0, 0)

    @property
    def buffered_bytes(self) -> int:
        """Returns how many received bytes are not cut yet."""
        return len(self._buffer) - self._at + sum(map(len, self._late))

    @property
    def has_frame(self) -> bool:
        """Returns whether frames() would give a frame, or raise, without more bytes."""
        if self._late:
            return False
        at = self._at
        rest_bytes = len(self._buffer) - at
        if rest_bytes < HEAD_BYTES:
            return False
        size = int(HEAD.unpack_from(self._buffer, at)[2])
        return size > self.limit_bytes or rest_bytes >= size + FRAME_OVERHEAD_BYTES

    def feed(self, data: bytes) -> None:
        """Takes received bytes."""
        if self._missing_bytes > len(data):
            self._missing_bytes -= len(data)
            self._late.append(data)
            return
        rest = self._buffer[self._at :]
        self._buffer = b"".join((rest, *self._late, data)) if rest else data
        self._at = 0
        self._late.clear()
        self._missing_bytes = 0

    def clear(self) -> None:
        """Forgets every byte that is not cut yet."""
        self._buffer = b""
        self._at = 0
        self._late.clear()
        self._missing_bytes = 0

    def frames(self, budget_bytes: int | None = None) -> Iterator[Frame]:
        """Yields each whole frame, and ends with the one that uses up the budget. HOT.

        A publish whose three frames have all come is yielded as one.
        Raises: 501 at the broken frame, after the good ones; bytes behind it have no meaning any more.
        """
        unpack, unpack_next = HEAD.unpack_from, END_AND_HEAD.unpack_from
        buffer = self._buffer
        at = self._at
        length = len(buffer)
        enough = length if budget_bytes is None else min(at + budget_bytes, length)
        between, last_header, last_channel, body_bytes = self._between
        while at < enough and buffer is self._buffer and not self._late:
            start = at + HEAD_BYTES
            if start > length:
                self._missing_bytes = start - length
                return
            kind, channel, size = unpack(buffer, at)
            if size > self.limit_bytes:
                # Refused at the head: the payload is never waited for.
                self.broken = True
                raise broken_frame(kind, b"", f"{{frame_too_large,{size},{self.limit_bytes - FUDGE_BYTES}}}")
            end = start + size
            if end >= length:
                self._missing_bytes = end + 1 - length
                return
            payload = buffer[start:end]
            if kind == FRAME_METHOD and end + MIN_CONTENT_BYTES < length and payload[:4] == PUBLISH:
                # Looks on: content header and one body frame on the same channel. What is not exactly that is left to
                # the next rounds, which judge frame by frame.
                if channel == last_channel and buffer.startswith(between, end):
                    body = end + len(between)
                    last = body + body_bytes
                    if last < length and buffer[last] == FRAME_END:
                        self._at = at = last + 1
                        yield FRAMES_OF_PUBLISH, channel, payload, last_header, buffer[body:last]
                        continue
                octet, following, same, size = unpack_next(buffer, end)
                start = end + FRAME_OVERHEAD_BYTES
                stop = start + size
                if (
                    following == FRAME_HEADER
                    and same == channel
                    and octet == FRAME_END
                    and stop + FRAME_OVERHEAD_BYTES < length
                ):
                    octet, following, same, size = unpack_next(buffer, stop)
                    body = stop + FRAME_OVERHEAD_BYTES
                    last = body + size
                    if (
                        following == FRAME_BODY
                        and same == channel
                        and last < length
                        and octet == buffer[last] == FRAME_END
                        and last - start <= self.limit_bytes
                    ):
                        self._at = at = last + 1
                        last_channel, body_bytes = channel, size
                        between, last_header = buffer[end:body], buffer[start:stop]
                        self._between = (between, last_header, last_channel, body_bytes)
                        yield FRAMES_OF_PUBLISH, channel, payload, last_header, buffer[body:last]
                        continue
            if buffer[end] != FRAME_END:
                self.broken = True
                raise broken_frame(kind, payload, f"{{invalid_frame_end_marker,{buffer[end]}}}")
            self._at = at = end + 1
            yield kind, channel, payload, b"", b""


def encode_frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Returns the whole frame around a payload."""
    return HEAD.pack(kind, channel, len(payload)) + payload + FRAME_END_OCTET


def describe_frame(kind: int, payload: bytes) -> str:
    """Returns a frame's type and first octets in RabbitMQ's words, for a reply text."""
    amount = "all" if len(payload) <= 16 else "first 16"
    return f"type {kind}, {amount} octets = <<{','.join(str(octet) for octet in payload[:16])}>>"


def broken_frame(kind: int, payload: bytes, reason: str) -> ConnectionFault:
    """Returns the 501 that names a frame and what is wrong with it."""
    return ConnectionFault(501, f"{describe_frame(kind, payload)}: {reason}")
