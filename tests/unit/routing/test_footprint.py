"""The memory that an object holds."""

from sys import getsizeof

from broker.routing.footprint import footprint_bytes


class Holder:
    """Holds one thing."""

    __slots__ = ("thing",)

    def __init__(self, thing: object) -> None:
        self.thing = thing

    def take(self) -> object:
        """Return it."""
        return self.thing


def test_everything_within_counts() -> None:
    """A container, what it holds, and what that holds."""
    inner = ["x" * 1000]
    outer = {"key": inner}
    assert footprint_bytes(outer) == sum(getsizeof(item) for item in (outer, "key", inner, inner[0]))


def test_what_is_shared_counts_once() -> None:
    """Two ways to one object, and a way back to the start."""
    text = "x" * 1000
    ring: list[object] = [text, text]
    ring.append(ring)
    assert footprint_bytes(ring) == getsizeof(ring) + getsizeof(text)


def test_classes_and_code_do_not_count() -> None:
    """An instance leads to its class, and a method to its module; neither is held by it."""
    holder = Holder(None)
    bound = holder.take
    assert footprint_bytes(holder) == getsizeof(holder) + getsizeof(None)
    assert footprint_bytes((Holder, len, test_classes_and_code_do_not_count)) == getsizeof((None,) * 3)
    assert footprint_bytes(bound) == getsizeof(bound) + footprint_bytes(holder)


def test_a_closed_type_counts_alone() -> None:
    """What it holds is left out, unless something else holds it too."""
    text = "x" * 1000
    holder = Holder(text)
    assert footprint_bytes([holder], closed=(Holder,)) == getsizeof([None]) + getsizeof(holder)
    assert footprint_bytes([holder, text], closed=(Holder,)) == getsizeof([None] * 2) + getsizeof(holder) + getsizeof(
        text
    )
