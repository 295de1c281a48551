"""A publisher to a tapped exchange, a reader of the slot files, and a check that the files contain the messages."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from pamqp import commands

from broker.slot_files.slot_view import open_slot
from tests.raw_client import RawClient, publish_frames

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from broker.slot_files.seal_view import SealView
    from broker.slot_files.slot_view import SlotRow

__all__ = ["EXCHANGE", "QUEUE", "TAP", "TapLedger", "TapReader", "number_of", "publish_batches"]

EXCHANGE: Final = "tapped"
QUEUE: Final = "plain"
TAP: Final = "t"
CHANNEL: Final = 1


class TapLedger:
    """The published messages: persistent ones have even numbers, transient ones odd numbers."""

    def __init__(self) -> None:
        self.attempted = 0
        self.confirmed: set[int] = set()

    def judge(self, read: list[int]) -> list[str]:
        """Return the problems with the numbers read from all slot files together."""
        problems = []
        if len(set(read)) < len(read):
            problems.append(f"twice: {sorted({number for number in read if read.count(number) > 1})[:10]}")
        lost = {number for number in self.confirmed if number % 2 == 0} - set(read)
        if lost:
            problems.append(f"lost: {sorted(lost)[:10]} of {len(self.confirmed)}")
        if any(number >= self.attempted for number in read):
            problems.append("never published")
        return problems


class TapReader:
    """Reads each slot file once, like a job that stores its position."""

    def __init__(self) -> None:
        self.seal = 0
        self.numbers: list[int] = []
        self.ids: list[int] = []
        self.store = ""

    def read(self, view: SealView, path: Callable[[int], Path], content: Callable[[Path], bytes]) -> None:
        """Read the slot files sealed since the last call. Raises: AssertionError for a gap or a damaged file."""
        assert self.store in ("", view.store)
        self.store = view.store
        assert view.lost(self.seal) == []
        for seal in view.after(self.seal):
            found = open_slot(content(path(seal.seal)), seal.crc)
            assert found.verify() == []
            rows = list(found)
            assert [row.message_id for row in rows] == sorted({row.message_id for row in rows})
            self.numbers += [number_of(row) for row in rows]
            self.ids += [row.message_id for row in rows]
            self.seal = seal.seal


def number_of(row: SlotRow) -> int:
    """Return the number in a message's body."""
    return int(row.body.split()[0])


def publish_batches(port: int, ledger: TapLedger, random: Random, ended: Callable[[], bool], most: int = 0) -> None:
    """Publish batches and await the confirms of each, until `ended()` or until `most` messages are confirmed.

    Raises: PeerGone, ConnectionError when the broker ends.
    """
    with RawClient("127.0.0.1", port) as client:
        client.open()
        client.open_channel(CHANNEL)
        declare = commands.Exchange.Declare(exchange=EXCHANGE, exchange_type="topic", durable=True)
        client.call(CHANNEL, declare, commands.Exchange.DeclareOk)
        client.call(CHANNEL, commands.Confirm.Select(), commands.Confirm.SelectOk)
        confirmed = tag = 0
        open_tags: dict[int, int] = {}
        while not ended() and (not most or confirmed < most):
            frames = []
            for _ in range(random.randint(1, 40)):
                number, tag = ledger.attempted, tag + 1
                ledger.attempted += 1
                open_tags[tag] = number
                properties = commands.Basic.Properties(delivery_mode=2 - number % 2)
                body = b"%d " % number + bytes(random.choice((0, 10, 300)))
                frames.append(publish_frames(CHANNEL, EXCHANGE, "a.b", body, properties=properties))
            client.send(*frames)
            while open_tags:
                received = client.next()
                if isinstance(received.value, commands.Basic.Ack):
                    ack = received.value
                    for done in [
                        one for one in open_tags if one == ack.delivery_tag or (ack.multiple and one < ack.delivery_tag)
                    ]:
                        ledger.confirmed.add(open_tags.pop(done))
                        confirmed += 1
