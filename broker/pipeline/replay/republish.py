"""Publishes rows in order: the part of replay and deadletters that runs in Spark's Python workers."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.amqp.content_header import FLAG_OF
from broker.amqp.header_edit import edit_header
from broker.amqp.wire import PROPERTIES_AT
from broker.client.address import AmqpAddress
from broker.client.blocking import BlockingLink, LinkLost, LinkRefused
from broker.pipeline.faults import JobFailed
from broker.pipeline.sink.amqp_publisher import CLIENT, AmqpPublisher, Outgoing, PublisherOptions
from broker.pipeline.sink.property_columns import FRONT, KNOWN_MAX, NO_PROPERTIES

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "COLUMNS",
    "NO_PROPERTIES",
    "PROPERTY_NAMES",
    "TALLY_DDL",
    "HeaderChanges",
    "Publishing",
    "check_reachable",
    "publish_rows",
    "sequence_of",
]

PROPERTY_NAMES: Final = tuple(FLAG_OF)
COLUMNS: Final = (
    "vhost", "queue", "slot", "seal", "offset", "ts", "exchange", "routing_key", "properties_raw", "body",
    "store", "incarnation",
)  # fmt: skip


@dataclass(slots=True)
class HeaderChanges:
    """Sets headers, and drops headers and properties. Cost: one look-up for properties seen before."""

    set_headers: Mapping[str, str] = field(default_factory=dict)
    drop_headers: tuple[str, ...] = ()
    drop_properties: tuple[str, ...] = ()
    _known: dict[bytes, bytes] = field(default_factory=dict, repr=False)

    def __bool__(self) -> bool:
        return bool(self.set_headers or self.drop_headers or self.drop_properties)

    def __call__(self, properties: bytes) -> bytes:
        """Return properties, from their flags on, with the changes."""
        known = self._known.get(properties)
        if known is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            changed = edit_header(
                FRONT + properties,
                set_headers=self.set_headers,
                drop_headers=self.drop_headers,
                drop_properties=self.drop_properties,
            )
            known = self._known[properties] = changed[PROPERTIES_AT:]
        return known


"""The columns that are needed to republish a message."""


TALLY: Final = ("published", "refused", "dropped", "bytes", "file")


TALLY_DDL: Final = "published bigint, refused bigint, dropped bigint, bytes bigint, file string"


PLACE: Final = ("seal", "slot", "offset", "store", "incarnation")


SLOT_ROWS: Final = 65_536


SLICE_S: Final = 0.05


LOOK_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Publishing:
    """How rows are published.

    Shapes: `exchange` None keeps each message's own; `refused` is the folder for messages that the broker refuses.
    Units: with a `speed`, a message is due (its time - `first_us`) / speed after `began_s`, in seconds since 1970.
    """

    address: AmqpAddress
    options: PublisherOptions
    refused: str
    exchange: str | None = None
    changes: HeaderChanges = field(default_factory=HeaderChanges)
    speed: float = 0.0
    first_us: int = 0
    began_s: float = 0.0


def sequence_of(seal: int | None, slot: int, offset: int) -> int | None:
    """Return the sequence number of a row, derived from its place in the slot alone; None for a snapshot's rows."""
    return seal * SLOT_ROWS + offset - slot if seal else None


def check_reachable(address: AmqpAddress) -> None:
    """Check that a broker accepts the login, before the slow start of Spark. Raises: JobFailed."""
    try:
        BlockingLink(address, {**CLIENT, "connection_name": "slotmq pipeline"}).close()
    except (LinkLost, LinkRefused) as error:
        raise JobFailed(str(error)) from None


def publish_rows(how: Publishing) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the task that publishes rows with COLUMNS, in their order, and yields its counts.

    Invariant: every counted row is confirmed, or in the folder for refused rows. Raises: PublishFailed.
    """

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from broker.pipeline.faults import said_plainly

        with said_plainly():
            tally = publish_batches(how, batches)
        yield pa.RecordBatch.from_pydict({name: [value] for name, value in zip(TALLY, tally, strict=True)})

    return task


def publish_batches(how: Publishing, batches: Iterator[pa.RecordBatch]) -> tuple[int, int, int, int, str]:
    """Publish batches; return how many messages were published, how many were refused, how many the broker already
    had, the bytes of bodies, and the file of the refused.

    Raises: PublishFailed.
    """
    from broker.pipeline.sink.bad_records import BadRecordFile

    refused = BadRecordFile(Path(how.refused))
    size = published = 0
    publisher: AmqpPublisher | None = None
    try:
        with ExitStack() as connection:
            for batch in batches:
                if publisher is None:  # an empty partition opens no connection
                    publisher = connection.enter_context(AmqpPublisher(how.address, how.options, refused.add))
                size += batch.column("body").nbytes
                rows = list(outgoing(how, batch))
                if how.speed:
                    publish_at_speed(publisher, how, rows, batch.column("ts"))
                else:
                    publisher.publish(rows)
                published = publisher.published
        refused.close()
    except BaseException:
        with suppress(OSError):
            refused.remove()
        raise
    dropped = 0 if publisher is None else publisher.dropped
    return published, refused.rows, dropped, size, refused.name


def outgoing(how: Publishing, batch: pa.RecordBatch) -> Iterator[Outgoing]:
    """Yield the messages of a batch; each is identified by the place of its row."""
    changes = how.changes or None
    columns = {name: batch.column(name).to_pylist() for name in COLUMNS if name != "ts"}
    places = zip(*(columns[name] for name in PLACE), strict=True)
    contents = zip(*(columns[name] for name in ("exchange", "routing_key", "properties_raw", "body")), strict=True)
    for place, (exchange, key, properties, body) in zip(places, contents, strict=True):
        octets = properties or NO_PROPERTIES
        yield (
            exchange if how.exchange is None else how.exchange,
            key,
            octets if changes is None else changes(octets),
            body or b"",
            sequence_of(*place[:3]),
            place,
        )


def publish_at_speed(publisher: AmqpPublisher, how: Publishing, rows: Sequence[Outgoing], times: Any) -> None:
    """Publish rows at their due times, which must not decrease."""
    due = [how.began_s + (time_us - how.first_us) / 1e6 / how.speed for time_us in due_us(times)]
    at = 0
    while at < len(rows):
        wait_s = due[at] - time.time()
        if wait_s > 0:
            publisher.drain()  # confirms are not read during the sleep
            time.sleep(min(max(wait_s, SLICE_S), LOOK_S))
            continue
        end = bisect_right(due, time.time(), at)
        publisher.publish(rows[at:end])
        at = end


def due_us(times: Any) -> list[int]:
    """Return the times of rows in microseconds, each at least as late as the one before."""
    import numpy as np
    import pyarrow as pa

    found: Any = np.asarray(times.cast(pa.int64()).fill_null(0))
    return [int(time_us) for time_us in np.maximum.accumulate(found)]
