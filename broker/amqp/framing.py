"""Frames: cut received bytes into (type, channel, payload).

A frame is a 7-octet head (type, channel, payload size), the payload, and the octet 0xCE (AMQP 0-9-1 section 4.2.3).
Payloads are not decoded here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from broker.amqp.errors import ConnectionFault, broken_frame
from broker.amqp.wire import FRAME_HEAD, PROPERTIES_AT

FRAME_METHOD: Final = 1
FRAME_HEADER: Final = 2
FRAME_BODY: Final = 3
FRAME_HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
HEAD_BYTES: Final = 7
FRAME_OVERHEAD_BYTES: Final = 8
HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

# The first octets of a publish: class basic, method publish, the only method that clients send with content.
PUBLISH: Final = b"\x00\x3c\x00\x28"
MIN_CONTENT_BYTES: Final = 2 * FRAME_OVERHEAD_BYTES
# Every content header of a publish begins with class basic and weight 0; the body size and the property flags follow.
BASIC_CONTENT: Final = b"\x00\x3c\x00\x00"

# Pieces of at least this size are not joined, because a copy costs more than a separate piece.
LARGE_BYTES: Final = 32 << 10
# A part of a large body that is less than 1/CHUNK_SHARE of its chunk is copied, so that the chunk can be freed.
CHUNK_SHARE: Final = 4
# Octets of large bodies are passed on unread, so only 1/LARGE_SHARE of them counts towards a budget.
LARGE_SHARE: Final = 8
# The first octets of a large body frame, for error texts: 16, and one more to show that there are more.
FRONT_BYTES: Final = 17

# Some clients exclude the head and the end octet from the negotiated size; RabbitMQ tolerates these 8 octets.
TOLERATED_BYTES: Final = FRAME_OVERHEAD_BYTES

# The type and channel of a frame, and the upper half of its size, which is 0 for every publish.
METHOD_FRONT_BYTES: Final = 5
METHOD_SIZE_MAX: Final = 0xFFFF
# The end octet of one frame with the head of the next.
END_AND_HEAD: Final = struct.Struct(">BBHI")
unpack_head: Final = FRAME_HEAD.unpack_from
RUN_OF_PUBLISHES: Final = 256
"""The pseudo frame type of a run; a type on the wire is an octet."""
RUN_MAX: Final = 256
"""The most publishes in a run. Between two runs, the caller checks whether it must wait."""
RETAINED_MAX_BYTES: Final = 1024
"""The largest body that a connection retains between two publishes."""
# Stands for octets that have not arrived: it equals no front of a method frame, which is longer.
NO_BYTES: Final = b"\x00"
NO_FRAMES: Final = -1  # as `stop_at`: no frame is returned, not even a complete one


class PublishRun:
    """Consecutive complete publishes of one channel, all with equal properties.

    Invariant: a run is valid until the next frame is cut, because single publishes of a connection reuse one run.
    Shapes: one payload, header and body per publish. A header is the payload of a content header frame of class basic;
        consecutive bodies of equal size share one header object. No body is empty. Only the first payload is known to
        be a publish: the caller checks the methods of the others.
    """

    __slots__ = ("at", "bodies", "headers", "largest_bytes", "payloads")

    def __init__(self, at: int, payloads: list[bytes], headers: list[bytes], bodies: list[bytes], largest: int) -> None:
        """Shapes: `at` is the offset of the first frame in the buffer of the cutter."""
        self.at = at
        self.payloads = payloads
        self.headers = headers
        self.bodies = bodies
        self.largest_bytes = largest

    def renew(self, at: int, payload: bytes, header: bytes, body: bytes) -> None:
        """Reuse the run for another single publish. Invariant: the run has one publish."""
        self.at = at
        self.payloads[0] = payload
        self.headers[0] = header
        self.bodies[0] = body
        self.largest_bytes = len(body)


# Type, channel, payload, None. For publishes, the last item is the run. For a part of a large body frame, it is the
# part, and the payload contains the first octets of the frame. The type is NO_FRAME if there is no frame, because
# compiled code boxes a tuple that may be None.
Frame = tuple[int, int, bytes, PublishRun | memoryview | None]
NO_FRAME: Final = -1
# A frame, or a piece of one.
Octets = bytes | memoryview


class FrameCutter:
    """A parser that cuts frames out of the received bytes by offset, one at each call of next_frame().

    A large body frame is returned in parts as they arrive, and its last octet once the frame is complete.
    Cost: one copy per payload, and another if chunks are joined; large parts of large body frames are not copied.
    Units: `at` is the offset in the buffer where the next frame begins; no frame that begins at `stop_at` or later is
        cut. `spared_bytes` counts the octets cut so far that did not count towards a budget. `amid_message` is a hint
        that the received bytes end within a message.
    """

    __slots__ = ("_between", "_body_bytes", "_buffer", "_channel", "_chunks", "_front", "_header", "_joined",
                 "_method_channel", "_method_front", "_missing_bytes", "_rest_bytes", "_rest_channel", "_single",
                 "amid_message", "at", "broken", "limit_bytes", "spared_bytes", "stop_at")  # fmt: skip

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.broken = False
        self.amid_message = False
        self._buffer = b""
        self.at = 0
        self.stop_at = NO_FRAMES
        # Chunks that do not complete a frame are collected, so that a large frame in small chunks is joined only once.
        self._chunks: list[bytes] = []
        self._missing_bytes = 0
        # A frame that arrived in several chunks; everything in the buffer follows it.
        self._joined: Frame | None = None
        # The large body frame that is being returned in parts: its missing payload bytes, channel and first octets.
        self._rest_bytes = 0
        self._rest_channel = 0
        self._front = b""
        self.spared_bytes = 0
        # The first octets of the last method frame, with its channel; most clients send on one channel.
        self._method_front = NO_BYTES
        self._method_channel = 0
        # The octets between method and body of the last complete publish. Publishers repeat content headers and body
        # sizes, so one comparison of these octets often gives the header, the channel and the body's size.
        self._between = NO_BYTES
        self._header = b""
        self._channel = -1  # differs from every channel until there is such a publish
        self._body_bytes = 0
        self._single: PublishRun | None = None  # the last run of one publish, for reuse

    def set_frame_max(self, limit_bytes: int) -> None:
        """Set the largest frame size, from the next frame on."""
        self.limit_bytes = limit_bytes

    @property
    def buffered_bytes(self) -> int:
        """The number of received bytes that are not cut yet."""
        ahead_bytes = 0 if self._joined is None else len(self._joined[2]) + FRAME_OVERHEAD_BYTES
        return ahead_bytes + len(self._buffer) - self.at + sum(map(len, self._chunks))

    @property
    def has_frame(self) -> bool:
        """Whether frames() would yield a frame, or raise, without more bytes."""
        if self._joined is not None:
            return True
        if self._chunks:
            return False
        at = self.at
        arrived_bytes = len(self._buffer) - at
        if self._rest_bytes:
            return arrived_bytes > 0 and (arrived_bytes > 1 or self._rest_bytes > 1)
        if arrived_bytes < HEAD_BYTES:
            return False
        kind, _, size = unpack_head(self._buffer, at)
        if size > self.limit_bytes or arrived_bytes >= size + FRAME_OVERHEAD_BYTES:
            return True
        return bool(kind == FRAME_BODY and size >= LARGE_BYTES and arrived_bytes >= HEAD_BYTES + FRONT_BYTES)

    def feed(self, data: bytes) -> None:
        """Append received bytes. Call begin() before next_frame()."""
        self.stop_at = NO_FRAMES
        if self._missing_bytes > len(data):
            self._missing_bytes -= len(data)
            self._chunks.append(data)
            return
        if self.at == len(self._buffer) and not self._chunks:  # the usual case: all earlier bytes are cut
            self._buffer = data
            self.at = self._missing_bytes = 0
            return
        if self._rest_bytes or not self._complete(data):
            rest = self._buffer[self.at :]
            self._buffer = b"".join((rest, *self._chunks, data)) if rest else data
            self.at = 0
        self._chunks.clear()
        self._missing_bytes = 0

    def _complete(self, data: bytes) -> bool:
        """Join the payload of a frame that these bytes complete, without copying the bytes after it, and return True.

        Do nothing and return False if next_frame() must check the frame, or if this would not be faster.
        """
        buffer = self._buffer
        start = self.at + HEAD_BYTES
        if start > len(buffer):
            return False
        kind, channel, size = unpack_head(buffer, self.at)
        if (size < LARGE_BYTES and len(data) < LARGE_BYTES) or size > self.limit_bytes or self._joined is not None:
            return False
        last = start + size - len(buffer) - sum(map(len, self._chunks))
        if last < 0 or last >= len(data) or data[last] != FRAME_END:
            return False
        payload = b"".join((memoryview(buffer)[start:], *self._chunks, memoryview(data)[:last]))
        self._joined = kind, channel, payload, None
        self._buffer = data
        self.at = last + 1
        return True

    def clear(self) -> None:
        """Discard all bytes that are not cut yet."""
        self.stop_at = NO_FRAMES
        self._joined = None
        self._buffer = b""
        self.at = 0
        self._chunks.clear()
        self._missing_bytes = self._rest_bytes = 0
        self._single = None

    def frames(self, budget_bytes: int | None = None) -> Iterator[Frame]:
        """Yield the frames that begin within the budget. Raises: as next_frame()."""
        self.begin(budget_bytes)
        while (frame := self.next_frame())[0] != NO_FRAME:
            yield frame

    def begin(self, budget_bytes: int | None = None) -> None:
        """Allow next_frame() to return the frames that begin within the budget, until the next feed()."""
        at = self.at
        if budget_bytes is None:
            self.stop_at = len(self._buffer)
        elif budget_bytes <= 0:
            self.stop_at = NO_FRAMES
        else:
            if self._joined is not None:
                budget_bytes -= len(self._joined[2]) + FRAME_OVERHEAD_BYTES
            self.stop_at = max(at, min(at + budget_bytes, len(self._buffer)))
        if self._chunks:
            self.stop_at = min(self.stop_at, at)

    def next_frame(self) -> Frame:
        """Return the next frame, or NO_FRAME if none is complete or the budget is used up. HOT.

        A large body frame is returned in parts, and complete publishes are returned as runs.
        Raises: 501 for a broken frame; the bytes after it are meaningless.
        """
        kind: int  # declared, so that compiled code computes without objects
        channel: int
        size: int
        ahead = self._joined
        if ahead is not None and self.stop_at != NO_FRAMES:
            self._joined = None
            return ahead
        buffer = self._buffer
        length = len(buffer)
        at = self.at
        while at < self.stop_at:
            if self._rest_bytes:
                spared_bytes = self.spared_bytes
                part = self._cut_part()
                if part is None:
                    break
                self.stop_at = min(self.stop_at + self.spared_bytes - spared_bytes, length)
                return FRAME_BODY, self._rest_channel, self._front, part
            start = at + HEAD_BYTES
            if start > length:
                self._missing_bytes = start - length
                self.amid_message = True
                break
            if buffer[at : at + METHOD_FRONT_BYTES] == self._method_front:  # five times as fast as unpacking the head
                kind = FRAME_METHOD
                channel = self._method_channel
                size = buffer[at + 5] << 8 | buffer[at + 6]
            else:
                kind, channel, size = unpack_head(buffer, at)
                if kind == FRAME_METHOD:
                    self._method_channel = channel
                    self._method_front = buffer[at : at + METHOD_FRONT_BYTES] if size <= METHOD_SIZE_MAX else NO_BYTES
            if size > self.limit_bytes:  # refused at the head, without waiting for the payload
                raise self._break(kind, b"", f"{{frame_too_large,{size},{self.limit_bytes - TOLERATED_BYTES}}}")
            end = start + size
            if kind == FRAME_BODY and size >= LARGE_BYTES and start + FRONT_BYTES <= length:
                self.at = at = start
                self._rest_bytes, self._rest_channel = size, channel
                self._front = buffer[start : start + FRONT_BYTES]
                self.stop_at = max(self.stop_at, at + 1)
                continue
            if end >= length:
                large = kind == FRAME_BODY and size >= LARGE_BYTES
                self._missing_bytes = (start + FRONT_BYTES if large else end + 1) - length
                self.amid_message = True
                break
            payload = buffer[start:end]
            publishes = kind == FRAME_METHOD and payload[:4] == PUBLISH
            if publishes and self._content_follows(buffer, end, channel):
                return RUN_OF_PUBLISHES, channel, payload, self._cut_run(buffer, at, end, self.stop_at)
            if buffer[end] != FRAME_END:
                raise self._break(kind, payload, f"{{invalid_frame_end_marker,{buffer[end]}}}")
            self.at = end + 1
            self.amid_message = publishes or kind == FRAME_HEADER
            return kind, channel, payload, None
        return NO_FRAME, 0, b"", None

    def _break(self, kind: int, payload: bytes, cause: str) -> ConnectionFault:
        """Record that the remaining bytes are meaningless, and return the error with its cause."""
        self.broken = True
        self.stop_at = NO_FRAMES
        return broken_frame(kind, payload, cause)

    def _cut_part(self) -> memoryview | None:
        """Cut the arrived part of a large body frame, or return None if no part can be returned yet.

        Raises: 501 for a wrong end octet.
        """
        buffer, at, rest_bytes = self._buffer, self.at, self._rest_bytes
        length = len(buffer)
        end = at + rest_bytes
        if end < length:
            if buffer[end] != FRAME_END:
                raise self._break(FRAME_BODY, self._front, f"{{invalid_frame_end_marker,{buffer[end]}}}")
            self.at = end + 1
        else:
            end = min(length, end - 1)
            if end <= at:
                return None
            self.at = end
        part_bytes = end - at
        self._rest_bytes = rest_bytes - part_bytes
        self.spared_bytes += part_bytes - part_bytes // LARGE_SHARE
        if part_bytes * CHUNK_SHARE < length:
            return memoryview(buffer[at:end])
        return memoryview(buffer)[at:end]

    def upcoming(self, count: int) -> list[tuple[int, bytes]]:
        """Return channel and payload of the next complete method frames, at most `count`, without cutting them."""
        found: list[tuple[int, bytes]] = []
        buffer, at = self._buffer, self.at
        if self._rest_bytes:
            return found
        while len(found) < count and self._joined is None and at + HEAD_BYTES <= len(buffer):
            kind, channel, size = unpack_head(buffer, at)
            start = at + HEAD_BYTES
            at = start + size + 1
            if kind != FRAME_METHOD or size > self.limit_bytes or at > len(buffer) or buffer[at - 1] != FRAME_END:
                break
            found.append((channel, buffer[start : start + size]))
        return found

    def take_back(self, run: PublishRun, taken: int) -> None:
        """Return the publishes of a run to the buffer except the first `taken`; do nothing after clear()."""
        if taken < len(run.bodies) and self._buffer:
            at = run.at
            for place in range(taken):
                at += len(run.payloads[place]) + len(run.headers[place]) + len(run.bodies[place])
            self.at = at + taken * 3 * FRAME_OVERHEAD_BYTES

    def _content_follows(self, buffer: bytes, end: int, channel: int) -> bool:
        """Return whether a content header and one body frame follow a method frame whose payload ends at `end`.

        False for anything else, which next_frame() checks frame by frame.
        """
        length = len(buffer)
        body = end + len(self._between)
        if channel == self._channel and buffer[end:body] == self._between:
            last = body + self._body_bytes
            return last < length and buffer[last] == FRAME_END
        if end + MIN_CONTENT_BYTES >= length:
            return False
        octet, following, same, size = END_AND_HEAD.unpack_from(buffer, end)
        start = end + FRAME_OVERHEAD_BYTES
        stop = start + size
        if following != FRAME_HEADER or same != channel or octet != FRAME_END or stop + FRAME_OVERHEAD_BYTES >= length:
            return False
        header = buffer[start:stop]
        octet, following, same, size = END_AND_HEAD.unpack_from(buffer, stop)
        body = stop + FRAME_OVERHEAD_BYTES
        last = body + size
        if (
            following != FRAME_BODY
            or same != channel
            or not size
            or last >= length
            or octet != FRAME_END
            or buffer[last] != FRAME_END
            or last - start > self.limit_bytes
            or len(header) <= PROPERTIES_AT
            or header[:PROPERTIES_AT] != BASIC_CONTENT + size.to_bytes(8, "big")
        ):
            return False
        self._between, self._header, self._channel, self._body_bytes = buffer[end:body], header, channel, size
        return True

    def _cut_run(self, buffer: bytes, at: int, end: int, stop_at: int) -> PublishRun:
        """Cut a run: the publish at `at`, whose method's payload ends at `end`, and similar publishes after it. HOT."""
        start = at
        length = len(buffer)
        limit_bytes = self.limit_bytes
        channel, header, between, body_bytes = self._channel, self._header, self._between, self._body_bytes
        front = self._method_front  # of the publish at `at`
        body = end + len(between)
        last = body + body_bytes
        largest = body_bytes
        run = self._single
        if run is None:
            run = PublishRun(start, [buffer[at + HEAD_BYTES : end]], [header], [buffer[body:last]], largest)
        else:
            run.renew(start, buffer[at + HEAD_BYTES : end], header, buffer[body:last])
        payloads, headers, bodies = run.payloads, run.headers, run.bodies
        at = last + 1
        repeats = at < stop_at
        first = buffer[start:body] if repeats else b""  # the frames of the first publish up to its body
        first_bytes, payload = body - start, payloads[0]
        while at < stop_at and at + MIN_CONTENT_BYTES < length and len(bodies) < RUN_MAX:
            if repeats:  # one comparison per publish, while all octets before the body are the same
                body = at + first_bytes
                last = body + body_bytes
                if last < length and buffer[last] == FRAME_END and buffer[at:body] == first:
                    payloads.append(payload)
                    headers.append(header)
                    bodies.append(buffer[body:last])
                    at = last + 1
                    continue
                repeats = False
            if buffer[at : at + METHOD_FRONT_BYTES] != front:  # in compiled code, startswith() costs five times as much
                break
            size = buffer[at + 5] << 8 | buffer[at + 6]
            end = at + HEAD_BYTES + size
            if size > limit_bytes:
                break
            body = end + len(between)
            last = body + body_bytes
            if last >= length or buffer[last] != FRAME_END or buffer[end:body] != between:
                if (
                    not self._content_follows(buffer, end, channel)
                    or self._header[PROPERTIES_AT:] != header[PROPERTIES_AT:]
                ):
                    break
                header, between, body_bytes = self._header, self._between, self._body_bytes
                body = end + len(between)
                last = body + body_bytes
                largest = max(largest, body_bytes)
            payloads.append(buffer[at + HEAD_BYTES : end])
            headers.append(header)
            bodies.append(buffer[body:last])
            at = last + 1
        self.at = at
        self.amid_message = False
        if len(bodies) > 1:
            run.largest_bytes = largest  # hot: set directly
            self._single = None
        else:  # the run retains its body until the next publish
            self._single = run if largest <= RETAINED_MAX_BYTES else None
        return run
