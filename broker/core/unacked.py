"""The delivery tags of one channel and what they stand for (street step 12)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from broker.amqp.errors import ChannelError

if TYPE_CHECKING:
    from broker.core.consumer import Consumer
    from broker.core.queue import Queue
    from broker.slots.slot import Slot

__all__ = ["Delivery", "Unacked", "by_slot"]


# One delivered, unsettled message: where it is in its queue, and who has it (None: fetched by basic.get). A plain
# tuple, because one is made per delivery and a NamedTuple costs several times as much to build.
Delivery: TypeAlias = "tuple[Queue, Slot, int, Consumer | None]"


class Unacked:
    """Numbers deliveries and keeps those that wait for an acknowledgement.

    Invariant: tags ascend in ``deliveries``, which therefore is in delivery order.
    """

    __slots__ = ("_lowest", "deliveries", "last_tag")

    def __init__(self) -> None:
        self.last_tag = 0
        self._lowest = 1  # no tag below it waits; it only grows, so looking for those up to a tag costs each tag once
        self.deliveries: dict[int, Delivery] = {}

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

    def indexes_of(self, slot: Slot) -> list[int]:
        """Lists the messages of one slot that wait. Cost: everything that waits."""
        return [index for _queue, held, index, _consumer in self.deliveries.values() if held is slot]

    def take_all(self) -> list[Delivery]:
        """Removes and returns everything that waits."""
        taken = list(self.deliveries.values())
        self.deliveries.clear()
        self._lowest = self.last_tag + 1
        return taken


def by_slot(deliveries: Iterable[Delivery]) -> list[tuple[Queue, Slot, list[int] | range]]:
    """Groups deliveries by slot; consecutive indexes become a range, which settles in one step."""
    groups: dict[Slot, tuple[Queue, list[int]]] = {}
    for queue, slot, index, _consumer in deliveries:
        group = groups.get(slot)
        if group is None:
            groups[slot] = (queue, [index])
        else:
            group[1].append(index)
    result: list[tuple[Queue, Slot, list[int] | range]] = []
    for slot, (queue, indexes) in groups.items():
        low, high = min(indexes), max(indexes)
        dense = high - low + 1 == len(indexes)
        result.append((queue, slot, range(low, high + 1) if dense else sorted(indexes)))
    return result
