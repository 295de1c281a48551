"""The packets that brokers of an overlay exchange.

A vector maps the names of leaf brokers to virtual times. Virtual times, serials and numbers start at 1; 0 means none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

Vector = Mapping[str, int]
"""Virtual times by the name of the leaf broker; a missing leaf has 0."""
NO_LIMIT = 1 << 62


class Space(NamedTuple):
    """The name of an exchange that takes part in the overlay, with its vhost: the same at all brokers."""

    vhost: str
    exchange: str


class Conjunction(NamedTuple):
    """A topic pattern of a space, as the canonical text of `broker.routing.pattern`."""

    space: Space
    pattern: str


class StreamName(NamedTuple):
    """The stream of the messages that clients of one leaf broker publish in one space. Its numbers are dense.

    After each start of its leaf, the first vector change gives a stream a new incarnation; its numbers continue. A data
    folder restored from an older copy reuses numbers, but never with the same incarnation.
    """

    leaf: str
    space: Space
    incarnation: int = 0


Incarnations = tuple[tuple[int, int], ...]
"""Incarnations of a stream, oldest first, each with the last number that a leaf received of it."""


class Data:
    """A message of a stream. Its content header and body are encoded, and the overlay never decodes them.

    `copies` are the additional routing keys from its CC header. `encoded` is the element as received over a link, to be
    forwarded unchanged; it ends with the content. It is empty for an element created here.
    HOT: a plain class, because the __init__ of a dataclass is not compiled.
    """

    __slots__ = ("_content", "copies", "encoded", "key", "number")

    def __init__(
        self,
        number: int,
        key: str,
        content: bytes | memoryview | int,
        copies: tuple[str, ...] = (),
        encoded: bytes = b"",
    ) -> None:
        """With `encoded`, `content` may be just its size: a broker that only forwards the message copies nothing."""
        self.number = number
        self.key = key
        self._content = content
        self.copies = copies
        self.encoded = encoded

    @property
    def content(self) -> bytes | memoryview:
        content = self._content
        if isinstance(content, int):
            encoded = self.encoded
            content = self._content = encoded[len(encoded) - content :]
        return content

    @property
    def size_bytes(self) -> int:
        content = self._content
        return content if isinstance(content, int) else len(content)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Data):
            return NotImplemented
        return (self.number, self.key, self.content, self.copies) == (
            other.number,
            other.key,
            other.content,
            other.copies,
        )

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"Data({self.number}, {self.key!r}, {bytes(self.content)!r}, {self.copies})"


@dataclass(frozen=True, slots=True)
class VectorChange:
    """A change of the vector against which the later messages of a stream are matched.

    `incarnation` is the incarnation of the stream from this number on; each begins with a vector change.
    """

    number: int
    old: Vector
    new: Vector
    incarnation: int = 0


Element = Data | VectorChange
"""An entry of a stream. Each has a number."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first packet in each direction of a link.

    A session is a number that the sender never used before; each session starts with new serials. `subscriptions` says
    whether patterns are announced over the link; both ends must agree. The sender accepts messages of at most
    `message_bytes`, header and body together. `process` is a number unique to the sender's process.
    """

    broker: str
    tree_node: str
    session: int
    leaf: bool
    version: int
    subscriptions: bool = True
    message_bytes: int = NO_LIMIT
    process: int = 0


@dataclass(frozen=True, slots=True)
class Update:
    """A part of a change of the sender's announcements. The change is complete with its last part. A full update
    replaces everything that the receiver knows from the sender; otherwise the fields are differences:

    - `slice`: the new leaves, and those with a later virtual time, each with its time
    - `gone`: the leaves no longer reached through the sender
    - `interested`: all interested leaves of each space whose leaves have changed; none if the space has ended
    - `touched`: the spaces whose bindings have changed at a leaf, even if no conjunction has
    - `durable`: all leaves with durable bindings, or None if unchanged
    - `unreachable`: all announced leaves that the sender cannot reach now, or None if unchanged
    """

    serial: int
    full: bool
    last: bool
    added: tuple[Conjunction, ...] = ()
    removed: tuple[Conjunction, ...] = ()
    slice: Vector = field(default_factory=dict)
    gone: tuple[str, ...] = ()
    interested: tuple[tuple[Space, tuple[str, ...]], ...] = ()
    touched: tuple[Space, ...] = ()
    durable: tuple[str, ...] | None = None
    unreachable: tuple[str, ...] | None = None


class Contradiction(ValueError):
    """An announcement contradicts that of another broker; the text says how. The link it came over must be closed."""


@dataclass(frozen=True, slots=True)
class UpdateAck:
    """The acknowledgement of all updates up to a serial.

    If the receiver is a leaf, `time` is the latest virtual time of that leaf that the sender knows.
    """

    serial: int
    time: int = 0


@dataclass(frozen=True, slots=True)
class Resync:
    """The request for a full update: none has arrived in this session, or the sender checks that the peer is alive."""


@dataclass(frozen=True, slots=True)
class StreamRun:
    """The numbers from `first` to `last` of a stream. A number without an element is silent: no leaf beyond the
    receiver wants it.

    `vector_at` is the number of the vector change in force before `first`, or 0 if there is none. `vector` is that
    change's new vector, or None if it was sent before in the link session or the sender does not know it. An empty run
    (`first` is `last` + 1) is a tip: it says that the stream has reached `last`. `target` is the leaf that requested
    the run; an empty `target` means all leaves. `lost` means that the numbers were removed from the stream before all
    leaves had received them, or that a broker on the path does not accept a message of that size.
    """

    stream: StreamName
    first: int
    last: int
    vector_at: int
    elements: tuple[Element, ...] = ()
    target: str = ""
    lost: bool = False
    vector: Vector | None = None


@dataclass(frozen=True, slots=True)
class Nack:
    """A request of a leaf to the publishing leaf for missing numbers of a stream. With `first` 0 it asks for the stream
    starting at the vector change that reaches `vst`, the leaf's virtual start time. A leaf that received `former`
    incarnations of the stream asks for the numbers after those. `limit_bytes` limits the answer's bytes in flight.
    """

    stream: StreamName
    first: int
    last: int
    leaf: str
    vst: int
    limit_bytes: int
    former: Incarnations = ()


@dataclass(frozen=True, slots=True)
class Ack:
    """The acknowledgement of a stream up to a number, by all interested leaves that are reached through the sender.

    These are the leaves that the sender has announced in the updates up to `serial`. A receiver that has applied fewer
    updates, or more, ignores the ack, because its set of leaves differs.
    """

    stream: StreamName
    number: int
    serial: int


InterestPacket = Update | UpdateAck | Resync
"""The packets with which brokers announce the interest of the leaves beyond them."""

Packet = Hello | InterestPacket | StreamRun | Nack | Ack


def exceeds(run: StreamRun, limit_bytes: int) -> bool:
    """Return whether a run contains a message above a limit. Cost: O(elements)."""
    for element in run.elements:  # noqa: SIM110 - called for each run to each neighbour, and a generator costs more
        if isinstance(element, Data) and element.size_bytes > limit_bytes:
            return True
    return False


def within_limit(run: StreamRun, limit_bytes: int) -> list[StreamRun]:
    """Split a run so that each message above the limit becomes a separate run marked as lost."""
    parts: list[StreamRun] = []
    kept: list[Element] = []
    first, at, vector = run.first, run.vector_at, run.vector
    kept_at, kept_vector = at, vector  # in force after the kept numbers

    def add(last: int, *, lost: bool) -> None:
        parts.append(replace(run, first=first, last=last, vector_at=at, elements=tuple(kept), lost=lost, vector=vector))

    for element in run.elements:
        if isinstance(element, VectorChange):
            kept_at, kept_vector = element.number, element.new
        elif element.size_bytes > limit_bytes:
            if first < element.number:
                add(element.number - 1, lost=False)
                at, vector = kept_at, kept_vector if run.target else None
            kept.clear()
            first = element.number
            add(element.number, lost=True)
            first, vector = element.number + 1, kept_vector if run.target else None
            continue
        kept.append(element)
    if first <= run.last:
        add(run.last, lost=False)
    return parts
