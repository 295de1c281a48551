"""The facts of a content header that the broker needs to route, store and expire its message."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import Any, Final

from broker.amqp.errors import ChannelError
from broker.amqp.producer_mark import PRODUCER, SEQUENCE, SEQUENCE_OCTETS, mark_entries, without_mark
from broker.amqp.tables import ARRAY, TYPE_NAMES, Entry, TableReader
from broker.amqp.wire import PROPERTIES_AT, SHORT_STRING_MAX_BYTES, TABLE_NESTING_MAX

# Ten years, RabbitMQ's maximum (rabbit_misc:check_expiry/1).
EXPIRATION_MAX_MS: Final = 315_360_000_000
INTEGER: Final = re.compile(rb"[+-]?[0-9]+")
PRINTABLE: Final = frozenset({*range(0x20, 0x7F), *range(0xA0, 0x100), *b"\n\r\t\v\b\f\x1b"})
ESCAPES: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v", "\b": r"\b", "\f": r"\f", "\x1b": r"\e"}
ESCAPED: Final = str.maketrans({**ESCAPES, '"': r"\"", "\\": r"\\"})
# Limits for a header that was measured on arrival, whatever the settings were then.
MEASURED_DEPTH_MAX: Final = TABLE_NESTING_MAX
MEASURED_ENTRIES_MAX: Final = 1 << 31

FACTS_MAX: Final = 1024
PERSISTENT_MODE: Final = 2  # any other mode is transient
DIRECT_REPLY_TO: Final = b"amq.rabbitmq.reply-to"
CC, BCC, DELAY, RETAIN = b"CC", b"BCC", b"x-delay", b"x-mqtt-retain"
# These names as short strings: a table without their octets need not be decoded.
CC_OCTETS, BCC_OCTETS, DELAY_OCTETS, RETAIN_OCTETS = (bytes([len(name)]) + name for name in (CC, BCC, DELAY, RETAIN))
HEADERS_READ: Final = frozenset((CC, BCC, DELAY, RETAIN, PRODUCER, SEQUENCE))
MISSING: Final = object()
NO_PRIORITY: Final = -1


def parse_expiration(octets: bytes) -> int:
    """Return an expiration in milliseconds.

    Raises: ValueError with RabbitMQ's reason, an Erlang term, for the text of a 406.
    Source: RabbitMQ, rabbit_basic:parse_expiration/1.
    """
    integer = INTEGER.match(octets)
    if integer is None:
        raise ValueError("no_integer")
    end = integer.end()
    if rest := octets[end:]:
        raise ValueError(f"{{leftover_string,{erlang_string(rest)}}}")
    expiration_ms = int(octets)
    if expiration_ms < 0:
        raise ValueError(f"{{value_negative,{expiration_ms}}}")
    if expiration_ms > EXPIRATION_MAX_MS:
        raise ValueError(f"{{value_too_large,{expiration_ms}}}")
    return expiration_ms


def erlang_string(octets: bytes) -> str:
    """Return octets as Erlang prints a list of them: as a quoted text if all are printable."""
    if PRINTABLE.issuperset(octets):
        return f'"{octets.decode("latin-1").translate(ESCAPED)}"'
    return f"[{','.join(map(str, octets))}]"


class HeaderFacts:
    """The facts of a content header that the broker needs, shared by headers with equal properties.

    A publish with `special` facts needs the detailed check, which reads the optional attributes. The attributes `cc` to
    `retain` are decoded headers, or MISSING. `fault` is the text of the 406 for invalid properties, or None. Facts are
    `plain` if they are not special and there is no expiration.
    Invariant: immutable.
    """

    __slots__ = ("bcc", "cc", "delay", "expiration_ms", "fault", "mark", "persistent", "plain", "priority", "reply_to",
                 "retain", "special", "user_id")  # fmt: skip

    def __init__(
        self,
        persistent: bool,
        priority: int,
        expiration_ms: int | None,
        *,
        special: bool = False,
        reply_to: str | None = None,
        user_id: str | None = None,
        cc: Any = MISSING,
        bcc: Any = MISSING,
        delay: Any = MISSING,
        retain: Any = MISSING,
        fault: str | None = None,
        mark: ProducerMark | None = None,
    ) -> None:
        """Shapes: `priority` is NO_PRIORITY if absent; `expiration_ms` is None if absent or malformed."""
        self.persistent = persistent
        self.priority = priority
        self.expiration_ms = expiration_ms
        self.plain = not special and expiration_ms is None
        self.special = special
        self.reply_to = reply_to
        self.user_id = user_id
        self.cc = cc
        self.bcc = bcc
        self.delay = delay
        self.retain = retain
        self.fault = fault
        self.mark = mark  # set for a numbered publish; `mark.facts` are the facts without the number


class ProducerMark:
    """The position of the sequence number in content headers, and the properties without it.

    Headers whose properties differ only in the number share a mark. Each has `header_bytes` octets: 12 octets, then
    `before`, the number and `after`.
    Shapes: `bare` contains the property octets as consumers see them, and `facts` are their facts.
    Invariant: immutable.
    """

    __slots__ = ("after", "bare", "before", "facts", "header_bytes", "plain", "producer", "sequence_at", "unpack")

    def __init__(
        self, header: bytes, producer: str, sequence_at: int, layout: Struct, bare: bytes, facts: HeaderFacts
    ) -> None:
        self.producer = producer
        self.sequence_at = sequence_at
        self.bare = bare
        self.facts = facts
        self.plain = facts.plain
        self.before = header[PROPERTIES_AT:sequence_at]
        self.after = header[sequence_at + layout.size :]
        self.header_bytes = len(header)
        self.unpack: Callable[[bytes, int], tuple[Any, ...]] = layout.unpack_from

    def sequence(self, header: bytes) -> int:
        """Return the number in one of the headers that share the mark. Raises: ChannelError 406 for a negative one."""
        sequence: int = self.unpack(header, self.sequence_at)[0]
        if sequence < 0:
            raise ChannelError(406, f"invalid message: x-seq is {sequence}, which is less than 0")
        return sequence


@lru_cache(maxsize=FACTS_MAX)
def plain_facts(persistent: bool, priority: int, expiration_ms: int | None) -> HeaderFacts:
    """Return the facts of properties that are not special."""
    return HeaderFacts(persistent, priority, expiration_ms)


def gather_facts(
    header: bytes, table_at: int, delivery_mode: int | None, priority: int, texts: dict[str, bytes]
) -> HeaderFacts:
    """Return the facts of a measured header.

    Shapes: `table_at` is the offset of the headers table, or 0 if there is none; `texts` maps expiration, reply_to and
        user_id, if present, to their octets.
    """
    persistent = delivery_mode == PERSISTENT_MODE
    expiration_ms: int | None = None
    fault: str | None = None
    if "expiration" in texts:
        expiration_ms, fault = read_expiration(texts["expiration"])
    named = named_entries(header, table_at) if table_at and may_name_headers(header) else {}
    if PRODUCER in named and SEQUENCE in named:
        return gather_numbered(header, table_at, delivery_mode, priority, texts, named)
    if not (named or fault or "user_id" in texts or texts.get("reply_to") == DIRECT_REPLY_TO):
        return plain_facts(persistent, priority, expiration_ms)
    reply_to, user_id = (
        texts[name].decode("utf-8", "replace") if name in texts else None for name in ("reply_to", "user_id")
    )
    reader = TableReader(header, MEASURED_DEPTH_MAX, MEASURED_ENTRIES_MAX, errors="replace")
    cc, bcc, delay, retain = (
        reader.value(named[name].value_at, named[name].end) if name in named else MISSING
        for name in (CC, BCC, DELAY, RETAIN)
    )
    return HeaderFacts(
        persistent,
        priority,
        expiration_ms,
        special=True,
        reply_to=reply_to,
        user_id=user_id,
        cc=cc,
        bcc=bcc,
        delay=delay,
        retain=retain,
        fault=fault or refused_routes(header, cc, bcc, named),
    )


def gather_numbered(
    header: bytes,
    table_at: int,
    delivery_mode: int | None,
    priority: int,
    texts: dict[str, bytes],
    named: dict[bytes, Entry],
) -> HeaderFacts:
    """Return the facts of a numbered publish's measured header: those of its bare properties, and the mark or fault."""
    bare, bare_table_at = without_mark(header, table_at, TableReader(header).entries(table_at))
    bare_facts = gather_facts(bare, bare_table_at, delivery_mode, priority, texts)
    fault: str | None = None
    mark: ProducerMark | None = None
    entries = mark_entries(header, named)
    if isinstance(entries, str):
        fault = entries
    else:
        mark = ProducerMark(header, *entries, bare[PROPERTIES_AT:], bare_facts)
    return HeaderFacts(
        bare_facts.persistent, bare_facts.priority, bare_facts.expiration_ms, special=True, fault=fault, mark=mark
    )


