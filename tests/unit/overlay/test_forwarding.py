"""One stream at an inner broker."""

from __future__ import annotations

from broker.overlay.aggregation import Aggregation
from broker.overlay.forwarding import Forwarding, ForwardingCounts
from broker.overlay.interest import Interest
from broker.overlay.packets import Data, Element, Space, StreamName, StreamRun, Vector, VectorChange

STREAM = StreamName("pb", Space("/", "orders"))


class Known(Interest):
    """The knowledge of a broker: `sb` is in the direction `down`, up to a time, and wants keys."""

    def __init__(self, time: int, *keys: str) -> None:
        super().__init__("own", ("up", "down", "aside"), Aggregation.COVERING, 100)
        self.known_time = time
        self.keys = keys

    def wanting(self, space: Space, key: str) -> tuple[str, ...]:
        """Return the directions that want a key."""
        return ("down",) if key in self.keys else ()

    def answers(self, space: Space) -> dict[str, tuple[str, ...]]:
        """Return what it was asked for before: nothing."""
        return {}

    def sufficient(self, node: str, space: Space, vector: Vector) -> bool:
        """Return whether enough is known of `sb`."""
        return self.known_time >= vector.get("sb", 0)

    def direction(self, leaf: str) -> str | None:
        """Return where a leaf is."""
        return {"sb": "down", "pb": "up", "other": "aside"}.get(leaf)


def run(first: int, *elements: Element, vector_at: int = 1) -> StreamRun:
    """Return a run whose elements are all that it has."""
    return StreamRun(STREAM, first, first + len(elements) - 1, vector_at, elements)


def data(number: int, key: str = "unwanted") -> Data:
    """Return a message."""
    return Data(number, key, b"")


def forward(forwarding: Forwarding, part: StreamRun, known: Known, node: str = "down") -> list[StreamRun]:
    """Return the elements forwarded towards a node."""
    forwarding.record(part, "up")
    return forwarding.forward(part, node, known, ForwardingCounts(), 0)


def begun(time: int = 3) -> Forwarding:
    """Return a stream whose first number is the vector in which `sb` has a time."""
    forwarding = Forwarding(STREAM)
    forwarding.record(run(1, VectorChange(1, {}, {"sb": time}), vector_at=0), "up")
    return forwarding


def test_a_message_is_wanted_by_any_of_its_keys() -> None:
    """Those of the header CC count as the routing key does."""
    forwarding, known = begun(), Known(3, "wanted")
    copied, other = Data(2, "unwanted", b"", ("more", "wanted")), Data(3, "unwanted", b"", ("more",))
    assert forward(forwarding, run(2, copied, other), known) == [StreamRun(STREAM, 2, 3, 1, (copied,))]


def test_what_nobody_wants_is_silent_and_goes_with_what_follows() -> None:
    """UnwantedRange costs no packet of its own while something follows."""
    forwarding, known = begun(), Known(3, "wanted")
    assert forward(forwarding, run(2, data(2)), known) == []
    assert forward(forwarding, run(3, data(3), data(4, "wanted")), known) == [
        StreamRun(STREAM, 2, 4, 1, (data(4, "wanted"),))
    ]


def test_silence_is_never_claimed_over_a_gap() -> None:
    """Numbers that did not arrive here are for others to tell."""
    forwarding, known = begun(), Known(3, "wanted")
    forward(forwarding, run(2, data(2)), known)
    assert forward(forwarding, run(5, data(5)), known) == [StreamRun(STREAM, 2, 2, 1)]
    assert forward(forwarding, run(7, data(7, "wanted")), known) == [
        StreamRun(STREAM, 5, 5, 1),
        run(7, data(7, "wanted")),
    ]


def test_a_broker_that_knows_too_little_passes_everything_until_it_knows_more() -> None:
    """Also while the result of the comparison is cached."""
    forwarding, known = begun(time=4), Known(3)
    assert forward(forwarding, run(2, data(2)), known) == [run(2, data(2))]
    known.known_time = 4
    known.version += 1
    assert forward(forwarding, run(3, data(3)), known) == []
    known.known_time = 0
    known.version += 1
    assert forward(forwarding, run(4, data(4)), known)[-1].elements == (data(4),)


def test_an_unknown_vector_demands_everything() -> None:
    """A broker that takes over a stream has not seen its vector."""
    forwarding, known = Forwarding(STREAM), Known(3)
    assert forward(forwarding, run(9, data(9), vector_at=7), known) == [run(9, data(9), vector_at=7)]


def test_a_direction_without_a_leaf_of_the_vector_gets_nothing() -> None:
    """Not even silence; but a leaf that is nowhere known may be there."""
    forwarding, known = begun(), Known(3, "wanted")
    assert forward(forwarding, run(2, data(2, "wanted")), known, "aside") == []
    assert forwarding.flush("aside") == []
    change = run(3, VectorChange(3, {"sb": 3}, {"sb": 3, "stranger": 1}))
    assert forward(forwarding, change, known, "aside") == [change]


def test_a_vector_change_passes_where_a_leaf_enters_or_leaves_it() -> None:
    """Both begin or end what the leaf may expect."""
    forwarding, known = begun(), Known(3)
    leaving = run(2, VectorChange(2, {"sb": 3}, {}))
    assert forward(forwarding, leaving, known) == [leaving]


def test_a_repair_is_answered_at_once_even_if_all_is_silent() -> None:
    """The leaf waits for it."""
    forwarding, known = begun(), Known(3)
    asked = StreamRun(STREAM, 2, 2, 1, (data(2),), "sb", vector={"sb": 3})
    assert forward(forwarding, asked, known) == [StreamRun(STREAM, 2, 2, 1, (), "sb", vector={"sb": 3})]
