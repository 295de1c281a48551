"""The MQTT clients of a cluster: at any time, each client id belongs to at most one connection on all nodes.

A connection claims its client id in PostgreSQL before it uses its session. The node of an older connection ends it, and
releases the client id once the queues that end with its session are deleted on all nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from broker.amqp.connection import Connection
from broker.cluster.database import Database
from broker.cluster.database_rows import as_text
from broker.cluster.errors import StatementRefused
from broker.cluster.hint import CLIENTS, LOOK, Hint
from broker.cluster.link import patiently
from broker.core.mqtt.context import MqttClients
from broker.core.mqtt.faults import TakenOver
from broker.core.postponed import Awaited
from broker.core.session.client import SessionClient
from broker.tasks import Tasks, WakeUp

ASK_S: Final = 0.05  # between two claims of a client id held by an older connection


class Claim(Awaited):
    """A connection that waits for its client id. Shapes: ``number`` identifies it on this node; 0 before the claim."""

    def __init__(self, clients: SharedClients, key: tuple[str, str], connection: Connection) -> None:
        super().__init__(clients.claim)
        self.key = key
        self.connection = connection
        self.number = 0

    def set_number(self, number: int) -> None:
        self.number = number


class SharedClients(MqttClients):
    """The connections of this node that have their client ids."""

    def __init__(self, database: Database, fail: Callable[[BaseException], None]) -> None:
        super().__init__()
        self._database = database
        self._asking: dict[int, Claim] = {}  # by the number of the connection
        self._held: dict[int, tuple[str, str]] = {}  # keys by the number of the connection
        self._numbers: dict[tuple[str, str], int] = {}
        self._ended: list[int] = []
        self._last = 0
        self._work = WakeUp()
        self._tasks = Tasks(fail)

    def start(self) -> None:
        self._ended.clear()
        self._tasks.start(self._run())

    async def stop(self) -> None:
        """Discard all state, because the epoch has ended or the node leaves."""
        await self._tasks.stop()
        self._asking.clear()
        self._held.clear()
        self._numbers.clear()
        self.clear()

    def enter(self, vhost: str, client_id: str, connection: Connection) -> None:
        """Add a connection, ending an older one on this node. Raises: Postponed until it has the client id."""
        key = (vhost, client_id)
        for postponed in cast("SessionClient", connection.session).postponed:
            if isinstance(postponed, Claim):
                self._held[postponed.number] = key
                self._numbers[key] = postponed.number
                super().enter(vhost, client_id, connection)
                return
        older = self.get(key)
        if older is not None:
            older.fail(TakenOver())
        raise Claim(self, key, connection)

    def leave(self, vhost: str, client_id: str, connection: Connection) -> None:
        """Remove a connection, and release its client id."""
        key = (vhost, client_id)
        if self.get(key) is not connection:
            return
        super().leave(vhost, client_id, connection)
        number = self._numbers.pop(key)
        del self._held[number]
        self._end(number)

    def claim(self, claim: Claim) -> None:
        """Claim a client id, which an older connection may still have."""
        self._last += 1
        claim.set_number(self._last)
        self._asking[self._last] = claim
        self._work.set()

    def handle_hint(self, hint: Hint) -> None:
        """Repeat refused releases of ids, and check whether newer connections on other nodes need ids held here."""
        if hint.kind == LOOK or (hint.kind == CLIENTS and (self._held or self._ended)):
            self._work.set()

    def _end(self, number: int) -> None:
        self._ended.append(number)
        self._work.set()

    async def _run(self) -> None:
        while True:
            await self._work.wait(ASK_S if self._asking else None)
            asking = {claim.key: number for number, claim in reversed(self._asking.items())}  # the oldest for each key
            if not (asking or self._ended or self._held):
                continue
            ended, self._ended = self._ended, []
            try:
                await self._ask(ended, asking)
            except StatementRefused as error:
                self._ended[:0] = ended  # released with the next call
                for number in asking.values():
                    self._answer(number, str(error))
            if self._asking:
                await self._database.notify(Hint(CLIENTS))

    async def _ask(self, ended: list[int], asking: dict[tuple[str, str], int]) -> None:
        """Release client ids and claim others. Raises: StatementRefused."""
        arguments = ended, [as_text(key) for key in asking], list(asking.values())
        rows = await patiently(lambda: self._database.acting("upkeep", "claim_clients", *arguments))
        for row in rows:
            if row["granted"]:
                self._answer(row["number"])
            else:
                self._end_older(row["number"])

    def _answer(self, number: int, refusal: str = "") -> None:
        claim = self._asking.pop(number)
        if claim.connection.finished:
            self._end(number)
        else:
            claim.answered(refusal)

    def _end_older(self, number: int) -> None:
        """End a connection whose client id a newer one needs."""
        connection = self.get(self._held.get(number, ("", "")))
        if connection is not None:
            connection.fail(TakenOver())
