"""The slot files of taps, read as a reader does, and clients that publish to taps."""

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
    """Return a slot file, after checking every row's checksum."""
    view = open_slot(path.read_bytes())
    assert view.verify() == []
    return view


def rows_of(taps: Taps, tap: str, vhost: str = "/") -> list[SlotRow]:
    """Return the rows of a tap's slot files, in the order of their seals."""
    seals = [seal for seal in taps.view.seals if (seal.vhost, seal.queue) == (vhost, tap)]
    return [row for seal in seals for row in read_slot(taps.slot_path(seal.seal))]


def bodies_of(taps: Taps, tap: str, vhost: str = "/") -> list[bytes]:
    """Return the bodies alone."""
    return [row.body for row in rows_of(taps, tap, vhost)]


async def snapshot_rows(taps: Taps, queue: str, vhost: str = "/") -> list[SlotRow]:
    """Take a snapshot of a queue and return its rows, file by file."""
    taken = await taps.snapshots.take(vhost, queue)
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
    """Publish a message under each key, with index and key in its body, and return the codes of returned ones."""
    codes = []
    for place, key in enumerate(keys):
        message = aio_pika.Message(b"%d %s" % (place, key.encode()), delivery_mode=1 + persistent, **fields)
        answer = await exchange.publish(message, key, mandatory=mandatory)
        if hasattr(answer, "delivery"):
            codes.append(answer.delivery.reply_code)
    return codes


async def settled(broker: Broker, taps: Taps) -> None:
    """Return when the taps' files match the cursors and the caps."""
    taps._retention.soon()
    await wait_until_async(lambda: taps._retention._next_s > 0 and not taps.busy, "a look at what may go")
    await broker.idle()


def there(taps: Taps) -> list[int]:
    """Return the seals whose files are in the folder, and check that each is listed."""
    found = sorted(int(path.stem) for path in taps.slot_path(0).parent.glob("*.slot"))
    assert found == [seal.seal for seal in taps.view.seals]
    return found
