"""The interface of a vhost's store of retained messages for publishers and operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from broker.amqp.errors import ChannelError
from broker.amqp.header_facts import MISSING
from broker.core.message.message import Envelope, Message


class Retainer(Protocol):
    """The retained messages of a vhost.

    Units: `size_bytes` is the total size of their topics, headers and bodies; `expires_ms` is 0 for a message that does
        not expire.
    """

    @property
    def exchange(self) -> str:
        """The exchange whose publishes can be retained."""

    @property
    def size_bytes(self) -> int: ...

    def __len__(self) -> int: ...

    def topic(self, key: str) -> str:
        """Return the topic of a routing key; empty if its messages cannot be retained."""

    def key(self, topic: str) -> str:
        """Return the routing key of a topic. Raises: ValueError for an invalid topic."""

    def expires_ms(self, key: str) -> int: ...

    def lack_of_room(self, key: str, header_bytes: int, body_bytes: int) -> str:
        """Return the reason if a limit prevents retaining a message, else an empty string."""

    def retain(self, key: str, header: bytes, body: bytes) -> None:
        """Retain a message and delete the former one with its key; an empty message only deletes."""

    def find(self, topic_filter: str) -> Iterator[str | None]:
        """Yield the keys of the topics that a filter matches, and None after other steps. Raises: ValueError."""

    def read(self, keys: Sequence[str], take: Callable[[Message], None], done: Callable[[], None]) -> None:
        """Call `take` with the message of each key that has one, and `done` at the end."""


def check_retained(retainer: Retainer | None, envelope: Envelope, asked: Any) -> bool:
    """Return whether a message is to be retained, as its header x-mqtt-retain requests. Raises: ChannelError 406."""
    if asked is MISSING or retainer is None or envelope.exchange != retainer.exchange or asked is False:
        return False
    if asked is not True:
        raise ChannelError(406, "x-mqtt-retain is neither true nor false")
    if not retainer.topic(envelope.key):
        raise ChannelError(406, f"x-mqtt-retain: routing key '{envelope.key[:100]}' is not a topic in MQTT")
    return True
