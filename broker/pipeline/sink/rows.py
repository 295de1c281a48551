"""Convert rows of a frame to messages, and check the options of the sink, the columns and the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from broker.amqp.wire import SHORT_STRING_MAX_BYTES
from broker.client.address import AmqpAddress, BadAddress
from broker.pipeline.faults import SinkRefused, restated
from broker.pipeline.options import NO_TABLE, GivenOptions
from broker.pipeline.sink.amqp_publisher import Outgoing, PublisherOptions, RefusedMessage
from broker.pipeline.sink.property_columns import (
    NO_PROPERTIES,
    PRODUCER_MAX_BYTES,
    PROPERTY_COLUMNS,
    BadProperties,
    HeaderChanges,
    Memo,
    PropertyOctets,
)

NAMES: Final = (
    "url", "exchange", "routingKey", "window", "producer", "mandatory", "badRecords", "rate", "persistent",
    "nackAttempts", "retrySeconds", "sequenceColumn",
)  # fmt: skip
BY_SPARK: Final = ("checkpointLocation",)  # options that Spark itself uses for streams
WINDOW_MAX: Final = 65_535
PLACE_COLUMNS: Final = ("seal", "slot", "offset")
ORIGIN_COLUMNS: Final = ("store", "incarnation")  # identify the history of the seals
NOT_SENT: Final = frozenset(("vhost", "queue", "ts", "redelivered"))  # columns that are not part of a message
SLOT_NUMBERS: Final = 65_536
UNPUBLISHABLE: Final = 0

TEXT, WHOLE, BYTES, MOMENT = ("string",), ("tinyint", "smallint", "int", "bigint"), ("binary",), ("timestamp",)
TYPES: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(PROPERTY_COLUMNS, TEXT),
    **dict.fromkeys(("exchange", "routing_key", *ORIGIN_COLUMNS), TEXT),
    **dict.fromkeys((*PLACE_COLUMNS, "priority", "delivery_mode"), WHOLE),
    "app_ts": MOMENT,
    "properties_raw": BYTES,
    "body": ("binary", "string"),
}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The destination of published rows, and how to publish them.

    Shapes: `exchange` and `routing_key` are for rows that name none; `sequence` is the column with sequence numbers, or
        None if they follow from a row's place in a slot; `persistent` None leaves each delivery mode as it is;
        `bad_records` is the folder for refused rows, or None if a refusal is an error; `checkpoint` is a stream's
        checkpoint, or None if it is not a local folder; `changes` apply to the properties of every row.
    """

    address: AmqpAddress
    publisher: PublisherOptions
    exchange: str | None = None
    routing_key: str | None = None
    sequence: str | None = None
    persistent: bool | None = None
    bad_records: Path | None = None
    checkpoint: Path | None = None
    changes: HeaderChanges = field(default_factory=HeaderChanges)

    @classmethod
    def read(cls, options: Mapping[str, str]) -> SinkOptions:
        """Return the checked options. Raises: SinkRefused."""
        given = GivenOptions(options, NAMES, SinkRefused, BY_SPARK)
        url = given.text("url")
        if url is None:
            raise SinkRefused(f"the option url is missing: amqp://user:password@host:port/vhost; {NO_TABLE}")
        producer = given.text("producer") or ""
        if len(producer.encode()) > PRODUCER_MAX_BYTES:
            raise SinkRefused(f"the option producer has more than {PRODUCER_MAX_BYTES} bytes")
        sequence = given.text("sequenceColumn")
        if sequence is not None and not producer:
            raise SinkRefused("the option sequenceColumn numbers the messages of a producer: name one with producer")
        with restated(BadAddress, SinkRefused):  # `fault_in` recognizes only faults of the pipeline
            address = AmqpAddress.parse(url)
        return cls(
            address=address,
            publisher=PublisherOptions(
                producer=producer,
                window=given.whole("window", most=WINDOW_MAX) or 1000,
                mandatory=given.flag("mandatory") is not False,
                rate=given.number("rate", 0, 0, 1e9),
                nack_attempts=given.whole("nackAttempts", most=1000) or 8,
                retry_s=given.number("retrySeconds", 30, 0, 86_400),
                name="slotmq sink",
            ),
            exchange=given.text("exchange"),
            routing_key=given.text("routingKey"),
            sequence=sequence,
            persistent=given.flag("persistent"),
            bad_records=_folder(given, "badRecords"),
            checkpoint=_folder(given, "checkpointLocation"),
        )


def _folder(given: GivenOptions, name: str) -> Path | None:
    text = given.text(name)
    if text is None:
        return None
    path = Path()
    with suppress(ValueError):  # not a valid URL
        parts = urlsplit(text)
        if parts.scheme in ("", "file"):
            path = Path(unquote(parts.path) if parts.scheme else text)
    if not path.is_absolute():
        if name != "badRecords":
            return None
        raise SinkRefused(
            f"the option {name} should be the absolute path of a folder that all workers see, not {text!r}"
        )
    return path


