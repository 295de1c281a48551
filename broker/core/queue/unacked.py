"""The delivery tags of one channel and the messages to which they belong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, count
from operator import attrgetter
from typing import Final

from mypy_extensions import mypyc_attr

from broker.amqp.errors import ChannelError
from broker.core.queue.consumer_ring import RingMember
from broker.core.queue.level import Level
from broker.slots.slot import ONES, Slot, dense, single

EMPTY_MAX: Final = 32  # keep at most this many empty runs, or as many as there are non-empty ones, before compacting
LATE_MAX: Final = 256  # ranges of tags that may be acknowledged late; older ranges are forgotten

_searches: Final = count(1)  # numbers the calls of `differ`


@mypyc_attr(acyclic=True)  # when compiled, the garbage collector does not visit its instances
class SlotDelivery:
    """Messages of one slot that were delivered to one consumer or, if ``consumer`` is None, fetched by basic.get.
    Shapes: ``indexes`` are ``count`` ascending indexes from ``start`` on, as a range if they are dense, else as a list.
    """

    __slots__ = ("consumer", "count", "indexes", "level", "slot", "start")

    def __init__(
        self, level: Level, slot: Slot, indexes: Sequence[int], start: int, count: int, consumer: RingMember | None
    ) -> None:
        self.level = level
        self.slot = slot
        self.indexes = indexes
        self.start = start
        self.count = count
        self.consumer = consumer

    def parts(self, most: int) -> list[SlotDelivery]:
        """Divide the delivery into deliveries of at most `most` messages."""
        parts = [self.indexes[start : start + most] for start in range(0, self.count, most)]
        return [SlotDelivery(self.level, self.slot, part, part[0], len(part), self.consumer) for part in parts]


@mypyc_attr(acyclic=True)
class Run(SlotDelivery):
    """A delivery with consecutive delivery tags, some of whose messages may no longer be unacked.

    Shapes: ``indexes[tag - first]`` is the message of a tag, ``first <= tag <= last``.
    Invariant: ``left`` messages are unacked, and ``low`` is the tag of the first of them. ``removed`` marks the tags
        above ``low`` that are no longer unacked; None means that there are none.
    """

    __slots__ = ("first", "last", "left", "low", "removed")

    def __init__(
        self,
        first: int,
        level: Level,
        slot: Slot,
        indexes: Sequence[int],
        start: int,
        count: int,
        consumer: RingMember | None,
    ) -> None:
        # The parent's constructor is not used, because that would cost one call per delivery.
        self.level = level
        self.slot = slot
        self.indexes = indexes
        self.start = start
        self.count = count
        self.consumer = consumer
        self.first = self.low = first
        self.left = count
        self.last = first + count - 1
        self.removed: bytearray | None = None

    def remove(self, tag: int) -> None:
        """Remove one unacked message. Cost: O(removed tags after it), O(tags) for the first removal out of order."""
        self.left -= 1
        removed = self.removed
        if tag != self.low:
            if removed is None:
                removed = self.removed = bytearray(self.last - self.first + 1)
            removed[tag - self.first] = 1
        elif removed is None:
            self.low = tag + 1
        elif self.left:
            self.low = self.first + removed.find(0, tag - self.first + 1)

    def remove_up_to(self, tag: int) -> SlotDelivery:
        """Remove and return the unacked messages with tags up to `tag`, at least one. Cost: O(tags)."""
        if tag == self.last and self.left == self.count:
            self.left = 0
            return self  # the usual case: all messages
        indexes = self.waiting(tag)
        count = len(indexes)
        self.left -= count
        if self.left:
            removed = self.removed
            self.low = tag + 1 if removed is None else self.first + removed.find(0, tag - self.first + 1)
        return SlotDelivery(self.level, self.slot, indexes, indexes[0], count, self.consumer)

    def restore(self, tags: Sequence[int]) -> None:
        """Restore removed messages. Shapes: `tags` ascend."""
        first = self.first
        low = self.low if self.left else self.last + 1
        self.left += len(tags)
        self.low = min(low, tags[0])
        if self.left == self.count:
            self.removed = None
            return
        if self.removed is None:
            self.removed = bytearray(self.last - first + 1)
        self.removed[: low - first] = b"\1" * (low - first)
        if isinstance(tags, range):
            self.removed[tags.start - first : tags.stop - first] = bytes(len(tags))
        else:
            for tag in tags:
                self.removed[tag - first] = 0

    def waiting(self, tag: int) -> Sequence[int]:
        """Return the indexes of the unacked messages with tags up to `tag`."""
        indexes, removed = self.indexes, self.removed
        start = self.low - self.first
        stop = tag - self.first + 1
        if removed is not None:
            return dense([indexes[place] for place in range(start, stop) if not removed[place]])
        return indexes if stop - start == len(indexes) else dense(indexes[start:stop])

    def tags(self, upto: int) -> Sequence[int]:
        """Return the tags of unacked messages up to `upto`."""
        first, removed = self.first, self.removed
        tags = range(self.low, min(self.last, upto) + 1)
        if removed is None or not tags:
            return tags
        waiting = [tag for tag in tags if not removed[tag - first]]
        return dense(waiting) if waiting else waiting


class Unacked:
    """Number the deliveries of a channel, and store the unacked ones as runs.

    Cost: an ack out of order costs a search among the runs, and an octet for each message of its run.
    Invariant: tags ascend over ``runs``. ``count`` is the number of unacked messages. ``_empty`` counts the runs
        without an unacked message. All runs before ``_front``, the index of the oldest message's run, are among them.
    """

    __slots__ = ("_empty", "_front", "aside", "count", "last_tag", "late", "runs")

    def __init__(self) -> None:
        self.last_tag = 0
        self.runs: list[Run] = []
        self._front = 0
        self._empty = 0
        self.count = 0
        # The next two are None until they are needed, because most channels never need them.
        self.late: list[Sequence[int]] | None = None  # tags that the broker has requeued: late acks have no effect
        self.aside: list[tuple[Sequence[int], SlotDelivery]] | None = None  # tags and deliveries acked in a transaction

    def handed_out(self, level: Level, slot: Slot, indexes: Sequence[int], consumer: RingMember | None) -> None:
        """Record messages that were sent with the next tags and must be acknowledged.

        Shapes: `indexes` ascend; the caller must not change them afterwards.
        """
        count = len(indexes)
        if not count:
            return
        if not isinstance(indexes, range) or (count > 1 and indexes.step != 1):
            indexes = dense(indexes)
        start = indexes.start if isinstance(indexes, range) else indexes[0]
        self._add(level, slot, indexes, start, count, consumer)

    def handed_out_one(self, level: Level, slot: Slot, index: int, consumer: RingMember | None) -> None:
        """Record one message as `handed_out` does."""
        indexes = ONES[index] if index < len(ONES) else range(index, index + 1)
        runs = self.runs
        if runs and runs[-1].slot is slot:
            self._add(level, slot, indexes, index, 1, consumer)
            return
        self.last_tag += 1
        self.count += 1
        runs.append(Run(self.last_tag, level, slot, indexes, index, 1, consumer))

    def _add(
        self, level: Level, slot: Slot, indexes: Sequence[int], start: int, count: int, consumer: RingMember | None
    ) -> None:
        """Add messages to the last run if they continue it, otherwise to a new run."""
        tag = self.last_tag + 1
        self.last_tag += count
        self.count += count
        runs = self.runs
        if runs:
            run = runs[-1]
            if (
                run.slot is slot
                and run.consumer is consumer
                and run.last + 1 == tag
                and run.removed is None
                and run.left
                and run.start + run.count == start
                and isinstance(run.indexes, range)
                and isinstance(indexes, range)
            ):
                run.indexes = range(run.start, start + count)  # hot: set directly
                run.count += count  # hot: set directly
                run.last += count  # hot: set directly
                run.left += count  # hot: set directly
                return
        runs.append(Run(tag, level, slot, indexes, start, count, consumer))

    def skip_tag(self) -> int:
        """Return the next delivery tag, for a message that needs no acknowledgement."""
        self.last_tag += 1
        return self.last_tag

    def add(self, level: Level, slot: Slot, index: int) -> int:
        """Record a message fetched by basic.get that must be acknowledged, and return its tag."""
        self.handed_out_one(level, slot, index, None)
        return self.last_tag

    def take(self, tag: int, *, multiple: bool) -> list[SlotDelivery]:
        """Remove and return the deliveries that are acknowledged, in the order of their tags.

        Shapes: tag 0 with `multiple` acknowledges all deliveries.
        Raises: ChannelError 406 for an unknown tag, unless the broker has requeued its message.
        """
        if self.late and any(tag in tags for tags in self.late):
            before = self._tags(tag) if multiple else []
            return self._take_up_to(before[-1][-1]) if before else []
        if multiple:
            return self._take_up_to(tag) if tag else self.take_all()
        run = self._run_of(tag)
        self.count -= 1
        if run.count == 1:
            run.left = 0  # hot: set directly
            if self.count:
                self._empty += 1
                self._drop_empty()
            else:
                self.runs.clear()
                self._front = self._empty = 0
            return [run]
        at = tag - run.first
        index = run.start + at if isinstance(run.indexes, range) else run.indexes[at]
        if run.low == tag and run.removed is None:  # the usual case: in order
            run.low = tag + 1  # hot: set directly
            run.left -= 1  # hot: set directly
        else:
            run.remove(tag)
        if not run.left:
            self._empty += 1
            self._drop_empty()
        return [SlotDelivery(run.level, run.slot, single(index), index, 1, run.consumer)]

    def take_all(self) -> list[SlotDelivery]:
        """Remove and return all unacked deliveries."""
        taken = [run.remove_up_to(run.last) for run in self.runs if run.left]
        self.count = 0
        self._drop_empty()
        return taken

    def take_back(self, consumer: RingMember, upto: int) -> list[SlotDelivery]:
        """Remove and return a consumer's deliveries with tags up to `upto`; late acks of them have no effect."""
        taken = []
        for run in self.runs:
            if run.first > upto:
                break
            if run.consumer is consumer and run.left and (tags := run.tags(upto)):
                self._note_late(tags)
                taken.append(run.remove_up_to(tags[-1]))
                self.count -= len(tags)
                self._empty += not run.left
        self._drop_empty()
        return taken

    def _note_late(self, tags: Sequence[int]) -> None:
        late = self.late
        if late is None:
            self.late = [tags]
        elif isinstance(tags, range) and isinstance(late[-1], range) and late[-1].stop == tags.start:
            late[-1] = range(late[-1].start, tags.stop)
        else:
            late.append(tags)
            del late[:-LATE_MAX]

    def oldest_of(self, consumer: RingMember) -> int:
        """Return the tag of a consumer's oldest unacked message, or the next tag if it has none. Cost: O(runs)."""
        return next((run.low for run in self.runs if run.left and run.consumer is consumer), self.last_tag + 1)

    @property
    def oldest(self) -> int | None:
        """The tag of the oldest unacked message, or None if there is none."""
        return self.runs[self._front].low if self.count else None

    def indexes_of(self, slot: Slot) -> list[int]:
        """Return the indexes of a slot's messages that are unacked or set aside. Cost: a scan of all runs."""
        waiting = [run.waiting(run.last) for run in self.runs if run.slot is slot and run.left]
        waiting += [delivery.indexes for _, delivery in self.aside or () if delivery.slot is slot]
        return list(chain.from_iterable(waiting))

    def levels(self) -> Iterable[Level]:
        """Return the levels of the unacked messages, each once, without those set aside. Cost: O(runs)."""
        return dict.fromkeys([run.level for run in self.runs if run.left])

    def _run_of(self, tag: int) -> Run:
        """Return the run of an unacked tag. Raises: ChannelError 406 for any other tag."""
        if self.count:
            run = self.runs[self._front]
            if tag > run.last:
                run = self.runs[self._search(tag)]
            if run.low <= tag <= run.last and run.left:
                removed = run.removed
                if removed is None or not removed[tag - run.first]:
                    return run
        raise ChannelError(406, f"unknown delivery tag {tag}")

    def _search(self, tag: int) -> int:
        """Return the index of the last run that begins at or before a tag. The front run must begin at or before it."""
        runs = self.runs
        low, high = self._front, len(runs) - 1  # runs[low] begins at or before the tag, runs[high + 1] after it
        if runs[high].first <= tag:
            return high
        while low < high:
            middle = (low + high + 1) // 2
            if runs[middle].first <= tag:
                low = middle
            else:
                high = middle - 1
        return low

    def _take_up_to(self, tag: int) -> list[SlotDelivery]:
        end = self._run_of(tag)
        runs = self.runs
        taken: list[SlotDelivery] = []
        front = self._front
        run = runs[front]
        while run is not end:
            if run.left:
                taken.append(run.remove_up_to(run.last))
                self._empty += 1
            front += 1
            run = runs[front]
        taken.append(end.remove_up_to(tag))
        self._front = front
        for delivery in taken:
            self.count -= delivery.count
        if not end.left:
            self._empty += 1
            self._drop_empty()
        return taken

    def _drop_empty(self) -> None:
        """Advance the front to a run with unacked messages, and drop the empty runs if there are too many.

        Cost: O(1) amortised for each run that became empty.
        """
        runs = self.runs
        if not self.count:
            runs.clear()
            self._front = self._empty = 0
            return
        front = self._front
        while not runs[front].left:
            front += 1
        self._front = front
        if self._empty > EMPTY_MAX and 2 * self._empty > len(runs):
            runs[:] = [run for run in runs if run.left]
            self._front = self._empty = 0

    # -- transactions -------------------------------------------------------------------------------------------------

    @property
    def aside_count(self) -> int:
        return sum([delivery.count for _, delivery in self.aside or ()])

    def set_aside(self, tag: int, *, multiple: bool) -> list[SlotDelivery]:
        """Set aside the deliveries that are acknowledged in a transaction, and return them.

        Raises: ChannelError 406 for a tag that is unknown or has already been set aside.
        """
        tags: list[Sequence[int]] = self._tags(tag or self.last_tag) if multiple else [range(tag, tag + 1)]
        taken = self.take(tag, multiple=multiple)
        if taken:
            aside = self.aside
            if aside is None:
                aside = self.aside = []
            if not (aside and _join(aside, tags[0], taken[0])):
                aside.append((tags[0], taken[0]))
            aside += zip(tags[1:], taken[1:], strict=True)
        return taken

    def drop_aside(self) -> None:
        """Discard all deliveries set aside, because their transaction is committed."""
        self.aside = None

    def put_back(self) -> None:
        """Restore all deliveries that were set aside. Cost: O(messages set aside, and runs), and sorting both."""
        if not self.aside:
            return
        aside, self.aside = sorted(self.aside, key=lambda one: one[0][0]), None
        runs, place = self.runs, 0
        new: list[Run] = []  # for deliveries whose runs were dropped
        for tags, delivery in aside:
            self.count += len(tags)
            while place < len(runs) and runs[place].last < tags[0]:
                place += 1
            if place < len(runs) and runs[place].first <= tags[0]:
                runs[place].restore(tags)
            else:
                new += _runs(tags, delivery)
        if new:
            runs += new
            runs.sort(key=attrgetter("first"))
        self._front = 0
        self._empty = len([run for run in runs if not run.left])
        self._drop_empty()

    def _tags(self, upto: int) -> list[Sequence[int]]:
        """Return the unacked tags up to `upto`, by run. Cost: O(runs, and tags of runs acknowledged out of order)."""
        found: list[Sequence[int]] = []
        for place in range(self._front, len(self.runs)):
            run = self.runs[place]
            if run.first > upto:
                break
            if run.left and (tags := run.tags(upto)):
                found.append(tags)
        return found


