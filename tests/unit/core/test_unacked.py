"""Delivery tags: what an acknowledgement names, and what it costs to find it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from broker.amqp.errors import ChannelError
from broker.core.unacked import Delivery, Unacked, by_slot
from broker.slots.slot import Slot

QUEUE: Any = object()
SLOT = Slot(1)


def unacked(count: int) -> Unacked:
    """Returns the tags 1 to `count`, all waiting; each stands for the message whose index is its tag."""
    made = Unacked()
    for tag in range(1, count + 1):
        assert made.add((QUEUE, SLOT, tag, None)) == tag
    return made


def tags(deliveries: list[Delivery]) -> list[int]:
    """Returns what the deliveries stand for."""
    return [index for _queue, _slot, index, _consumer in deliveries]


def test_a_tag_names_one_delivery_or_all_up_to_it() -> None:
    """A single tag names its delivery; with multiple it names those up to it that still wait, in order; 0 names all."""
    made = unacked(10)
    assert tags(made.take(3, multiple=False)) == [3]
    assert tags(made.take(5, multiple=True)) == [1, 2, 4, 5]
    assert tags(made.take(9, multiple=False)) == [9]
    assert tags(made.take(7, multiple=True)) == [6, 7]
    assert tags(made.take(0, multiple=True)) == [8, 10]
    assert made.add((QUEUE, SLOT, 11, None)) == 11
    assert tags(made.take_all()) == [11]
    assert made.take(0, multiple=True) == []


@pytest.mark.parametrize("multiple", [False, True])
@pytest.mark.parametrize("tag", [3, 11, 1 << 63])
def test_a_tag_that_does_not_wait_is_an_error(tag: int, multiple: bool) -> None:
    """A tag that was settled, or never given, is 406 PRECONDITION_FAILED and takes nothing."""
    made = unacked(10)
    made.take(3, multiple=False)
    with pytest.raises(ChannelError, match=f"unknown delivery tag {tag}") as refused:
        made.take(tag, multiple=multiple)
    assert refused.value.reply_code == 406
    assert len(made.deliveries) == 9


class WalkedDict(dict[int, Any]):
    """A dict that counts what its operations visit.

    A walk steps over the places of entries that were removed, as CPython's does until the table is made anew.
    """

    def __init__(self, entries: dict[int, Any]) -> None:
        super().__init__(entries)
        self._places = list(entries)
        self.visited = 0

    def __contains__(self, key: object) -> bool:
        self.visited += 1
        return super().__contains__(key)

    def __iter__(self) -> Iterator[int]:
        for key in self._places:
            self.visited += 1
            if super().__contains__(key):
                yield key

    def pop(self, key: int, *default: Any) -> Any:
        """Removes an entry, counting."""
        self.visited += 1
        return super().pop(key, *default)


@pytest.mark.parametrize("step", [1, 7])
def test_acks_with_multiple_visit_each_tag_once(step: int) -> None:
    """Acknowledging a long list from its front, bit by bit, costs each tag a few visits and not the list each time."""
    count = 1400
    made = unacked(count)
    made.deliveries = walked = WalkedDict(made.deliveries)
    for tag in range(step, count + 1, step):
        assert len(made.take(tag, multiple=True)) == step
    assert not made.deliveries
    assert walked.visited <= 4 * count


def test_deliveries_are_grouped_by_slot() -> None:
    """Neighbours in one slot become a range, others an ascending list."""
    other = Slot(100)
    deliveries: list[Delivery] = [(QUEUE, SLOT, index, None) for index in (5, 3, 4)]
    deliveries += [(QUEUE, other, index, None) for index in (9, 2)]
    assert by_slot(deliveries) == [(QUEUE, SLOT, range(3, 6)), (QUEUE, other, [2, 9])]
    made = unacked(0)
    for delivery in deliveries:
        made.add(delivery)
    assert sorted(made.indexes_of(other)) == [2, 9]
