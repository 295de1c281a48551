"""Counts deliveries and confirms in received bytes by offset, without decoding a message.

A generator that walks three frames per delivery in Python costs as much as the broker it measures. Deliveries of a
benchmark all have the same size, because its routing keys have, so strided slices, which run in C, verify a whole
buffer of them. Any other frame in between (a heartbeat, a confirm, another size) falls back to the frame walk.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.perf import wire
from broker.perf.faults import BrokenStream, Refusal


class Confirms:
    """The confirmed publish sequence numbers: a watermark and the few numbers above it.

    Invariant: every number up to `watermark` is confirmed, and `above` holds no number up to `watermark` + 1.
    """

    def __init__(self) -> None:
        self.watermark = 0
        self.above: set[int] = set()
        self.frames = 0

    @property
    def count(self) -> int:
        """Return how many messages are confirmed."""
        return self.watermark + len(self.above)

    def add(self, tag: int, *, multiple: bool) -> None:
        """Count one basic.ack; a repeated tag changes nothing.

        Cost: one step per tag, and one more per number above the watermark when the watermark passes it.
        """
        self.frames += 1
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
_HEAD_BYTES = 16  # of a body that the frame walk passes to `watch`

Watch = Callable[[bytes | bytearray, int, int, int], None]


class Scanner:
    """Counts what a broker sends on one connection.

    Units: `deliveries` counts messages whose last body byte has arrived; `body_bytes` their bodies;
    `walked` how many deliveries went through the frame walk (the rest were counted by stride).
    Shapes: `watch(buffer, at, stride, count)` receives `count` bodies, the first one at `at`, `stride` bytes apart; of
    a walked delivery it receives the first bytes only.
    """

    def __init__(self, *, lenient: bool = False, watch: Watch | None = None) -> None:
        """Start counting; a `lenient` scanner counts refused and returned messages instead of raising."""
        self.confirms = Confirms()
        self.nacked = 0
        self.returned = 0
        self.settled = 0  # answers to basic.qos: the broker has read everything sent before it
        self.blocked_for = ""  # the reason of connection.blocked, until unblocked
        self._lenient = lenient
        self._watch = watch
        self._returning = False
        self._head = b""
        self._body_at = 0
        self.deliveries = 0
        self.walked = 0
        self.body_bytes = 0
        self.blocked = 0
        self.last_tag = 0
        self._begun_at = -1  # where in this buffer the current delivery begins; -1: in an earlier one
        self._body_left = 0
        self._body_size = 0
        self._sizes: list[int] = []  # frame sizes of the current delivery
        self._shape: tuple[int, ...] = ()
        self._stride = 0
        self._tag_at = 0
        self._probes: tuple[tuple[int, int], ...] = ()

    def scan(self, buffer: bytearray, end: int) -> int:
        """Count every whole frame in `buffer[:end]` and return how many bytes they occupy.

        Raises: Refusal, BrokenStream.
        Cost: a few slices per buffer of equal deliveries, else one step per frame.
        """
        at = 0
        self._begun_at = -1
        while at < end:
            if self._stride and not self._sizes:
                at = self._skip_equal(buffer, at, end)
            after = self._walk(buffer, at, end)
            if after == at:
                break
            at = after
        return at

    def _skip_equal(self, buffer: bytearray, at: int, end: int) -> int:
        """Count deliveries of the known shape that start at `at` and return where they end.

        Try the whole buffer, then half of it and so on, so that one other frame in between costs a few slices.
        """
        stride = self._stride
        count = (end - at) // stride
        while count and not self._all_equal(buffer, at, count):
            count //= 2
        if not count:
            return at
        stop = at + count * stride
        self.deliveries += count
        self.body_bytes += count * self._body_size
        tag_at = stop - stride + self._tag_at
        self.last_tag = int.from_bytes(buffer[tag_at : tag_at + 8], "big")
        if self._watch:
            self._watch(buffer, at + self._body_at, stride, count)
        return stop

    def _all_equal(self, buffer: bytearray, at: int, count: int) -> bool:
        stride = self._stride
        stop = at + count * stride
        return all(buffer[at + offset : stop : stride].count(octet) == count for offset, octet in self._probes)

    def _walk(self, buffer: bytearray, at: int, end: int) -> int:
        """Parse whole frames one by one to the end of the first complete delivery; return where the last one ends."""
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
                if self._watch and self._body_left == self._body_size:
                    self._head = bytes(buffer[at + 7 : at + 7 + min(size, _HEAD_BYTES)])
                self._body_left -= size
                self._sizes.append(size)
            elif kind != wire.HEARTBEAT:
                raise BrokenStream(f"frame type {kind}")
            at = after
            if kind in (wire.HEADER, wire.BODY) and self._body_left <= 0:
                self._delivered(buffer, at)
                break
        return at

    def _method(self, buffer: bytearray, at: int, size: int) -> None:
        name = wire.METHOD_HEAD.unpack_from(buffer, at + 7)
        if name == wire.BASIC_DELIVER:
            self._sizes = [size]
            self._begun_at = at
            tag_at = at + 12 + buffer[at + 11]
            self.last_tag = int.from_bytes(buffer[tag_at : tag_at + 8], "big")
            self._tag_at = tag_at - at
        elif name == wire.BASIC_ACK:
            self.confirms.add(int.from_bytes(buffer[at + 11 : at + 19], "big"), multiple=bool(buffer[at + 19] & 1))
        elif name in _FATAL:
            raise Refusal(f"{_FATAL[name]}: {reason(bytes(buffer[at + 7 : at + 7 + size]))}")
        elif name == wire.CONNECTION_BLOCKED:
            self.blocked += 1
            self.blocked_for = reason(bytes(buffer[at + 7 : at + 7 + size])) or "no reason given"
        elif name == wire.CONNECTION_UNBLOCKED:
            self.blocked_for = ""
        elif name == wire.BASIC_QOS_OK:
            self.settled += 1
        else:
            self._refused(buffer, at, size)

    def _refused(self, buffer: bytearray, at: int, size: int) -> None:
        """Count a message that the broker nacked or returned.

        Raises: Refusal unless lenient, BrokenStream for any other method.
        """
        name = wire.METHOD_HEAD.unpack_from(buffer, at + 7)
        if name not in (wire.BASIC_NACK, wire.BASIC_RETURN):
            raise BrokenStream(f"method {name} was not expected while messages flow")
        if not self._lenient:
            which = "basic.nack" if name == wire.BASIC_NACK else "basic.return"
            raise Refusal(f"{which}: {reason(bytes(buffer[at + 7 : at + 7 + size]))}")
        if name == wire.BASIC_RETURN:
            self._returning = True
            self._sizes = [size]
            return
        settled = self.confirms.count
        self.confirms.add(int.from_bytes(buffer[at + 11 : at + 19], "big"), multiple=bool(buffer[at + 19] & 1))
        self.nacked += self.confirms.count - settled

    def _delivered(self, buffer: bytearray, after: int) -> None:
        """Count a walked delivery; two of one shape in a row define the stride."""
        if self._returning:
            self._returning, self._sizes = False, []
            self.returned += 1
            return
        if self._watch and self._body_size:
            self._watch(self._head, 0, 0, 1)
        self.deliveries += 1
        self.walked += 1
        self.body_bytes += self._body_size
        shape, self._sizes = tuple(self._sizes), []
        if shape != self._shape:
            self._shape, self._stride = shape, 0
        elif not self._stride and len(shape) == 3:
            stride = sum(shape) + 3 * wire.FRAME_OVERHEAD_BYTES
            if after - self._begun_at == stride and self._begun_at >= 0:  # contiguous, without another frame in between
                self._stride = stride
                self._learn(buffer, self._begun_at, shape)

    def _learn(self, buffer: bytearray, first: int, shape: tuple[int, ...]) -> None:
        """Derive from one delivery what all deliveries of its shape share: types, low octets of sizes and ids, ends."""
        self._body_at = shape[0] + shape[1] + 2 * wire.FRAME_OVERHEAD_BYTES + wire.FRAME_HEAD.size
        offsets = [8, 10]  # low octets of class and method id
        start = 0
        for size in shape:
            offsets += [start, start + 5, start + 6, start + size + 7]
            start += size + wire.FRAME_OVERHEAD_BYTES
        self._probes = tuple((offset, buffer[first + offset]) for offset in offsets)


def reason(payload: bytes) -> str:
    """Return the reason in a close, cancel, return, nack or blocked method payload, for a message to the user."""
    name = wire.METHOD_HEAD.unpack_from(payload)
    if name in (wire.CONNECTION_CLOSE, wire.CHANNEL_CLOSE, wire.BASIC_RETURN):
        code = int.from_bytes(payload[4:6], "big")
        return f"{code} {payload[7 : 7 + payload[6]].decode(errors='replace')}"
    if name == wire.BASIC_NACK:
        return f"tag {int.from_bytes(payload[4:12], 'big')}"
    return payload[5 : 5 + payload[4]].decode(errors="replace")
