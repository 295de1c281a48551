"""The store of a cluster node: published messages are added to the batch of the next call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from broker.cluster.batch import Origin
from broker.cluster.shared_level import SharedLevel, SharedLevels
from broker.core.confirmable import ConfirmedPublishes
from broker.core.message.message import Message
from broker.core.publishing.message_store import MessageStore, Targets
from broker.store.record import DUE, TARGET, TARGET_BYTES

unpack_target: Final = TARGET.unpack_from


class SharedStore(MessageStore):
    """Accept runs of messages for the levels of one vhost, shared and local ones."""

    enters_later: bool = False
    refuses_later: bool = True

    def __init__(self, levels: SharedLevels, producer_of: Callable[[int], str]) -> None:
        """`producer_of` returns the key of a producer in the database by its mark."""
        super().__init__()
        self._levels = levels
        self._producer_of = producer_of

    @property
    def progress(self) -> int:
        """A number that grows with each message of the current batch, and with the first settlement in each slot."""
        return self._levels.batch.size_bytes

    @property
    def unwritten_bytes(self) -> int:
        """The number of bytes that no call includes yet."""
        return self._levels.batch.size_bytes

    @property
    def needs_sync(self) -> bool:
        """True, because accepted work is confirmed only after a commit."""
        return True

    def transaction(self) -> AbstractContextManager[None]:
        """Return a context whose messages and settlements are committed as a whole; nothing is delivered before."""
        return _atomic(self._levels, self.origin)

    def accept(
        self,
        messages: list[Message],
        targets: list[Targets],
        stops: list[int],
        number: bytes = b"",
        confirms: ConfirmedPublishes | None = None,
    ) -> None:
        """Add messages to the batch, once each, and to the shares of their levels. HOT.

        Cost: one append per message, whatever its fan-out; one look-up of a share, and one wake-up, per level and run.
        """
        batch = self._levels.batch
        persistent = messages[0].facts.persistent
        origin = self.origin
        if confirms is not None and confirms.confirming:
            origin = (confirms, confirms.published + 1)
        numbers, due_ms = self._read_numbers(number) if number else ((), 0)
        first = -1
        start = 0
        for place, target in enumerate(targets):
            stop = stops[place]
            group = messages[start:stop] if stop - start < len(messages) else messages
            first = -1
            body_bytes = 0
            ahead = not numbers or len(target.levels) == 1
            for level in target.levels:
                if isinstance(level, SharedLevel):
                    if first < 0:
                        body_bytes = batch.writer.body_bytes
                        first = batch.add(messages, start, stop, due_ms, origin)
                        body_bytes = batch.writer.body_bytes - body_bytes
                    if persistent and level.lasting:
                        batch.synchronize()
                    level.accept(batch, group, first, body_bytes, due_ms, ahead)
                else:
                    level.append(group)
            start = stop
        for producer, sequence in numbers:
            batch.use(producer, sequence, first)

    def used_before(self, mark: int, sequence: int, confirms: ConfirmedPublishes) -> None:
        """Record a publish that repeats a producer's number whose batch is not committed yet."""
        producer = self._producer_of(mark)
        for batch in (self._levels.batch, self._levels.running):
            if batch is not None:
                batch.use_again(producer, sequence, (confirms, confirms.published))

    def _read_numbers(self, number: bytes) -> tuple[Sequence[tuple[str, int]], int]:
        """Return the keys and numbers of producers, and when the message is due, or 0 for now."""
        numbers: list[tuple[str, int]] = []
        due_ms = 0
        for at in range(0, len(number), TARGET_BYTES):
            mark, value = unpack_target(number, at)
            if mark == DUE:
                due_ms = value
            else:
                numbers.append((self._producer_of(mark), value))
        return numbers, due_ms


@contextmanager
def _atomic(levels: SharedLevels, origin: Origin | None) -> Iterator[None]:
    levels.batch.begin_atomic(origin)
    try:
        with levels.not_ahead():
            yield
    finally:
        levels.batch.end_atomic()
