"""Mailboxes: direct replies between clients of different nodes, and questions between nodes.

Each node has a mailbox: a level that only it reads, whose number is minus the node's epoch. Its messages are transient:
a crash of PostgreSQL may lose them. The name of a reply consumer contains the epoch of its node.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from broker.amqp.content_header import facts_of
from broker.amqp.header_edit import encode_header
from broker.cluster.chunk import Chunk, ChunkLoader, DamagedChunk
from broker.cluster.data_path import DataPath
from broker.cluster.database_rows import LeasedRow
from broker.cluster.errors import Unreachable
from broker.cluster.hint import FREE, JOINED, LOOK, Hint
from broker.cluster.shared_slot import SharedSlot
from broker.core.message.message import Envelope, new_message
from broker.core.publishing.reply_to import REPLY_PREFIX, ReplyConsumers, ReplyTarget
from broker.event_log import get_logger
from broker.tasks import Tasks, WakeUp

_log = get_logger()

ANSWERS_MAX: Final = 1000  # messages of one lease
LOOK_S: Final = 1.0
QUESTION: Final = "slotmq.question."  # followed by the epoch of the asking node, and its number for the question
ANSWER: Final = "slotmq.answer."  # followed by the number of the question, and the epoch of the answering node
ANSWERS_S: Final = 2.0  # nodes that do not answer within this time are ignored

Question: TypeAlias = "Mapping[str, Any]"
Answerer: TypeAlias = "Callable[[Question], Awaitable[Any]]"  # None means no answer


@dataclass(frozen=True, slots=True)
class RemoteReply:
    """A reply consumer of another node."""

    mailbox: Mailbox
    epoch: int
    vhost: str
    name: str

    def deliver(self, envelope: Envelope, header: bytes, body: bytes) -> None:
        """Send one reply to the node that has the consumer."""
        self.mailbox.post(self.epoch, Envelope(self.vhost, self.name), header, body)


class SharedReplies(ReplyConsumers):
    """The reply consumers of one vhost: those of this node, and those of other nodes by their names."""

    def __init__(self, mailbox: Mailbox, vhost: str) -> None:
        super().__init__()
        self._mailbox = mailbox
        self._vhost = vhost
        mailbox.vhosts[vhost] = self

    def new_name(self, new_name: Callable[[str], str]) -> str:
        """Return an unguessable name from which other nodes find this one."""
        return new_name(f"{REPLY_PREFIX}{self._mailbox.epoch}.")

    def find(self, name: str) -> ReplyTarget | None:
        """Return the reply consumer with a name, or None if it is unknown."""
        found = self.get(name)
        if found is not None or not name.startswith(REPLY_PREFIX):
            return found
        epoch = name[len(REPLY_PREFIX) :].partition(".")[0]
        if not epoch.isdecimal() or not self._mailbox.is_elsewhere(int(epoch)):
            return None
        return RemoteReply(self._mailbox, int(epoch), self._vhost, name)


class Mailbox:
    """Post direct replies to the mailboxes of other nodes, and deliver those in this node's mailbox. Also ask the other
    nodes about facts that only they know, such as messages held by their clients, and answer their questions.
    Shapes: these questions and answers are JSON.
    Cost: a lease per second while this node has reply consumers or awaits answers, and one per call that adds messages.
    """

    def __init__(self, data: DataPath, *, now_ms: Callable[[], int], fail: Callable[[BaseException], None]) -> None:
        """`now_ms` is the broker's clock; `fail` ends the epoch."""
        self._data = data
        self._database = data.database
        self._now_ms = now_ms
        self._loader = ChunkLoader()
        self._members: set[int] = set()
        self._joined: set[int] = set()  # since the newest heartbeat
        self._arrived = WakeUp()
        self._tasks = Tasks(fail)
        self.vhosts: dict[str, SharedReplies] = {}
        self._answerer: Answerer | None = None
        self._asked: dict[int, dict[int, asyncio.Future[Any]]] = {}  # by number and epoch
        self._number = 0

    @property
    def epoch(self) -> int:
        return self._database.epoch

    def is_elsewhere(self, epoch: int) -> bool:
        """Return whether an epoch is that of another member."""
        return epoch in self._members and epoch != self.epoch

    def members_seen(self, epochs: set[int]) -> None:
        """Record the epochs of all members as of a heartbeat, which may be older than the hint of a join."""
        self._members = epochs | self._joined
        self._joined = set()

    def start(self) -> None:
        self._tasks.start(self._run())

    async def stop(self) -> None:
        await self._tasks.stop()

    def handle_hint(self, hint: Hint) -> None:
        """Check the mailbox after a hint; record a joined node, which may ask before its first heartbeat is seen."""
        if hint.kind == JOINED:
            self._joined.add(hint.number)
            self._members.add(hint.number)
        elif hint.kind == LOOK or (hint.kind == FREE and -self.epoch in hint.levels):
            self._arrived.set()

    def post(self, epoch: int, envelope: Envelope, header: bytes, body: bytes) -> None:
        """Add a message to the mailbox of a node with the next call."""
        levels = self._data.levels
        message = new_message(envelope, header, body, facts_of(header), self._now_ms())
        first = levels.batch.add([message], 0, 1, 0, None)
        levels.batch.share(-epoch, -epoch).add(first, 1, 0, len(body))
        levels.schedule()

    # -- arriving messages --------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._arrived.wait(LOOK_S if self._asked or any(self.vhosts.values()) else None)
            with suppress(Unreachable):  # the reconciliation after a lost connection finds the leased rows
                while await self._take():
                    pass

    async def _take(self) -> bool:
        """Deliver the waiting messages, and return whether there may be more."""
        rows = await self._database.lease([-self.epoch], [ANSWERS_MAX], [0])
        found = [row for row in rows if row.number is not None]
        if not found:
            return False
        async with self._data.working_on(found) as chunks:
            for row in found:
                self._deliver(row, chunks)
        self._data.levels.schedule()
        return rows[-1].more

    def _deliver(self, row: LeasedRow, chunks: Mapping[int, Chunk | DamagedChunk]) -> None:
        try:
            messages = self._loader.load_row(row, chunks)
        except DamagedChunk as error:
            _log.error("chunk.damaged", table=f"chunk_{row.ring}", number=row.number, reason=str(error))
            messages = []
        for _, message in messages:
            if self._handle_question(message.envelope.key, message.body):
                continue
            replies = self.vhosts.get(message.envelope.exchange)
            waiting = None if replies is None else replies.get(message.envelope.key)
            if waiting is not None:
                waiting.deliver(Envelope("", message.envelope.key), message.header, message.body)
        bits = self._data.levels.batch.settling(SharedSlot(row.level, row.number or 0, row.count))
        bits |= row.bits

    # -- questions ----------------------------------------------------------------------------------------------------

    def answer_by(self, answerer: Answerer) -> None:
        """Set the function that answers the questions of other nodes."""
        self._answerer = answerer

    async def ask(self, question: Question) -> list[Any]:
        """Return the answers of the other nodes in no particular order, without nodes that do not answer in time."""
        self._number += 1
        number, loop = self._number, asyncio.get_running_loop()
        waiting = {epoch: loop.create_future() for epoch in self._members if epoch != self.epoch}
        if not waiting:
            return []
        self._asked[number] = waiting
        try:
            body = json.dumps(question).encode()
            for epoch in waiting:
                self._send(epoch, f"{QUESTION}{self.epoch}.{number}", body)
            done, _ = await asyncio.wait(waiting.values(), timeout=ANSWERS_S)
        finally:
            del self._asked[number]
        return [answer for future in done if (answer := future.result()) is not None]

    def _handle_question(self, key: str, body: bytes) -> bool:
        """Handle a message that is a question or the answer to one, and return whether it is."""
        if key.startswith(QUESTION):
            epoch, _, number = key.removeprefix(QUESTION).partition(".")
            self._tasks.start(self._answer(int(epoch), number, body))
        elif key.startswith(ANSWER):
            number, _, epoch = key.removeprefix(ANSWER).partition(".")
            future = self._asked.get(int(number), {}).get(int(epoch))
            if future is not None and not future.done():
                future.set_result(json.loads(body))
        else:
            return False
        return True

    async def _answer(self, epoch: int, number: str, body: bytes) -> None:
        answer = None if self._answerer is None else await self._answerer(json.loads(body))
        self._send(epoch, f"{ANSWER}{number}.{self.epoch}", json.dumps(answer).encode())

    def _send(self, epoch: int, key: str, body: bytes) -> None:
        self.post(epoch, Envelope("", key), encode_header({}, len(body)), body)
