"""The store of a node of a cluster: what is published joins the batch of the next call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final

from broker.cluster.shared_stream import SharedStream, SharedStreams
from broker.core.publishing.local_store import LocalStore, Targets
from broker.store.record import DUE, TARGET, TARGET_BYTES

if TYPE_CHECKING:
    from broker.core.message.message import Message
    from broker.store.recorder import Recorder

__all__ = ["SharedStore"]

unpack_target: Final = TARGET.unpack_from


class SharedStore(LocalStore):
    """Accepts runs of messages for the streams of one vhost, shared and local ones."""

    __slots__ = ("_producer_of", "_streams")

    enters_later: bool = False

    def __init__(self, recorder: Recorder, streams: SharedStreams, producer_of: Callable[[int], str]) -> None:
        """`producer_of` returns the name of a producer by its mark, with that of its vhost."""
        super().__init__(recorder)
        self._streams = streams
        self._producer_of = producer_of

    @property
    def progress(self) -> int:
        """A number that grows with each message, settlement and number that is used."""
        return self._streams.batch.size_bytes

    @property
    def needs_sync(self) -> bool:
        """Whether something was accepted that no confirm may follow yet."""
        return True

    def transaction(self) -> AbstractContextManager[None]:
        """Return a context that does nothing: what is gathered in one piece is committed by one call."""
        return nullcontext()

    def accept(self, messages: list[Message], targets: list[Targets], stops: list[int], number: bytes = b"") -> None:
        """Add messages to the batch, once each, and to the shares of their streams. HOT.

        Shapes: ``targets[n]`` are those of the messages up to place ``stops[n]``. `number` is what a producer's
            sequence or a due time adds to the targets.
        Cost: one append per message whatever its fan-out; shares are found and workers woken once per stream and run.
        """
        batch = self._streams.batch
        persistent = messages[0].facts.persistent
        due_ms = self._note_numbers(number) if number else 0
        start = 0
        for place, target in enumerate(targets):
            stop = stops[place]
            group = messages[start:stop] if stop - start < len(messages) else messages
            first = -1
            body_bytes = 0
            for stream in target.streams:
                if isinstance(stream, SharedStream):
                    if first < 0:
                        body_bytes = batch.writer.body_bytes
                        first = batch.add(messages, start, stop, due_ms)
                        body_bytes = batch.writer.body_bytes - body_bytes
                    if persistent and stream.lasting:
                        batch.synchronize()
                    stream.accept(batch, group, first, body_bytes, due_ms, self.origin)
                else:
                    stream.append(group)
            start = stop

    def _note_numbers(self, number: bytes) -> int:
        """Add the numbers of producers to the batch, and return the moment at which the message is due, 0 for now."""
        due_ms = 0
        for at in range(0, len(number), TARGET_BYTES):
            mark, value = unpack_target(number, at)
            if mark == DUE:
                due_ms = value
            else:
                self._streams.batch.use(self._producer_of(mark), value)
        return due_ms
