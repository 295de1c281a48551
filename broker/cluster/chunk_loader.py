"""The chunk loader: make messages of the records of a chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.cluster.chunk import Chunk, DamagedChunk
from broker.core.message.message import Message
from broker.delivery.message_loader import MessageLoader

if TYPE_CHECKING:
    from broker.core.message.message import Envelope

__all__ = ["ChunkLoader"]


class ChunkLoader(MessageLoader):
    """The maker of the messages of chunks; neighbours share envelope, header and facts."""

    __slots__ = ()

    def load(self, chunk: Chunk | DamagedChunk, stream: int, indexes: list[int], count: int) -> list[Message]:
        """Return messages of a stream, which has `count` in the chunk. HOT. Raises: DamagedChunk."""
        if isinstance(chunk, DamagedChunk):
            raise chunk
        chunk.check()
        records = chunk.of(stream)
        if len(records) != count:
            raise DamagedChunk(f"it has {len(records)} messages of stream {stream}, and its slot has {count}")
        runs = chunk.run_of()
        kinds, ends, data = chunk.kinds, chunk.ends, chunk.data
        messages: list[Message] = []
        last_run = -1
        envelope: Envelope | None = None
        header, facts, charge = b"", None, 0
        timestamp_ms = 0
        for index in indexes:
            record = records[index]
            run = runs[record]
            if run != last_run:
                last_run = run
                kind = kinds[run]
                envelope = self._envelopes.get(kind.route)
                if envelope is None:
                    envelope = self._envelope(kind.route)
                header, facts, charge = self._known(kind.header)
                timestamp_ms = kind.timestamp_ms
            assert envelope is not None and facts is not None
            start, stop = ends[record], ends[record + 1]
            messages.append(Message(envelope, header, data[start:stop], charge + stop - start, facts, timestamp_ms))
        return messages
