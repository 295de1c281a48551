"""Count deliveries and confirms in received bytes by offset, without decoding messages.

A generator that parses three frames per delivery in Python costs as much as the broker that it measures. All deliveries
of a benchmark have the same size, because its routing keys are equally long. So strided slices, which run in C, verify
a whole buffer of deliveries. The frame walk parses any other frame between them (a heartbeat, a confirm, another size).
"""

from __future__ import annotations

from collections.abc import Callable

from broker.perf import wire
from broker.perf.faults import BrokenStream, Refusal


class Confirms:
    """The confirmed sequence numbers: a watermark, and the few numbers above it.

    Invariant: every number up to `watermark` is confirmed, and `above` contains no number up to `watermark` + 1.
    """

    def __init__(self) -> None:
        self.watermark = 0
        self.above: set[int] = set()

    @property
    def count(self) -> int:
        return self.watermark + len(self.above)

    def add(self, tag: int, *, multiple: bool) -> None:
        """Count one basic.ack; a repeated tag changes nothing.

        Cost: one step, and one more for each number in `above` that the watermark passes; `multiple` scans all of them.
        """
        if tag <= self.watermark:
            return
        if multiple:
            self.watermark = tag
            self.above = {one for one in self.above if one > tag} if self.above else self.above
        else:
            self.above.add(tag)
        while self.watermark + 1 in self.above:
            self.watermark += 1
            self.above.remove(self.watermark)


_FATAL = {
    wire.CONNECTION_CLOSE: "connection.close",
    wire.CHANNEL_CLOSE: "channel.close",
    wire.BASIC_CANCEL: "basic.cancel",
}
_END = 0xCE
_HEAD_BYTES = 16  # how much of a body the frame walk passes to `on_bodies`

BodyCallback = Callable[[bytes | bytearray, int, int, int], None]  # buffer, offset, stride, number of bodies