def may_name_headers(header: bytes) -> bool:
    """Return whether the headers table may contain an entry that the broker reads. HOT for new headers."""
    return (
        CC_OCTETS in header
        or BCC_OCTETS in header
        or DELAY_OCTETS in header
        or SEQUENCE_OCTETS in header
        or RETAIN_OCTETS in header
    )


def read_expiration(octets: bytes) -> tuple[int | None, str | None]:
    """Return the expiration in milliseconds, or the text of the 406 for a malformed one."""
    try:
        return parse_expiration(octets), None
    except ValueError as error:
        return None, f"invalid expiration '{octets.decode('utf-8', 'replace')}': {error}"


def named_entries(header: bytes, table_at: int) -> dict[bytes, Entry]:
    """Return the entries of the headers table that the broker reads; of equal names, the first entry counts."""
    entries = TableReader(header).entries(table_at)
    return {entry.key: entry for entry in reversed(entries) if entry.key in HEADERS_READ}


def refused_routes(header: bytes, cc: Any, bcc: Any, named: dict[bytes, Entry]) -> str | None:
    """Return the text of the 406 if CC or BCC is invalid, or None otherwise.

    RabbitMQ skips items that are not long strings, and does not limit the length of keys. Here a key is at most as long
    as a routing key, because matching costs the words of a key times the bindings visited.
    """
    for name, keys in ((CC, cc), (BCC, bcc)):
        if name not in named:
            continue
        if (kind := header[named[name].value_at]) != ARRAY:
            return f'invalid message: {{unacceptable_type_in_header,"{name.decode()}",{TYPE_NAMES[kind]}}}'
        if any(isinstance(key, str) and len(key.encode()) > SHORT_STRING_MAX_BYTES for key in keys):
            longest = f"{SHORT_STRING_MAX_BYTES} bytes"
            return f"invalid message: a routing key in header {name.decode()} is longer than {longest}"
    return None
