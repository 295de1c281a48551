"""Content headers, which are relayed unchanged, measured once, and decoded only when needed.

A content header contains class, weight, body size, property flags, and the flagged properties in order (AMQP 0-9-1
section 4.2.6.1). Section 1.8 lists the properties of class basic.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, TypeVar

from pamqp import commands

from broker.amqp.header_facts import (
    MEASURED_DEPTH_MAX,
    MEASURED_ENTRIES_MAX,
    NO_PRIORITY,
    HeaderFacts,
    gather_facts,
)
from broker.amqp.producer_mark import template_of
from broker.amqp.tables import TABLE_DEPTH_MAX, TABLE_ENTRIES_MAX, TableReader, read_timestamp, syntax_error
from broker.amqp.wire import FLAGS, PROPERTIES_AT

Properties = commands.Basic.Properties

# The two lowest bits are not properties of class basic: one is unused, one would announce another flags word.
UNKNOWN_FLAGS: Final = 0b11

FLAG_OF: Final[dict[str, int]] = dict(Properties.flags)
KINDS: Final[tuple[tuple[int, str, str], ...]] = tuple(
    (flag, name, Properties.amqp_type(name)) for name, flag in FLAG_OF.items()
)
DELIVERY_MODE_FLAG: Final = FLAG_OF["delivery_mode"]
# The properties whose text the broker reads.
WATCHED_FLAGS: Final = FLAG_OF["expiration"] | FLAG_OF["reply_to"] | FLAG_OF["user_id"]
WIDTHS: Final = {"octet": 1, "timestamp": 8}

Key = TypeVar("Key")
Value = TypeVar("Value")

KNOWN_MAX: Final = 1024
KNOWN_MAX_BYTES: Final = 512


class HeaderGauge:
    """A gauge that measures content headers and caches the facts of valid ones, because publishers repeat properties.

    Headers of numbered publishes are cached without the number, which differs each time.
    Invariant: each cache has at most 1,024 entries, for properties of at most 512 octets.
    """

    __slots__ = ("_depth_max", "_entries_max", "_templates", "known")

    def __init__(self, depth_max: int, entries_max: int) -> None:
        self._depth_max = depth_max
        self._entries_max = entries_max
        # Property octets -> their facts. The publish path reads this cache directly.
        self.known: dict[bytes, HeaderFacts] = {}
        # Octets before and after the number -> the facts of all headers that differ only in the number.
        self._templates: dict[tuple[bytes, bytes], HeaderFacts] = {}

    def facts(self, header: bytes) -> HeaderFacts:
        """Return the facts of a header, which is measured unless they are cached. Raises: 502, as measure_header()."""
        properties = header[PROPERTIES_AT:]
        facts = self.known.get(properties)
        if facts is None:
            template = template_of(properties)
            if template is not None and (facts := self._templates.get(template)) is not None:
                return facts
            facts = measure_header(header, self._depth_max, self._entries_max)
            if len(properties) <= KNOWN_MAX_BYTES:
                mark = facts.mark
                if mark is None:
                    remember(self.known, properties, facts)
                elif template is not None and template == (mark.before, mark.after):
                    remember(self._templates, template, facts)
        return facts


def remember(known: dict[Key, Value], key: Key, value: Value, most: int = KNOWN_MAX) -> None:
    """Add a value to a cache; a cache with `most` values is emptied first."""
    if len(known) >= most:
        known.clear()
    known[key] = value


@lru_cache(maxsize=8)
def gauge_of(depth_max: int = TABLE_DEPTH_MAX, entries_max: int = TABLE_ENTRIES_MAX) -> HeaderGauge:
    """Return the gauge that all connections with these limits share."""
    return HeaderGauge(depth_max, entries_max)


def facts_of(header: bytes) -> HeaderFacts:
    """Return the facts of a header that was measured on arrival, whatever the limits were then."""
    return gauge_of(MEASURED_DEPTH_MAX, MEASURED_ENTRIES_MAX).facts(header)


def property_flags(header: bytes) -> int:
    """Return the property flags.

    Raises: 502 when they are missing, or announce properties that class basic does not have.
    """
    if len(header) < PROPERTIES_AT + 2:
        raise syntax_error("content header without property flags")
    flags: int = FLAGS.unpack_from(header, PROPERTIES_AT)[0]
    if flags & UNKNOWN_FLAGS:
        raise syntax_error("content header announces properties that class basic does not have")
    return flags


def measure_header(
    header: bytes, depth_max: int = TABLE_DEPTH_MAX, entries_max: int = TABLE_ENTRIES_MAX
) -> HeaderFacts:
    """Measure every property and return the facts; properties that the broker does not need are not decoded.

    Raises: 502 for a malformed header, or a table that TableReader refuses.
    """
    flags = property_flags(header)
    at = PROPERTIES_AT + 2
    limit = len(header)
    delivery_mode: int | None = None
    priority = NO_PRIORITY
    table_at = 0
    texts: dict[str, bytes] = {}
    for flag, name, kind in KINDS:
        if not flags & flag:
            continue
        if at >= limit:
            raise syntax_error(f"property {name} is cut short")
        start = at
        if kind == "shortstr":
            at += 1 + header[at]
            if flag & WATCHED_FLAGS:
                texts[name] = header[start + 1 : at]
        elif kind == "octet":
            at += 1
            if flag == DELIVERY_MODE_FLAG:
                delivery_mode = header[start]
            else:
                priority = header[start]
        elif kind == "table":
            table_at = at
            at = TableReader(header, depth_max, entries_max).skip_table(at, limit)
        else:
            at += WIDTHS[kind]
        if at > limit:
            raise syntax_error(f"property {name} is cut short")
    if at != limit:
        raise syntax_error(f"{limit - at} octets after the properties")
    return gather_facts(header, table_at, delivery_mode, priority, texts)


def decode_properties(
    header: bytes, depth_max: int = MEASURED_DEPTH_MAX, entries_max: int = MEASURED_ENTRIES_MAX
) -> Properties:
    """Return the properties of a content header payload.

    Every measured header can be decoded: text that is not UTF-8 gets replacement characters, and a timestamp that
    datetime cannot represent is a number.
    """
    flags = property_flags(header)
    at = PROPERTIES_AT + 2
    limit = len(header)
    properties = Properties()
    for flag, name, kind in KINDS:
        if not flags & flag:
            continue
        if at >= limit:
            raise syntax_error(f"property {name} is cut short")
        value: Any
        if kind == "table":
            value, at = TableReader(header, depth_max, entries_max, errors="replace").table(at, limit)
        else:
            start, at = at, at + (WIDTHS.get(kind) or 1 + header[at])
            if at > limit:
                raise syntax_error(f"property {name} is cut short")
            if kind == "octet":
                value = header[start]
            elif kind == "timestamp":
                value = read_timestamp(header, start)
            else:
                value = header[start + 1 : at].decode("utf-8", "replace")
        setattr(properties, name, value)
    if at != limit:
        raise syntax_error(f"{limit - at} octets after the properties")
    return properties


class HeaderFields:
    """The MessageFields (see routing) of a content header, decoded at the first access."""

    __slots__ = ("_header", "_properties")

    def __init__(self, header: bytes) -> None:
        self._header = header
        self._properties: Properties | None = None

    @property
    def headers(self) -> Mapping[str, Any]:
        """The headers table, or an empty one."""
        headers: Mapping[str, Any] | None = self._decoded().headers
        return headers or {}

    def property(self, name: str) -> str | None:
        """Return a property as text (a timestamp as seconds since 1970), or None if it is absent."""
        value: Any = getattr(self._decoded(), name)
        if isinstance(value, datetime):
            return str(int(value.replace(tzinfo=value.tzinfo or UTC).timestamp()))
        return None if value is None else str(value)

    def _decoded(self) -> Properties:
        if self._properties is None:
            self._properties = decode_properties(self._header)
        return self._properties
