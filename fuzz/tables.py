"""Fuzzes field tables and content headers: the broker refuses them with 502, or decodes them like pamqp.

python -m fuzz.tables --inputs 1000000 --seed 7
"""

from __future__ import annotations

import struct
import sys
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from random import Random
from typing import Any

from pamqp import decode

from broker.amqp.content_header import decode_properties, measure_header
from broker.amqp.errors import ConnectionFault
from broker.amqp.header_facts import NO_PRIORITY
from broker.amqp.tables import TableReader
from fuzz.campaign import main
from fuzz.grammar import header, table
from fuzz.mutation import NUMBERS, OCTETS


def spoiled(rng: Random, octets: bytes) -> bytes:
    """Return octets with up to two changes that often affect lengths and types."""
    for _ in range(rng.choice([0, 1, 1, 1, 2])):
        at = rng.randrange(len(octets) + 1)
        roll = rng.random()
        if roll < 0.3:
            octets = octets[:at] + bytes([rng.choice([*OCTETS, *b"tbBsuIilLfdDSATFVx"])]) + octets[at + 1 :]
        elif roll < 0.5:
            octets = octets[:at] + struct.pack(">I", rng.choice(NUMBERS)) + octets[at + 4 :]
        elif roll < 0.7:
            octets = octets[:at] + octets[at + rng.choice([1, 2, 4, 9]) :]
        elif roll < 0.9:
            octets = octets[:at] + rng.randbytes(rng.choice([1, 4])) + octets[at:]
        else:
            octets = octets[:at]
    return octets


def depth_of(value: Any) -> int:
    """Return the nesting depth of tables and arrays in a value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


def only_502(error: ConnectionFault) -> None:
    """Raise an error unless its code is 502, that of malformed tables."""
    if error.reply_code != 502:
        raise error


def differs_in_pamqp(value: Any) -> bool:
    """Return whether pamqp decodes the value differently: signed decimals, and times that it takes for ms."""
    if isinstance(value, dict | list):
        return any(map(differs_in_pamqp, value.values() if isinstance(value, dict) else value))
    return isinstance(value, datetime | Decimal) or (isinstance(value, int) and value >= 1 << 32)


def check_table(rng: Random) -> str:
    """Decode one mutated table, and return the outcome."""
    octets = spoiled(rng, table(rng))
    results: list[Any] = []
    for errors in ("strict", "replace"):
        try:
            results.append(TableReader(octets, errors=errors).table(0, len(octets)))
        except ConnectionFault as error:
            only_502(error)
            results.append(None)
    try:
        end = TableReader(octets).skip_table(0, len(octets))
    except ConnectionFault as error:
        only_502(error)
        end = -1
    strict, shown = results
    assert (shown is None) == (end < 0), "skipping and reading accept the same"
    if strict is None:
        return "table shown" if shown else "table refused"
    assert strict == shown or repr(strict) == repr(shown)
    value, stop = strict
    assert stop == end <= len(octets)
    assert depth_of(value) <= 16
    if not differs_in_pamqp(value):
        with suppress(ValueError, OverflowError):  # a time beyond the calendar, under a repeated name
            assert repr(decode.field_table(octets[:stop])[1]) == repr(value)
    return "table read"


def check_header(rng: Random) -> str:
    """Measure one mutated content header, and return the outcome."""
    octets = spoiled(rng, header(rng, 5))
    try:
        facts = measure_header(octets)
    except ConnectionFault as error:
        only_502(error)
        return "header refused"
    # A header that passes can be decoded, with equal values.
    properties = decode_properties(octets)
    assert facts.persistent == (properties.delivery_mode == 2)
    assert facts.priority == (NO_PRIORITY if properties.priority is None else properties.priority)
    assert facts.special or properties.user_id is None
    return "header read"


def check(rng: Random) -> str:
    """Check one table or content header."""
    return check_table(rng) if rng.random() < 0.6 else check_header(rng)


if __name__ == "__main__":
    sys.exit(main("tables", check))
