"""The memory that an object holds."""

from sys import getsizeof

from broker.routing.index import footprint_bytes


class Holder:
    """Holds one object."""

    __slots__ = ("thing",)

    def __init__(self, thing: object) -> None:
        self.thing = thing

    def take(self) -> object:
        """Return the object."""
        return self.thing


def test_everything_within_counts() -> None:
    """A container counts with its items, and their items."""
    inner = ["x" * 1000]
    outer = {"key": inner}
    assert footprint_bytes(outer) == sum(getsizeof(item) for item in (outer, "key", inner, inner[0]))


def test_what_is_shared_counts_once() -> None:
    """An object that several paths reach, or a cycle, counts once."""
    text = "x" * 1000
    ring: list[object] = [text, text]
    ring.append(ring)
    assert footprint_bytes(ring) == getsizeof(ring) + getsizeof(text)


def test_classes_and_code_do_not_count() -> None:
    """An instance refers to its class and a method to its module, but neither counts."""
    holder = Holder(None)
    bound = holder.take
    assert footprint_bytes(holder) == getsizeof(holder) + getsizeof(None)
    assert footprint_bytes((Holder, len, test_classes_and_code_do_not_count)) == getsizeof((None,) * 3)
    assert footprint_bytes(bound) == getsizeof(bound) + footprint_bytes(holder)


def test_a_closed_type_counts_alone() -> None:
    """The contents of a closed type do not count, unless something else holds them."""
    text = "x" * 1000
    holder = Holder(text)
    assert footprint_bytes([holder], closed=(Holder,)) == getsizeof([None]) + getsizeof(holder)
    assert footprint_bytes([holder, text], closed=(Holder,)) == getsizeof([None] * 2) + getsizeof(holder) + getsizeof(
        text
    )
