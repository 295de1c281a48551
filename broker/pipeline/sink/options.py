"""The options of the sink, as `df.write.option(...)` sets them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from broker.client.address import AmqpAddress, BadAddress
from broker.pipeline.faults import SinkRefused
from broker.pipeline.option_names import NO_TABLE, known_options
from broker.pipeline.sink.amqp_publisher import PublisherOptions
from broker.pipeline.sink.property_columns import PRODUCER_MAX_BYTES

__all__ = ["SinkOptions"]

NAMES: Final = (
    "url", "exchange", "routingKey", "window", "producer", "mandatory", "badRecords", "rate", "persistent",
    "nackAttempts", "retrySeconds", "sequenceColumn",
)  # fmt: skip
BY_SPARK: Final = ("checkpointLocation",)  # an option of streams that belongs to Spark
WINDOW_MAX: Final = 65_535
FLAGS: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where rows are published, and how.

    Shapes: `exchange` and `routing_key` are for rows that name none; `sequence` is the column that numbers rows, None
        if their place in a slot does; `persistent` None keeps each delivery mode; `bad_records` is the folder for
        refused rows, None if a refusal is an error; `checkpoint` is the checkpoint of a stream, if it is named and
        is a folder.
    """

    address: AmqpAddress
    publisher: PublisherOptions
    exchange: str | None
    routing_key: str | None
    sequence: str | None
    persistent: bool | None
    bad_records: Path | None
    checkpoint: Path | None

    @classmethod
    def read(cls, options: Mapping[str, str]) -> SinkOptions:
        """Return the options. Raises: SinkRefused for an unknown or invalid one."""
        given = known_options(options, NAMES, SinkRefused, BY_SPARK)
        if "url" not in given:
            raise SinkRefused(f"the option url is missing: amqp://user:password@host:port/vhost; {NO_TABLE}")
        producer = given.get("producer", "")
        if len(producer.encode()) > PRODUCER_MAX_BYTES:
            raise SinkRefused(f"the option producer has more than {PRODUCER_MAX_BYTES} bytes")
        sequence = given.get("sequenceColumn")
        if sequence is not None and not producer:
            raise SinkRefused("the option sequenceColumn numbers the messages of a producer: name one with producer")
        try:
            address = AmqpAddress.parse(given["url"])
        except BadAddress as bad:
            raise SinkRefused(str(bad)) from None  # by the name that reaches the user
        return cls(
            address=address,
            publisher=PublisherOptions(
                producer=producer,
                window=int(_number(given, "window", 1000, 1, WINDOW_MAX)),
                mandatory=bool(_flag(given, "mandatory", default=True)),
                rate=_number(given, "rate", 0, 0, 1e9),
                nack_attempts=int(_number(given, "nackAttempts", 8, 1, 1000)),
                retry_s=_number(given, "retrySeconds", 30, 0, 86_400),
                name="slotmq sink",
            ),
            exchange=given.get("exchange"),
            routing_key=given.get("routingKey"),
            sequence=sequence,
            persistent=_flag(given, "persistent", default=None),
            bad_records=_folder(given, "badRecords"),
            checkpoint=_folder(given, "checkpointLocation"),
        )


def _number(given: Mapping[str, str], name: str, default: float, least: float, most: float) -> float:
    text = given.get(name)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise SinkRefused(f"the option {name} should be a number from {least:g} to {most:g}, not {text!r}")
    return number


def _flag(given: Mapping[str, str], name: str, *, default: bool | None) -> bool | None:
    text = given.get(name)
    if text is None:
        return default
    if text.lower() not in FLAGS:
        raise SinkRefused(f"the option {name} should be true or false, not {text!r}")
    return FLAGS[text.lower()]


def _folder(given: Mapping[str, str], name: str) -> Path | None:
    text = given.get(name)
    if text is None:
        return None
    parts = urlsplit(text)
    path = Path(unquote(parts.path) if parts.scheme else text)
    if parts.scheme not in ("", "file") or not path.is_absolute():
        if name != "badRecords":
            return None
        raise SinkRefused(
            f"the option {name} should be the absolute path of a folder that all workers see, not {text!r}"
        )
    return path
