"""Reads the slot files of taps, and publishes to tapped exchanges."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aio_pika

from broker.slot_files.slot_view import SlotRow, SlotView, open_slot
from tests.deadline import wait_until_async

if TYPE_CHECKING:
    from pathlib import Path

    from broker.taps.taps import Taps
    from broker.testing import Broker

__all__ = ["bodies_of", "channel_of", "publish", "read_slot", "rows_of", "settled", "snapshot_rows", "there"]


def read_slot(path: Path) -> SlotView:
    """Return a slot file, after checking all rows' checksums."""
    view = open_slot(path.read_bytes())
    assert view.verify() == []
    return view


def rows_of(taps: Taps, tap: str, vhost: str = "/") -> list[SlotRow]:
    """Return the rows of a tap's slot files, in the order of their seals."""
    seals = [seal for seal in taps.view.seals if (seal.vhost, seal.queue) == (vhost, tap)]
    return [row for seal in seals for row in read_slot(taps.slot_path(seal.seal))]


def bodies_of(taps: Taps, tap: str, vhost: str = "/") -> list[bytes]:
    """Return the bodies of the rows of a tap's slot files."""
    return [row.body for row in rows_of(taps, tap, vhost)]


async def snapshot_rows(taps: Taps, queue: str) -> list[SlotRow]:
    """Take a snapshot of a queue of the vhost "/", and return its rows in order."""
    taken = await taps.snapshots.take("/", queue)
    return [row for file in taken["files"] for row in read_slot(taps.snapshots.path(taken["id"], file["n"]))]


@asynccontextmanager
async def channel_of(broker: Broker, vhost: str = "/") -> AsyncIterator[Any]:
    """Yield a channel of a new connection, with confirms."""
    connection: Any = await aio_pika.connect(broker.url_of(vhost))
    try:
        yield await connection.channel()
    finally:
        await connection.close()


async def publish(
    exchange: Any, keys: Sequence[str], *, persistent: bool = True, mandatory: bool = False, **fields: Any
) -> list[int]:
    """Publish a message with each key, with index and key as body; return the reply codes of returned messages."""
    codes = []
    for place, key in enumerate(keys):
        message = aio_pika.Message(b"%d %s" % (place, key.encode()), delivery_mode=1 + persistent, **fields)
        answer = await exchange.publish(message, key, mandatory=mandatory)
        if hasattr(answer, "delivery"):
            codes.append(answer.delivery.reply_code)
    return codes


async def settled(broker: Broker, taps: Taps) -> None:
    """Wait until retention has run, so that the slot files match the cursors and limits."""
    taps._retention.soon()
    await wait_until_async(lambda: taps._retention._next_s > 0 and not taps.busy, "retention of the slot files")
    await broker.idle()


def there(taps: Taps) -> list[int]:
    """Return the seals of the files in the folder, which must equal the listed seals."""
    found = sorted(int(path.stem) for path in taps.slot_path(0).parent.glob("*.slot"))
    assert found == [seal.seal for seal in taps.view.seals]
    return found
