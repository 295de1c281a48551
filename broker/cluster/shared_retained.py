"""The retained messages that all nodes share: rows in PostgreSQL, and an index of their keys on each node.

A message is retained before it is published, so that its PUBACK follows both. Before a node searches its index for
a new subscription, it updates the index; the messages themselves are read from PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from broker.amqp.content_header import facts_of
from broker.cluster.database import Database
from broker.cluster.errors import StatementRefused
from broker.cluster.link import patiently
from broker.core.message.message import Envelope, Message, new_message
from broker.core.mqtt.mapping import MessageMapping
from broker.core.mqtt.retained import RetainedMessages
from broker.core.postponed import Awaited
from broker.core.session.client import SessionClient
from broker.core.vhost import Vhost
from broker.mqtt.errors import PacketError
from broker.mqtt.reason_codes import QUOTA_EXCEEDED
from broker.tasks import Tasks

ROWS_MAX: Final = 5000  # keys that one statement returns
BATCH_MAX: Final = 256  # messages that one statement retains
BATCH_BYTES: Final = 1 << 20  # of their bodies; a larger one is retained alone
ABSENT_MAX_MS: Final = 1_800_000  # half as long as deleted keys are kept


class Retaining(Awaited):
    """A publish that is postponed until PostgreSQL has retained its message."""

    def __init__(self, retained: SharedRetained, key: str, header: bytes, body: bytes) -> None:
        super().__init__(retained.write)
        self.key = key
        self.header = header
        self.body = body
        self.counts: tuple[int, int] | None = None  # the retained messages and bytes, if there is no room for it

    def set_counts(self, counts: tuple[int, int] | None) -> None:
        self.counts = counts


class Reading(Awaited):
    """A look-up that is postponed until the index is current."""


class SharedRetained(RetainedMessages):
    """The retained messages of one vhost. The keys of expired ones stay until another message is retained."""

    def __init__(
        self,
        vhost: Vhost,
        mapping: MessageMapping,
        most: int,
        max_bytes: int,
        database: Database,
        fail: Callable[[BaseException], None],
    ) -> None:
        super().__init__(vhost, mapping, most, max_bytes)
        self._database = database
        self._name = vhost.name.encode()
        self._keys: set[str] = set()
        self._newest = (0, b"")  # the newest version and key
        self._epoch = 0  # in which the keys were read
        self._read_ms = 0
        self._writing: list[Retaining] = []
        self._writes = False
        self._waiting: list[Reading] = []
        self._reading = False
        self._tasks = Tasks(fail)

    @property
    def by_header(self) -> bool:
        """False, because only publishes of MQTT clients are postponed until their message is retained."""
        return False

    def __len__(self) -> int:
        return len(self._keys)

    def load(self, done: Callable[[], None]) -> None:
        """Call `done` at once, because the first look-up builds the index."""
        done()

    # -- retaining ----------------------------------------------------------------------------------------------------

    def prepare_retain(self, session: SessionClient | None, key: str, header: bytes, body: bytes) -> None:
        """Retain a message that the client may publish.

        Raises: Postponed until it is committed; PacketError 0x97 for a message over a limit; ChannelError 403.
        """
        assert session is not None, "a cluster holds no wills"
        for postponed in session.postponed:
            if isinstance(postponed, Retaining):
                if postponed.counts is not None:
                    raise PacketError(
                        QUOTA_EXCEEDED, self.lack_in(*postponed.counts, len(key) + len(header) + len(body))
                    )
                return
        exchange = self.vhost.exchange_resource(self.exchange)
        session.check(exchange, "write")
        if session.narrows_topics(exchange):
            session.check_topic(exchange, key, "write")
        raise Retaining(self, key, header, body)

    def retain(self, key: str, header: bytes, body: bytes) -> None:
        """Do nothing: `prepare_retain` has retained the message."""

    def write(self, retaining: Retaining) -> None:
        """Retain a message, together with those that arrive while others are being committed."""
        self._writing.append(retaining)
        if not self._writes:
            self._writes = True
            self._tasks.start(self._write())

    async def _write(self) -> None:
        try:
            while self._writing:
                await self._write_batch()
        finally:
            self._writes = False
            self._writing.clear()  # the epoch has ended, and so have the waiting connections

    async def _write_batch(self) -> None:
        batch = self._take_batch()
        refusal = ""
        counts: dict[int, tuple[int, int]] = {}
        try:
            counts = await self._retain(batch)
        except StatementRefused as error:
            refusal = str(error)
        for place, retaining in enumerate(batch, 1):
            retaining.set_counts(counts.get(place))
            retaining.answered(refusal)

    def _take_batch(self) -> list[Retaining]:
        batch: list[Retaining] = []
        left_bytes = BATCH_BYTES
        for retaining in self._writing[:BATCH_MAX]:
            left_bytes -= len(retaining.body)
            if batch and left_bytes < 0:
                break
            batch.append(retaining)
        del self._writing[: len(batch)]
        return batch

    async def _retain(self, batch: Sequence[Retaining]) -> dict[int, tuple[int, int]]:
        """Retain messages. For each without room, return the counts of retained messages and bytes, by place from 1."""
        now_ms = self.vhost.ports.clock.now_ms
        left_ms = [facts_of(one.header).expiration_ms for one in batch]
        arguments = (
            self._name,
            [one.key.encode("utf-8", "surrogateescape") for one in batch],
            [one.header for one in batch],
            [one.body for one in batch],
            [now_ms for _ in batch],
            [None if left is None else now_ms + left for left in left_ms],
            self._max,
            self._max_bytes,
        )
        rows = await patiently(lambda: self._database.acting("upkeep", "retain", *arguments))
        return {row["place"]: (row["count"], row["bytes"]) for row in rows}

    # -- look-up ------------------------------------------------------------------------------------------------------

    def prepare(self, session: SessionClient) -> None:
        """Update the index. Raises: Postponed until it is current."""
        if not any(isinstance(postponed, Reading) for postponed in session.postponed):
            raise Reading(self.catch_up)

    def catch_up(self, reading: Reading) -> None:
        """Update the index with all changes committed by now, and answer the look-up."""
        self._waiting.append(reading)
        if not self._reading:
            self._reading = True
            self._tasks.start(self._catch_up())

    async def _catch_up(self) -> None:
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                refusal = ""
                try:
                    await patiently(self._read_changes)
                except StatementRefused as error:
                    refusal = str(error)
                for reading in waiting:
                    reading.answered(refusal)
        finally:
            self._reading = False

    async def _read_changes(self) -> None:
        epoch, now_ms = self._database.epoch, self.vhost.ports.clock.now_ms
        if epoch != self._epoch or now_ms - self._read_ms > ABSENT_MAX_MS:
            self._keys.clear()
            self._trie.clear()
            self._newest = (0, b"")
        while True:
            rows = await self._database.function("read", "retained_since", self._name, *self._newest, ROWS_MAX)
            for version, octets, deleted in rows:
                self._newest = (version, octets)
                self._note(octets.decode("utf-8", "surrogateescape"), deleted=deleted)
            if len(rows) < ROWS_MAX:
                break
        self._epoch, self._read_ms = epoch, now_ms

    def _note(self, key: str, *, deleted: bool) -> None:
        if deleted and key in self._keys:
            self._keys.remove(key)
            self._trie.remove(key)
        elif not deleted and key not in self._keys:
            self._keys.add(key)
            self._trie.add(key)

    def read(self, keys: Sequence[str], take: Callable[[Message], None], done: Callable[[], None]) -> None:
        """Call `take` with the message of each key that still has an unexpired one, and `done` at the end."""
        self._tasks.start(self._read(keys, take, done))

    async def _read(self, keys: Sequence[str], take: Callable[[Message], None], done: Callable[[], None]) -> None:
        octets = [key.encode("utf-8", "surrogateescape") for key in keys]
        found = {}
        with suppress(StatementRefused):
            rows = await patiently(lambda: self._database.function("read", "retained_of", self._name, octets))
            found = {row["key"]: row for row in rows}
        now_ms = self.vhost.ports.clock.now_ms
        for key, name in zip(keys, octets, strict=True):
            row = found.get(name)
            if row is None:
                continue
            header, body, written_ms = row["header"], row["body"], row["written_ms"]
            facts = facts_of(header)
            if facts.expiration_ms is None or written_ms + facts.expiration_ms > now_ms:
                take(new_message(Envelope(self.exchange, key), header, body, facts, written_ms))
        done()
