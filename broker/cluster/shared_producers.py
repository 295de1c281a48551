"""Numbered producers of a cluster: each is claimed by one node at a time, which releases it on request.

The numbers that a producer uses are committed with its messages. The next node reads them when it claims the producer.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from broker.cluster.database import Database
from broker.cluster.database_rows import as_text
from broker.cluster.errors import StatementRefused
from broker.cluster.hint import PRODUCERS, Hint
from broker.cluster.link import patiently
from broker.core.postponed import Awaited
from broker.core.publishing.producers import Producer, Producers
from broker.tasks import Tasks

ASK_S: Final = 0.05  # between two claims of a producer held by another node
REFUSED_S: Final = 1.0  # between two attempts to release a producer that PostgreSQL refuses to release


class Claim(Awaited):
    """A publish whose producer this node has to claim first."""

    def __init__(self, producers: SharedProducers, name: str, user_name: str) -> None:
        super().__init__(producers.claims.claim)
        self.producers = producers
        self.name = name
        self.user_name = user_name


class SharedProducers(Producers):
    """The producers of a vhost that this node has claimed."""

    def __init__(self, *arguments: Any, claims: ProducerClaims) -> None:
        super().__init__(*arguments)
        self.claims = claims
        claims.vhosts[self._vhost_name] = self

    def require(self, name: str, user_name: str) -> None:
        """Check that this node has a producer. Raises: Postponed while it must be claimed."""
        if name not in self._by_name:
            raise Claim(self, name, user_name)

    def _claim(self, name: str, user_name: str) -> Producer:
        raise Claim(self, name, user_name)

    def take(self, name: str, owner: str, runs: list[tuple[int, int]]) -> None:
        """Add a claimed producer, with the first and last of each range of its used numbers."""
        now_ms = self._clock.now_ms
        producer = self._add(name, owner, self._next_number, now_ms)
        for first, last in runs:
            producer.sequences.add_range(first, last + 1, now_ms)

    def release(self, producer: Producer) -> None:
        """Remove a producer, for example because another node needs it; its next publish here claims it again."""
        producer.forget()
        self._by_name.pop(producer.name, None)

    def named(self) -> list[Producer]:
        return list(self._by_name.values())


class ProducerClaims:
    """Claim and release the producers of all vhosts of a node."""

    def __init__(self, database: Database, drain: Callable[[], Any], fail: Callable[[BaseException], None]) -> None:
        """`drain` waits until collected work is committed; `fail` ends the epoch."""
        self._database = database
        self._drain = drain
        self._waiting: dict[str, list[Claim]] = {}
        self._tasks = Tasks(fail)
        self.vhosts: dict[str, SharedProducers] = {}

    def claim(self, claim: Claim) -> None:
        """Claim a producer, and answer once this node has it, or with the reason if PostgreSQL refuses."""
        key = producer_key(claim.producers.vhost_name, claim.name)
        if key in self._waiting:
            self._waiting[key].append(claim)
            return
        self._waiting[key] = [claim]
        self._tasks.start(self._claim(key, claim))

    def handle_hint(self, hint: Hint) -> None:
        """Release the producers that another node needs."""
        if hint.kind != PRODUCERS:
            return
        for vhost, producers in self.vhosts.items():
            for producer in producers.named():
                key = producer_key(vhost, producer.name)
                if mark_of(key) == hint.number and key not in self._waiting:
                    producers.release(producer)
                    self._tasks.start(self._release(key))

    def reread(self, keys: set[str]) -> None:
        """Read the numbers of producers again before their next publish, because PostgreSQL refused some of them."""
        for vhost, producers in self.vhosts.items():
            for producer in producers.named():
                if producer_key(vhost, producer.name) in keys:
                    producers.release(producer)

    async def stop(self) -> None:
        """Discard all producers and claims, because the epoch has ended or the node leaves."""
        await self._tasks.stop()
        self._waiting.clear()
        for producers in self.vhosts.values():
            for producer in producers.named():
                producers.release(producer)

    # -- the statements -----------------------------------------------------------------------------------------------

    async def _claim(self, key: str, claim: Claim) -> None:
        refusal = ""
        try:
            await self._take(key, claim)
        except StatementRefused as error:
            refusal = str(error)
        for one in self._waiting.pop(key):
            one.answered(refusal)

    async def _take(self, key: str, claim: Claim) -> None:
        database = self._database
        await self._drain()  # the numbers that this node used before it last released the producer
        while True:
            rows = await patiently(lambda: database.acting("lease", "producer_claim", key))
            if rows[0][0] == database.node:
                break
            await database.notify(Hint(PRODUCERS, mark_of(key)))
            await asyncio.sleep(ASK_S)
        owner = (await patiently(lambda: database.acting("lease", "producer_own", key, claim.user_name)))[0][0]
        runs = await patiently(lambda: database.acting("lease", "producer_runs", key))
        claim.producers.take(claim.name, owner, [(row["first"], row["last"]) for row in runs])

    async def _release(self, key: str) -> None:
        """Release a producer to another node, once all its numbers used here are committed."""
        await self._drain()
        while True:
            with suppress(StatementRefused):
                await patiently(lambda: self._database.acting("lease", "producer_release", key))
                break
            await asyncio.sleep(REFUSED_S)


def producer_key(vhost: str, name: str) -> str:
    """Return the name of a producer in the database."""
    return as_text([vhost, name])


def mark_of(key: str) -> int:
    """Return the checksum by which hints identify a producer; other producers may have the same one."""
    return zlib.crc32(key.encode())