class Scanner:
    """Count the frames that a broker sends on one connection.

    Units: `deliveries` counts messages whose last body byte has arrived, `body_bytes` the bytes of their bodies;
    `walked` is the number of deliveries counted by the frame walk instead of by stride.
    Shapes: `on_bodies(buffer, at, stride, count)` is called with `count` bodies, the first one at `at`, `stride` bytes
    apart; for a walked delivery it is called with the first bytes alone.
    """

    def __init__(self, *, lenient: bool = False, on_bodies: BodyCallback | None = None) -> None:
        """Start counting; a `lenient` scanner counts nacked and returned messages instead of raising an error."""
        self.confirms = Confirms()
        self.nacked = 0
        self.returned = 0
        self.settled = 0  # answers to `round_trip`; each proves that the broker has read everything sent before it
        self.blocked_for = ""  # the reason in connection.blocked, until connection.unblocked
        self._lenient = lenient
        self._on_bodies = on_bodies
        self._returning = False
        self._head = b""
        self.deliveries = 0
        self.walked = 0
        self.body_bytes = 0
        self._delivery_at = -1  # offset of the current delivery in this buffer; -1 if it began in an earlier one
        self._body_left = 0
        self._body_size = 0
        self._sizes: list[int] = []  # frame sizes of the current delivery

    def scan(self, buffer: bytearray, end: int) -> int:
        """Count every complete frame in `buffer[:end]` and return the length of these frames in bytes.

        Raises: Refusal, BrokenStream.
        Cost: a few slices per buffer of equal deliveries, else one step per frame.
        """
        at = 0
        self._delivery_at = -1
        while (after := self._walk(buffer, at, end)) != at:
            at = after
        return at

    def _walk(self, buffer: bytearray, at: int, end: int) -> int:
        """Parse frames up to the first complete delivery, and count the equal ones after it; return where they end."""
        while end - at >= wire.FRAME_OVERHEAD_BYTES:
            kind, _, size = wire.FRAME_HEAD.unpack_from(buffer, at)
            after = at + size + wire.FRAME_OVERHEAD_BYTES
            if after > end:
                break
            if buffer[after - 1] != _END:
                raise BrokenStream(f"frame of type {kind} and {size} bytes does not end with 0xCE")
            if kind == wire.METHOD:
                self._method(buffer, at, size)
            elif kind == wire.HEADER:
                self._body_left = self._body_size = int.from_bytes(buffer[at + 11 : at + 19], "big")
                self._sizes.append(size)
            elif kind == wire.BODY:
                if self._on_bodies and self._body_left == self._body_size:
                    self._head = bytes(buffer[at + 7 : at + 7 + min(size, _HEAD_BYTES)])
                self._body_left -= size
                self._sizes.append(size)
            elif kind != wire.HEARTBEAT:
                raise BrokenStream(f"frame type {kind}")
            at = after
            if kind in (wire.HEADER, wire.BODY) and self._body_left <= 0:
                return self._delivered(buffer, at, end)
        return at

    def _method(self, buffer: bytearray, at: int, size: int) -> None:
        name = wire.METHOD_HEAD.unpack_from(buffer, at + 7)
        if name == wire.BASIC_DELIVER:
            self._sizes = [size]
            self._delivery_at = at
        elif name == wire.BASIC_ACK:
            self.confirms.add(int.from_bytes(buffer[at + 11 : at + 19], "big"), multiple=bool(buffer[at + 19] & 1))
        elif name in _FATAL:
            raise Refusal(f"{_FATAL[name]}: {reason(bytes(buffer[at + 7 : at + 7 + size]))}")
        elif name == wire.CONNECTION_BLOCKED:
            self.blocked_for = reason(bytes(buffer[at + 7 : at + 7 + size])) or "without a reason"
        elif name == wire.CONNECTION_UNBLOCKED:
            self.blocked_for = ""
        elif name == wire.BASIC_QOS_OK:
            self.settled += 1
        elif name == wire.BASIC_RETURN and self._lenient:
            self._returning = True
            self._sizes = [size]
        elif name == wire.BASIC_NACK and self._lenient:
            settled = self.confirms.count
            self.confirms.add(int.from_bytes(buffer[at + 11 : at + 19], "big"), multiple=bool(buffer[at + 19] & 1))
            self.nacked += self.confirms.count - settled
        else:
            raise BrokenStream(f"method {name} was not expected while messages flow")

    def _delivered(self, buffer: bytearray, after: int, end: int) -> int:
        """Count a complete delivery and the equal ones that follow it, or one returned message; return where they end.

        Equal deliveries have the same frame types, low octets of ids and sizes, and frame ends.
        """
        shape, self._sizes = self._sizes, []
        if self._returning:
            self._returning = False
            self.returned += 1
            return after
        if self._on_bodies and self._body_size:
            self._on_bodies(self._head, 0, 0, 1)
        self.walked += 1
        count, begun_at = 1, self._delivery_at
        stride = sum(shape) + 3 * wire.FRAME_OVERHEAD_BYTES
        if len(shape) == 3 and 0 <= begun_at == after - stride:  # contiguous, without another frame in between
            offsets, start = [8, 10], 0  # low octets of class and method id
            for size in shape:
                offsets += [start, start + 5, start + 6, start + size + 7]
                start += size + wire.FRAME_OVERHEAD_BYTES
            count = equal_run(buffer, begun_at, stride, (end - begun_at) // stride, offsets)
            if self._on_bodies and count > 1:
                self._on_bodies(buffer, after + stride - 1 - shape[2], stride, count - 1)
        self.deliveries += count
        self.body_bytes += count * self._body_size
        return after + (count - 1) * stride


def equal_run(buffer: bytearray, at: int, stride: int, count: int, offsets: list[int]) -> int:
    """Return how many of `count` packets from `at` on are certain to equal the first one at these offsets; at least 1.

    Try all of them, then half of them, and so on, so that a different packet among them costs only a few slices.
    """
    while count > 1:
        stop = at + count * stride
        if all(buffer[at + offset : stop : stride].count(buffer[at + offset]) == count for offset in offsets):
            break
        count //= 2
    return max(1, count)


def reason(payload: bytes) -> str:
    """Return the text of a close (with its code) or blocked method, or the tag of a cancel, to show to the user."""
    name = wire.METHOD_HEAD.unpack_from(payload)
    if name in (wire.CONNECTION_CLOSE, wire.CHANNEL_CLOSE):
        code = int.from_bytes(payload[4:6], "big")
        return f"{code} {payload[7 : 7 + payload[6]].decode(errors='replace')}"
    return payload[5 : 5 + payload[4]].decode(errors="replace")
