"""The delivery tags of one channel and what they stand for (street step 12)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, takewhile
from typing import TYPE_CHECKING, TypeAlias

from broker.amqp.errors import ChannelError

if TYPE_CHECKING:
    from broker.core.consumer import Consumer
    from broker.core.stream import Stream
    from broker.slots.slot import Slot

__all__ = ["Delivery", "Unacked", "by_slot"]


# One delivered, unsettled message: where it is in its queue's stream, and who has it (None: fetched by basic.get). A
# plain tuple, because one is made per delivery and a NamedTuple costs several times as much to build.
Delivery: TypeAlias = "tuple[Stream, Slot, int, Consumer | None]"


class Unacked:
    """Numbers deliveries and keeps those that wait for an acknowledgement.

    Invariant: tags ascend in ``deliveries``, which therefore is in delivery order.
    """

    __slots__ = ("_lowest", "aside", "deliveries", "last_tag")

    def __init__(self) -> None:
        self.last_tag = 0
        self._lowest = 1  # no tag below it waits; it only grows, so looking for those up to a tag costs each tag once
        self.deliveries: dict[int, Delivery] = {}
        self.aside: dict[int, Delivery] = {}  # acknowledged in a transaction that was not committed yet

    def add(self, delivery: Delivery) -> int:
        """Gives the next delivery tag to a delivery that needs an acknowledgement."""
        self.last_tag += 1
        self.deliveries[self.last_tag] = delivery
        return self.last_tag

    def take(self, tag: int, *, multiple: bool) -> list[Delivery]:
        """Removes and returns the deliveries that an acknowledgement names.

        Shapes: tag 0 with multiple names all of them.
        Raises: ChannelError 406 for a tag that is not waiting.
        """
        deliveries = self.deliveries
        if multiple and not tag:
            return self.take_all()
        if not multiple:
            delivery = deliveries.pop(tag, None)
            if delivery is None:
                raise ChannelError(406, f"unknown delivery tag {tag}")
            return [delivery]
        if tag not in deliveries:
            raise ChannelError(406, f"unknown delivery tag {tag}")
        named = [deliveries.pop(waiting) for waiting in range(self._lowest, tag + 1) if waiting in deliveries]
        self._lowest = tag + 1
        return named

    @property
    def oldest(self) -> int | None:
        """The tag that has waited longest, None when nothing waits."""
        return next(iter(self.deliveries), None)

    def indexes_of(self, slot: Slot) -> list[int]:
        """Lists the messages of one slot that wait. Cost: everything that waits."""
        waiting = chain(self.deliveries.values(), self.aside.values())
        return [index for _stream, held, index, _consumer in waiting if held is slot]

    def take_all(self) -> list[Delivery]:
        """Removes and returns everything that waits."""
        taken = list(self.deliveries.values())
        self.deliveries.clear()
        self._lowest = self.last_tag + 1
        return taken

    # -- transactions -------------------------------------------------------------------------------------------------

    def set_aside(self, tag: int, *, multiple: bool) -> list[int]:
        """Sets the deliveries that an acknowledgement names aside and returns their tags.

        Raises: ChannelError 406 for a tag that is not waiting, which one set aside is not.
        """
        tags = [tag]
        if multiple:
            tags = (
                list(self.deliveries) if not tag else list(takewhile(lambda waiting: waiting <= tag, self.deliveries))
            )
        self.aside.update(zip(tags, self.take(tag, multiple=multiple), strict=True))
        return tags

    def take_aside(self, tags: Iterable[int]) -> list[Delivery]:
        """Removes and returns deliveries that were set aside."""
        return [self.aside.pop(tag) for tag in tags]

    def put_back(self) -> None:
        """Has everything set aside wait again, in its place. Cost: everything that waits."""
        if self.aside:
            deliveries = sorted({**self.deliveries, **self.aside}.items())
            self._lowest = min(self._lowest, deliveries[0][0])
            self.aside.clear()
            self.deliveries.clear()
            self.deliveries.update(deliveries)


def by_slot(deliveries: Iterable[Delivery]) -> list[tuple[Stream, Slot, list[int] | range]]:
    """Groups deliveries by slot; consecutive indexes become a range, which settles in one step."""
    groups: dict[Slot, tuple[Stream, list[int]]] = {}
    for stream, slot, index, _consumer in deliveries:
        group = groups.get(slot)
        if group is None:
            groups[slot] = (stream, [index])
        else:
            group[1].append(index)
    result: list[tuple[Stream, Slot, list[int] | range]] = []
    for slot, (stream, indexes) in groups.items():
        low, high = min(indexes), max(indexes)
        dense = high - low + 1 == len(indexes)
        result.append((stream, slot, range(low, high + 1) if dense else sorted(indexes)))
    return result
