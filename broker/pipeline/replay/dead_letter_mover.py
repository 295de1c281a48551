"""Moves dead letters out of their queue, back where they came from: each is confirmed there before it is acked here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from pamqp import commands

from broker.amqp.codec import encode_method
from broker.amqp.content_header import PROPERTIES_AT
from broker.pipeline.faults import PublishFailed
from broker.pipeline.replay.deaths import Death, death_of, revived
from broker.pipeline.sink.amqp_address import AmqpAddress
from broker.pipeline.sink.amqp_link import CHANNEL, HEAD, AmqpLink, LinkLost
from broker.pipeline.sink.amqp_publisher import AmqpPublisher, Outgoing, PublisherOptions, Refused

__all__ = ["DeadLetterMover", "Moved"]

HEADER, BODY = 2, 3
BODY_SIZE_AT: Final = 4
FRAME_BYTES: Final = 8
ANSWER_S: Final = 30.0
WINDOW: Final = 200  # published between two confirms


@dataclass(slots=True)
class Moved:
    """What became of the messages of a queue; those that were left or refused are in it still."""

    looked_at: int = 0
    moved: int = 0
    left: int = 0
    refused: list[Refused] = field(default_factory=list)


class DeadLetterMover:
    """Takes the messages of a queue that it has now, one after the other.

    What comes meanwhile stays, so a message that dies again at once is not moved again.
    Invariant: a message leaves the queue when the broker has confirmed its successor; a crash in between leaves both.
    """

    def __init__(
        self,
        address: AmqpAddress,
        wanted: Callable[[Death], bool],
        *,
        into_queue: bool,
        rate: float = 0.0,
        name: str = "slotmq pipeline",
    ) -> None:
        """Units: `rate` is messages per second, 0 as fast as it goes."""
        self._address = address
        self._rate = rate
        self._wanted = wanted
        self._into_queue = into_queue
        self._name = name

    def move(self, queue: str) -> Moved:
        """Moves what is wanted of a queue. Raises: PublishFailed."""
        moved = Moved()
        try:
            link = AmqpLink(self._address, self._name)
            try:
                self._move(link, queue, moved)
            finally:
                link.close()  # what is not acked goes back to its place
        except LinkLost as error:
            raise PublishFailed(str(error)) from None
        return moved

    def _move(self, link: AmqpLink, queue: str, moved: Moved) -> None:
        returned: set[object] = set()

        def refuse(refused: Refused) -> None:
            moved.refused.append(refused)
            returned.add(refused.message[5])

        with AmqpPublisher(self._address, PublisherOptions(rate=self._rate), refuse) as publisher:
            left: int | None = None
            while left is None or left > 0:
                tags: list[int] = []
                ready: list[Outgoing] = []
                while len(ready) < WINDOW and (left is None or left > 0):
                    found = get(link, queue)
                    if found is None:
                        left = 0
                        break
                    method, properties, body = found
                    left = method.message_count if left is None else left - 1
                    moved.looked_at += 1
                    death = death_of(properties)
                    if death is None or not self._wanted(death):
                        moved.left += 1
                        continue
                    tags.append(method.delivery_tag)
                    ready.append(self._back(death, properties, body, method.delivery_tag))
                publisher.publish(ready)
                publisher.drain()
                done = [tag for tag in tags if tag not in returned]
                link.send(b"".join(encode_method(CHANNEL, commands.Basic.Ack(tag, multiple=False)) for tag in done))
                moved.moved += len(done)

    def _back(self, death: Death, properties: bytes, body: bytes, tag: int) -> Outgoing:
        place = ("", death.queue) if self._into_queue else (death.exchange, death.key)
        return (*place, revived(properties, death, alone=self._into_queue), body, None, tag)


def get(link: AmqpLink, queue: str) -> tuple[Any, bytes, bytes] | None:
    """Returns the next message: the method, its properties and its body; None where there is none.

    Raises: PublishFailed when the broker refuses, LinkLost.
    """
    link.send(encode_method(CHANNEL, commands.Basic.Get(0, queue, no_ack=False)))
    method: Any = None
    properties = b""
    size = 0
    body: list[bytes] = []
    while True:
        kind, payload = frame(link)
        if kind == HEADER and method is not None:
            size = int.from_bytes(payload[BODY_SIZE_AT:PROPERTIES_AT])
            properties = payload[PROPERTIES_AT:]
        elif kind == BODY and method is not None:
            body.append(payload)
        elif kind == 1:
            heard = link.method(payload)
            if isinstance(heard, commands.Basic.GetEmpty):
                return None
            link.check(heard)
            if isinstance(heard, commands.Basic.GetOk):
                method = heard
            continue
        if properties and sum(map(len, body)) >= size:
            return method, properties, b"".join(body)


def frame(link: AmqpLink) -> tuple[int, bytes]:
    """Returns the next frame of a link. Raises: LinkLost."""
    octets = b""
    while True:
        came = link.receive(ANSWER_S)
        if not came:
            raise LinkLost(f"the broker did not answer within {ANSWER_S:g} s")
        octets += came
        if len(octets) >= HEAD.size:
            kind, _, length = HEAD.unpack_from(octets)
            end = FRAME_BYTES + length
            if len(octets) >= end:
                link.give_back(octets[end:])
                return kind, octets[HEAD.size : end - 1]
