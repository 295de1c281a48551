"""Random conversations, reproducible by seed. They depend on what was declared and published, not on answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from tests.differential.steps import (
    Conversation,
    Step,
    ack,
    bind,
    call,
    cancel,
    close_channel,
    close_connection,
    confirm,
    consume,
    declared,
    exchange,
    get,
    nack,
    publish,
    queue,
    reject,
)

__all__ = ["conversations"]

SEEDS = 150
_RACES = frozenset((23, 132))
"""Seeds with races in RabbitMQ: which consumer gets a message that several queues or acks release at once."""
Choice = TypeVar("Choice")

_ARGUMENTS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"x_max_length": 2},
    {"x_max_length": 3, "x_overflow": "reject-publish"},
    {"x_max_length_bytes": 6},
    {"x_max_length": 1, "x_dead_letter_exchange": "", "x_dead_letter_routing_key": "~q0"},
    {"x_dead_letter_exchange": "~x0"},
    {"x_dead_letter_exchange": "~x1", "x_dead_letter_routing_key": "a.b"},
    {"x_message_ttl": 0},
    {"x_max_priority": 3},
    {"x_single_active_consumer": True},
    {"durable": True},
    {"auto_delete": True},
)
_KEYS = ("a", "a.b", "a.c", "b", "")
_PATTERNS = ("a", "a.b", "a.*", "#", "*", "a.#", "#.b")
_KINDS = ("direct", "fanout", "topic", "headers")
_PLACES = ("A1", "A1", "A2", "B1")


class _Writer:
    """Writes one conversation, a step at a time."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._chance = random.Random(seed)
        self.steps: list[Step] = []
        self.published = 0
        self.queues = [f"~q{number}" for number in range(2 + self._below(2))]
        self.exchanges = ["~x0", "~x1"]
        self.tags = 0
        self.readers = ["A1"]
        self._verbs: list[tuple[int, Callable[[], Step]]] = [
            (30, self._publish),
            (12, self._get),
            (10, self._consume),
            (12, self._ack),
            (8, self._nack),
            (4, self._reject),
            (3, self._cancel),
            (4, self._bind),
            (3, self._unbind),
            (3, self._qos),
            (2, self._purge),
            (2, self._declare_again),
            (1, self._delete_queue),
            (1, self._delete_exchange),
            (2, self._recover),
            (2, self._close_channel),
            (1, self._close_connection),
            (1, self._declare_otherwise),
            (3, self._look),
            (2, self._end_transaction),
        ]

    # random() is the one method whose numbers Python guarantees to keep

    def _below(self, bound: int) -> int:
        return int(self._chance.random() * bound)

    def _one(self, choices: Sequence[Choice]) -> Choice:
        return choices[self._below(len(choices))]

    def write(self) -> Conversation:
        """Return the conversation."""
        for name in self.exchanges:
            self.steps.append(exchange("A1", name, self._one(_KINDS)))
        for name in self.queues:
            self.steps.append(queue("A1", name, **self._one(_ARGUMENTS)))
        self.steps += [self._bind() for _ in range(3)]
        if self._below(2):
            self.steps.append(confirm("A1"))
        if not self._below(3):
            self.steps.append(call("A2", "tx.select"))
        weight = sum(share for share, _ in self._verbs)
        for _ in range(10 + self._below(22)):
            left = self._below(weight)
            for share, verb in self._verbs:
                left -= share
                if left < 0:
                    self.steps.append(verb())
                    break
        return Conversation(f"random/{self.seed:03d}", tuple(self.steps))

    def _body(self) -> str:
        """Return the body of one of the latest messages."""
        return str(max(1, self.published - self._below(4)))

    def _reader(self) -> str:
        """Return a channel for a get or a consumer, and record it."""
        self.readers.append(self._one(_PLACES))
        return self.readers[-1]

    def _publish(self) -> Step:
        self.published += 1
        properties: dict[str, Any] = {}
        if not self._below(4):
            properties["priority"] = self._below(5)
        if not self._below(4):
            properties["headers"] = {"a": self._below(2)}
        if not self._below(4):
            properties["delivery_mode"] = 2
        if not self._below(12):
            properties["expiration"] = "0"
        to, key = ("", self._one(self.queues)) if self._below(2) else (self._one(self.exchanges), self._one(_KEYS))
        mandatory = not self._below(3)
        return publish(self._one(_PLACES), to, key, str(self.published), mandatory=mandatory, **properties)

    def _get(self) -> Step:
        return get(self._reader(), self._one(self.queues), no_ack=not self._below(3))

    def _consume(self) -> Step:
        self.tags += 1
        options: dict[str, Any] = {"no_ack": True} if not self._below(4) else {}
        options |= {"x_priority": self._below(3)} if not self._below(4) else {}
        options |= {"exclusive": True} if not self._below(8) else {}
        return consume(self._reader(), self._one(self.queues), f"c{self.tags}", **options)

    def _ack(self) -> Step:
        return ack(self._one(self.readers), self._body(), multiple=not self._below(4))

    def _nack(self) -> Step:
        return nack(self._one(self.readers), self._body(), requeue=bool(self._below(2)), multiple=not self._below(4))

    def _reject(self) -> Step:
        return reject(self._one(self.readers), self._body(), requeue=bool(self._below(3)))

    def _cancel(self) -> Step:
        return cancel(self._one(self.readers), f"c{1 + self._below(max(1, self.tags))}")

    def _bind(self) -> Step:
        arguments = {"a": self._below(2)} if not self._below(3) else {}
        return bind("A1", self._one(self.queues), self._one(self.exchanges), self._one(_PATTERNS), **arguments)

    def _unbind(self) -> Step:
        fields = {"exchange": self._one(self.exchanges), "routing_key": self._one(_PATTERNS)}
        return call("A1", "queue.unbind", queue=self._one(self.queues), **fields)

    def _qos(self) -> Step:
        return call(self._one(_PLACES), "basic.qos", prefetch_count=1 + self._below(3), global_=not self._below(4))

    def _purge(self) -> Step:
        return call("A1", "queue.purge", queue=self._one(self.queues))

    def _declare_again(self) -> Step:
        return queue("B1", self._one(self.queues), passive=True)

    def _declare_otherwise(self) -> Step:
        return queue("B1", self._one(self.queues), x_expires=60_000)

    def _delete_queue(self) -> Step:
        options = {"if_unused": True} if self._below(2) else {"if_empty": True}
        return call("A1", "queue.delete", queue=self._one(self.queues), **options)

    def _delete_exchange(self) -> Step:
        return call("B1", "exchange.delete", exchange=self._one(self.exchanges), if_unused=bool(self._below(2)))

    def _recover(self) -> Step:
        return call(self._one(self.readers), "basic.recover", requeue=True)

    def _close_channel(self) -> Step:
        return close_channel(self._one(self.readers))

    def _close_connection(self) -> Step:
        return close_connection("B")

    def _look(self) -> Step:
        return declared(*self.queues)

    def _end_transaction(self) -> Step:
        return call("A2", self._one(("tx.commit", "tx.commit", "tx.rollback")))


def conversations() -> Iterator[Conversation]:
    """Yield the family."""
    for seed in sorted(set(range(SEEDS)) - _RACES):
        yield _Writer(seed).write()