def _join(aside: list[tuple[Sequence[int], SlotDelivery]], tags: Sequence[int], delivery: SlotDelivery) -> bool:
    """Join a delivery to the last one set aside, and return True, if tags and indexes continue: single acks in order
    then take the memory of one delivery per slot.
    """
    before, last = aside[-1]
    if (
        last.slot is not delivery.slot
        or last.consumer is not delivery.consumer
        or last.start + last.count != delivery.start
        or not isinstance(before, range)
        or not isinstance(tags, range)
        or before.stop != tags.start
        or not isinstance(last.indexes, range)
        or not isinstance(delivery.indexes, range)
    ):
        return False
    count = last.count + delivery.count
    indexes = range(last.start, last.start + count)
    joined = SlotDelivery(last.level, last.slot, indexes, last.start, count, last.consumer)
    aside[-1] = (range(before.start, tags.stop), joined)
    return True


def _runs(tags: Sequence[int], delivery: SlotDelivery) -> Iterable[Run]:
    """Return new runs for messages whose run was dropped: one run if their tags are dense."""
    level, slot, consumer = delivery.level, delivery.slot, delivery.consumer
    if isinstance(tags, range):
        return [Run(tags.start, level, slot, delivery.indexes, delivery.start, delivery.count, consumer)]
    return [
        Run(tag, level, slot, single(index), index, 1, consumer)
        for tag, index in zip(tags, delivery.indexes, strict=True)
    ]


def differ(deliveries: list[SlotDelivery]) -> bool:
    """Return whether all deliveries are of different slots, so that `by_slot` would group none."""
    number = next(_searches)
    for delivery in deliveries:
        slot = delivery.slot
        if slot.seen == number:
            return False
        slot.seen = number  # hot: set directly
    return True


def by_slot(deliveries: Sequence[SlotDelivery]) -> list[tuple[Level, Slot, Sequence[int]]]:
    """Group deliveries by slot, in the order of their first appearance; the indexes of each group ascend."""
    if len(deliveries) == 1:
        lone = deliveries[0]
        return [(lone.level, lone.slot, lone.indexes)]
    groups: dict[Slot, tuple[Level, list[Sequence[int]]]] = {}
    for delivery in deliveries:
        group = groups.get(delivery.slot)
        if group is None:
            groups[delivery.slot] = (delivery.level, [delivery.indexes])
        else:
            group[1].append(delivery.indexes)
    return [
        (level, slot, parts[0] if len(parts) == 1 else dense(sorted(chain.from_iterable(parts))))
        for slot, (level, parts) in groups.items()
    ]
