"""The content header with which a message arrives at the target."""

from __future__ import annotations

import time
from typing import Any, Final

from broker.amqp.content_header import measure_header
from broker.amqp.errors import ProtocolError
from broker.amqp.header_edit import cut_properties, edit_header, read_headers, read_text
from broker.migrate.faults import MigrationFault
from broker.migrate.marker import COUNTED, NO_ENTRIES, Numbered

__all__ = ["DOUBTFUL", "forwarded_header", "remaining_ms"]

DOUBTFUL: Final = "x-possibly-duplicate"
PRODUCER, SEQUENCE, OWN_TABLE = "x-producer", "x-seq", "x-producer-table"
TIMESTAMP_MS: Final = "timestamp_in_ms"  # what RabbitMQ's plugin message_timestamp adds


def forwarded_header(message: Numbered, producer: str, now_s: float | None = None) -> bytes:
    """Return the header with the number, and with what is left of the expiration. Raises: MigrationFault.

    Everything else keeps its octets. The counters of a quorum queue of the source are left out.
    """
    header = message.delivery.header
    try:
        measure_header(header)
    except ProtocolError as error:
        raise MigrationFault(f"a message of the source cannot be read: {error}") from None
    table = cut_properties(header).get("headers")
    drop = [name for name in COUNTED if name in read_headers(header, *COUNTED)]
    headers: dict[str, Any] = {PRODUCER: producer, SEQUENCE: message.number}
    if table == NO_ENTRIES:
        headers[OWN_TABLE] = True
    if message.doubtful:
        headers[DOUBTFUL] = True
    left_ms = remaining_ms(header, time.time() if now_s is None else now_s)
    properties = {} if left_ms is None else {"expiration": str(left_ms)}
    return edit_header(header, set_headers=headers, drop_headers=drop, set_properties=properties)


def remaining_ms(header: bytes, now_s: float) -> int | None:
    """Return what is left of the expiration, if the message says when it was made; None to leave it as it is.

    An older time than that was not the time of the publish, or the source would have dropped the message.
    """
    text = read_text(header, "expiration")
    if text is None or not text.isdecimal():
        return None
    expiration_ms = int(text)
    made_ms = read_headers(header, TIMESTAMP_MS).get(TIMESTAMP_MS)
    if not isinstance(made_ms, int):
        stamp = cut_properties(header).get("timestamp")
        if stamp is None:
            return None
        made_ms = int.from_bytes(stamp, "big") * 1000
    age_ms = int(now_s * 1000) - made_ms
    return max(1, expiration_ms - age_ms) if 0 < age_ms < expiration_ms else None
