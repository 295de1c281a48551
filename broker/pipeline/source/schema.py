"""The columns of a message row (version 2), a slot row and an unreadable record, in the sources and in the lake.

Columns are only ever added, and all are nullable: the columns that an older file lacks are read as null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

INSTANT: Final = pa.timestamp("us", tz="UTC")

ARROW_SCHEMA: Final = pa.schema(
    [
        ("vhost", pa.string()),
        ("queue", pa.string()),  # the tap's name, without the prefix of its queue
        ("slot", pa.int64()),  # the first message id of the slot
        ("seal", pa.int64()),  # 0 in a snapshot
        ("offset", pa.int64()),  # the message id
        ("ts", INSTANT),  # when the queue accepted the message, in whole milliseconds
        ("exchange", pa.string()),
        ("routing_key", pa.string()),
        ("redelivered", pa.bool_()),
        ("priority", pa.int16()),  # an unsigned octet, too large for a signed byte
        ("delivery_mode", pa.int16()),
        ("content_type", pa.string()),
        ("content_encoding", pa.string()),
        ("correlation_id", pa.string()),
        ("reply_to", pa.string()),
        ("expiration", pa.string()),
        ("message_id", pa.string()),
        ("type", pa.string()),
        ("user_id", pa.string()),
        ("app_id", pa.string()),
        ("app_ts", INSTANT),  # AMQP's timestamp property, in whole seconds
        ("headers", pa.string()),  # see header_json
        ("properties_raw", pa.binary()),  # the content header from the property flags on
        ("body", pa.binary()),
        ("store", pa.string()),  # the id of the data folder
        ("incarnation", pa.string()),  # the id of the run of the broker that wrote the slot
    ]
)

COLUMNS: Final = tuple(ARROW_SCHEMA.names)

SLOTS_ARROW_SCHEMA: Final = pa.schema(
    [
        ("vhost", pa.string()),
        ("queue", pa.string()),
        ("number", pa.int64()),
        ("slot", pa.int64()),
        ("seal", pa.int64()),
        ("first", pa.int64()),
        ("end", pa.int64()),  # the id after the last message id
        ("count", pa.int64()),
        ("bytes", pa.int64()),
        ("first_ts", INSTANT),
        ("last_ts", INSTANT),
        ("crc", pa.int64()),
        ("store", pa.string()),
        ("path", pa.string()),  # the path of the slot file, or its URL without a password
        ("incarnation", pa.string()),
    ]
)

BAD_SCHEMA: Final = pa.schema(
    [
        ("store", pa.string()),
        ("vhost", pa.string()),
        ("queue", pa.string()),
        ("slot", pa.int64()),
        ("seal", pa.int64()),
        ("row", pa.int64()),  # the row's number in the slot, from 0; null for a whole slot
        ("offset", pa.int64()),  # the message id; for a whole slot the first one
        ("rows", pa.int64()),  # the number of messages: 1, or all of a whole slot
        ("ts", INSTANT),
        ("reason", pa.string()),
        ("raw", pa.binary()),  # at most 1 MiB; null for a whole slot
        ("query", pa.string()),  # the archive that found the record
        ("incarnation", pa.string()),
    ]
)

_SPARK_TYPES: Final = {
    pa.string(): "string",
    pa.int64(): "bigint",
    pa.int16(): "smallint",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
    INSTANT: "timestamp",
}


def ddl_of(schema: pa.Schema, columns: Sequence[str] = ()) -> str:
    """Return the named columns of a schema, or all if none are named, as Spark's DDL."""
    return ", ".join(f"`{name}` {_SPARK_TYPES[schema.field(name).type]}" for name in columns or schema.names)
