"""Questions between nodes: what only the node itself knows, such as what its clients hold.

A question and its answer go through mailboxes, like direct replies: transient, and lost if PostgreSQL crashes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from broker.amqp.header_writer import encode_header
from broker.core.message.message import Envelope
from broker.tasks import Tasks

if TYPE_CHECKING:
    from broker.cluster.mailbox import Mailbox

__all__ = ["Questions"]

QUESTION: Final = "slotmq.question."  # and epoch and number of the asker; the name of a reply consumer is another
ANSWER: Final = "slotmq.answer."  # and the number, and the epoch of who answers
ANSWERS_S: Final = 2.0  # a node that does not answer within this time is left out

Question: TypeAlias = "Mapping[str, Any]"
Answerer: TypeAlias = "Callable[[Question], Awaitable[Any]]"  # of None is no answer


class Questions:
    """Asks the other nodes, and answers them.

    Shapes: questions and answers are JSON.
    """

    def __init__(self, mailbox: Mailbox, fail: Callable[[BaseException], None]) -> None:
        """`fail` hears of a defect."""
        self._mailbox = mailbox
        self._tasks = Tasks(fail)
        self._answerer: Answerer | None = None
        self._asked: dict[int, dict[int, asyncio.Future[Any]]] = {}  # by number and epoch
        self._number = 0
        mailbox.listen(self._heard, lambda: bool(self._asked))

    def answer_by(self, answerer: Answerer) -> None:
        """Answer what other nodes ask, from now on."""
        self._answerer = answerer

    async def ask(self, question: Question) -> list[Any]:
        """Return what the other nodes answer, in no order; one that is silent or refuses is left out."""
        self._number += 1
        number, loop = self._number, asyncio.get_running_loop()
        waiting = {epoch: loop.create_future() for epoch in self._mailbox.others()}
        if not waiting:
            return []
        self._asked[number] = waiting
        try:
            body = json.dumps(question).encode()
            for epoch in waiting:
                self._post(epoch, f"{QUESTION}{self._mailbox.epoch}.{number}", body)
            done, _ = await asyncio.wait(waiting.values(), timeout=ANSWERS_S)
        finally:
            del self._asked[number]
        return [answer for future in done if (answer := future.result()) is not None]

    async def stop(self) -> None:
        """Answer nothing any more: the epoch has ended, or the node leaves."""
        await self._tasks.stop()

    def _heard(self, key: str, body: bytes) -> bool:
        """Take a message of the mailbox, and return whether it is a question or an answer."""
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
        self._post(epoch, f"{ANSWER}{number}.{self._mailbox.epoch}", json.dumps(answer).encode())

    def _post(self, epoch: int, key: str, body: bytes) -> None:
        self._mailbox.post(epoch, Envelope("", key), encode_header({}, len(body)), body)