def check_message_columns(columns: dict[str, str], options: SinkOptions) -> None:
    """Check that rows can be messages. Shapes: `columns` maps names to Spark's type names. Raises: SinkRefused."""
    sequence = options.sequence
    if sequence is not None and columns.get(sequence) not in WHOLE:
        found = f"not {columns[sequence]}" if sequence in columns else "and there is none"
        raise SinkRefused(f"the column {sequence!r} of the option sequenceColumn should be a whole number, {found}")
    for name, kind in columns.items():
        if name in NOT_SENT or (name == sequence and name not in TYPES):
            continue
        if name not in TYPES:
            raise SinkRefused(f"the column {name!r} is not part of a message: drop it or rename it")
        if kind not in TYPES[name]:
            raise SinkRefused(f"the column {name!r} should be {' or '.join(TYPES[name])}, not {kind}")
    if "body" not in columns:
        raise SinkRefused("there is no column 'body'")
    if "routing_key" not in columns and options.routing_key is None:
        raise SinkRefused("there is no column 'routing_key', and no option routingKey")
    if "exchange" not in columns and options.exchange is None:
        raise SinkRefused("there is no column 'exchange', and no option exchange")
    missing = [name for name in PLACE_COLUMNS if name not in columns]
    if options.publisher.producer and sequence is None and missing:
        raise SinkRefused(
            f"the producer numbers rows by the columns seal, slot and offset, and there is no {missing[0]!r}: "
            "name a column of your own with sequenceColumn, or leave out the producer to publish at least once"
        )


class SinkRows:
    """Convert rows to messages.

    Shapes: the identifier of a message is its row's (seal, slot, offset), followed by the store and the incarnation
        unless a column contains the sequence numbers. The values of missing columns are None.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._octets = PropertyOctets(persistent=options.persistent, changes=options.changes)
        self._numbers = bool(options.publisher.producer)
        self._bad_sequence = "the offset is not one of the slot"
        if options.sequence is not None:
            self._bad_sequence = f"the column {options.sequence!r} should be a number from 0 on"
        self._route_faults = Memo(_route_fault, SLOT_NUMBERS)

    def messages(self, batch: pa.RecordBatch, refused: Callable[[RefusedMessage], object]) -> Iterator[Outgoing]:
        """Yield the messages of a batch in order, and pass rows that cannot be messages to `refused`."""
        columns = {name: batch.column(place) for place, name in enumerate(batch.schema.names)}
        rows = batch.num_rows
        lists = {name: columns[name].to_pylist() for name in ("exchange", "routing_key", "body") if name in columns}
        exchanges = lists.get("exchange", [None] * rows)
        keys = lists.get("routing_key", [None] * rows)
        bodies = lists["body"]
        if bodies and isinstance(next((body for body in bodies if body is not None), b""), str):
            bodies = [None if body is None else body.encode() for body in bodies]
        properties = self._properties(columns, rows)
        places = self._places(columns, rows)
        sequences = self._sequences(columns, places)
        options = self._options
        cells = zip(exchanges, keys, properties, bodies, places, sequences, strict=True)
        for exchange, key, found, body, place, sequence in cells:
            where = options.exchange if exchange is None else exchange
            by = options.routing_key if key is None else key
            fault = self._route_faults[where, by]
            octets = NO_PROPERTIES
            if isinstance(found, BadProperties):
                fault = fault or str(found)
            else:
                octets = found
            if sequence is not None and sequence < 0:
                fault = fault or self._bad_sequence
            message: Outgoing = (where or "", by or "", octets, body or b"", sequence, place)
            if fault:
                refused(RefusedMessage(message, UNPUBLISHABLE, fault))
            else:
                yield message

    def _sequences(self, columns: dict[str, pa.Array], places: Sequence[tuple[Any, ...]]) -> Sequence[int | None]:
        """Return the sequence number of each row: None if it has none, negative if it is invalid."""
        if self._options.sequence is not None:
            return [-1 if number is None else number for number in columns[self._options.sequence].to_pylist()]
        return [sequence_of(*place[: len(PLACE_COLUMNS)]) if self._numbers else None for place in places]

    def _places(self, columns: dict[str, pa.Array], rows: int) -> Sequence[tuple[Any, ...]]:
        names = PLACE_COLUMNS if self._options.sequence is not None else (*PLACE_COLUMNS, *ORIGIN_COLUMNS)
        lists = [columns[name].to_pylist() if name in columns else [None] * rows for name in names]
        return list(zip(*lists, strict=True))

    def _properties(self, columns: dict[str, pa.Array], rows: int) -> Sequence[bytes | BadProperties]:
        """Return the property octets of each row, or why its properties cannot be encoded."""
        names = tuple(name for name in PROPERTY_COLUMNS if name in columns)
        raws = columns["properties_raw"].to_pylist() if "properties_raw" in columns else [None] * rows
        values: Iterator[tuple[Any, ...]] = (
            zip(*(columns[name].to_pylist() for name in names), strict=True) if names else iter([()] * rows)
        )
        return [self._octets.of_row(raw, names, row) for raw, row in zip(raws, values, strict=True)]


def sequence_of(seal: int | None, slot: int | None, offset: int | None) -> int | None:
    """Return the sequence number of a row by its place: None without seal, slot or offset, and -1 if it is invalid."""
    if not seal or slot is None or offset is None:
        return None
    return seal * SLOT_NUMBERS + offset - slot if 0 <= offset - slot < SLOT_NUMBERS and seal > 0 else -1


def _route_fault(route: tuple[str | None, str | None]) -> str:
    """Return what is wrong with an exchange or a routing key, or "" if both are valid."""
    return _name_fault("exchange", route[0]) or _name_fault("routing_key", route[1])


def _name_fault(column: str, name: str | None) -> str:
    if name is None:
        return f"the {column} is null"
    size = len(name.encode("utf-8", "surrogatepass"))
    return (
        f"the {column} has {size} bytes, and can have {SHORT_STRING_MAX_BYTES}" if size > SHORT_STRING_MAX_BYTES else ""
    )
