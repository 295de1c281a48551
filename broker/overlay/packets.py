"""The packets between the brokers of an overlay, as values.

A vector maps the names of leaf brokers to virtual times. Virtual times, serials and numbers begin with 1; 0 means none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

Vector = Mapping[str, int]
"""Virtual times by the name of the leaf broker; a leaf that is not named has 0."""
NO_LIMIT = 1 << 62


class Space(NamedTuple):
    """One exchange that takes part in the overlay, at all brokers alike."""

    vhost: str
    exchange: str


class Conjunction(NamedTuple):
    """A topic pattern of a space, as the canonical text of `broker.routing.pattern`."""

    space: Space
    pattern: str


class StreamName(NamedTuple):
    """The stream of the messages that clients of one leaf broker publish in one space. Its numbers are dense.

    After each start of its leaf a stream has a new incarnation, from the first message on; its numbers continue. A data
    folder restored from an older copy reuses numbers, but never with the same incarnation.
    """

    leaf: str
    space: Space
    incarnation: int = 0


Incarnations = tuple[tuple[int, int], ...]
"""Incarnations of a stream, oldest first, each with the last number that a leaf had received of it."""


class Data:
    """A message of a stream: its content header and body are encoded, and the overlay never decodes them.

    `copies` has the further routing keys of its header CC. `encoded` is the element as received over a link, empty for
    an element made here: it ends with the content, and is forwarded unchanged.
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
        """`content` may be its size, with an `encoded` element: a broker that only forwards it makes no copy."""
        self.number = number
        self.key = key
        self._content = content
        self.copies = copies
        self.encoded = encoded

    @property
    def content(self) -> bytes | memoryview:
        """The content header and the body."""
        content = self._content
        if isinstance(content, int):
            encoded = self.encoded
            content = self._content = encoded[len(encoded) - content :]
        return content

    @property
    def size_bytes(self) -> int:
        """The size of the content."""
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

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __repr__(self) -> str:
        return f"Data({self.number}, {self.key!r}, {bytes(self.content)!r}, {self.copies})"


@dataclass(frozen=True, slots=True)
class VectorChange:
    """The vector by which the later messages of a stream are matched, and the one that it replaces.

    `incarnation` is that of the stream from this number on. Each begins with a vector change.
    """

    number: int
    old: Vector
    new: Vector
    incarnation: int = 0


Element = Data | VectorChange
"""What a number of a stream stands for."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first packet in each direction of a link.

    A session is a number that the sender never used before: serials start over with each. `subscriptions` says whether
    patterns travel over the link; both ends have to agree. The sender takes no message of more than `message_bytes`,
    header and body together. `process` is a number that no other process has.
    """

    broker: str
    tree_node: str
    session: int
    leaf: bool
    version: int
    subscriptions: bool = True
    message_bytes: int = 1 << 62
    process: int = 0


@dataclass(frozen=True, slots=True)
class Update:
    """A part of a change of the sender's announcements; the receiver applies all parts at the last one, or none. A full
    update replaces everything that the receiver has of the sender. Otherwise `slice` has the leaves that are new or
    later, `gone` those no longer reached through the sender, `interested` all leaves of each space whose leaves have
    changed (none at all: the space is gone), and `durable`, if it is not None, all leaves with durable interest.
    `touched` lists the spaces whose bindings have changed at a leaf, even where no conjunction has. `unreachable`, if
    it is not None, lists all leaves in the slice to which no link of the sender leads now.
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
    """The announcement of a broker contradicts another one; the text says why. The link to it has to end."""


@dataclass(frozen=True, slots=True)
class UpdateAck:
    """All updates up to a serial have arrived.

    If the receiver is a leaf, `time` is the latest virtual time that the sender knows of it.
    """

    serial: int
    time: int = 0


@dataclass(frozen=True, slots=True)
class Resync:
    """An update before the received one is missing: send a full update."""


@dataclass(frozen=True, slots=True)
class StreamRun:
    """The numbers from `first` to `last` of a stream. Those without an element are silent: no leaf beyond wants them.

    `vector_at` is the number of the vector change in force before `first`, 0 if there is none. `vector` is its new
    vector; None means that it was sent before in the link session, or that the sender does not know it. A run without
    numbers, `first` being `last` + 1, is a tip: the stream has reached `last`. `target` is the only leaf that asked for
    the run; empty means all. `lost` means that a limit forced the numbers out of the stream before all leaves had them,
    or that a broker on the way accepts no message of that size.
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
    """A leaf lacks numbers of a stream, and asks the publishing leaf for them. With `first` 0 it asks for the stream
    starting at the vector change that reaches `vst` for this leaf. If it `had` the stream in other incarnations up to a
    number each, it asks for the numbers after these.
    """

    stream: StreamName
    first: int
    last: int
    leaf: str
    vst: int
    limit_bytes: int
    had: Incarnations = ()


@dataclass(frozen=True, slots=True)
class Ack:
    """All leaves reached through the sender that are interested in the space have a stream up to a number.

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
    """Return whether a run has a message above a limit. Cost: its elements."""
    for element in run.elements:  # noqa: SIM110 - each run to each neighbour passes here, and a generator costs more
        if isinstance(element, Data) and element.size_bytes > limit_bytes:
            return True
    return False


def within_limit(run: StreamRun, limit_bytes: int) -> list[StreamRun]:
    """Split a run so that each message above the limit becomes a part of its own that is lost."""
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
