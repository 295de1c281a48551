"""Logging: structlog as text for a terminal or as JSON lines, without secrets and without floods.

An event is `noun.past_verb` with fixed keys (conn, vhost, user, queue, slot); nothing above debug is said per message.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from typing import Any, Final, TextIO, cast

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from broker.log_writer import LogWriter

__all__ = ["RepeatedWarnings", "configure", "redact"]

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
REDACTED: Final = "[redacted]"
DEPTH_MAX: Final = 6  # values deeper than this are not looked through but replaced
REMEMBERED_MAX: Final = 1024  # kinds of repeated warnings kept apart
KEYS_MAX: Final = 1024  # keys that were looked through for what names a secret

SECOND_NS: Final = 1_000_000_000
TEXT_MAX: Final = 1 << 15  # characters of one value; what a client sends may be longer than anyone reads

# Names that hold a secret in any company: user_password, sasl_response, new_secret. Source: CVE-2025-50200.
SECRET_KEY: Final = re.compile(
    r"pass(word|wd|phrase)?$|secret|sasl|^response$|authori[sz]ation|token|credential|cookie", re.IGNORECASE
)
# user:password@ of a URI; it reaches to the last @, for a password may hold one too. Source: CVE-2026-66068.
URI_CREDENTIALS: Final = re.compile(r"([a-z][a-z0-9+.-]{0,30}://)[^\s'\"<>]{0,1024}@", re.IGNORECASE)
# RFC 4616: [authzid] NUL authcid NUL passwd, raw or as repr() writes it.
SASL_PLAIN: Final = re.compile(r"[^\s\0]{0,255}(?:\0|\\x00|\\0)[^\0\\]{1,255}(?:\0|\\x00|\\0)[^\s\0]*")


def configure(
    level: str = "info", form: str = "auto", repeat_interval_ms: int = 10_000, out: TextIO | LogWriter | None = None
) -> Any:
    """Set structlog up for the process, and return a logger, which a later call does not change.

    `form` auto is text where `out` (standard error) is a terminal, else JSON.
    """
    stream = out or sys.stderr
    terminal = stream.isatty()
    as_text = form == "text" or (form == "auto" and terminal)
    processors: list[Processor] = [
        structlog.processors.add_log_level,
        RepeatedWarnings(repeat_interval_ms / 1000, time.monotonic),
        TimeStamp(time.time_ns),
        structlog.processors.format_exc_info,
        redact,
    ]
    if as_text:
        processors.append(spell_out)
        # an event's name is short, and a file or a pipe has no use for columns
        processors.append(structlog.dev.ConsoleRenderer(colors=terminal, pad_event_to=28 if terminal else 0))
    else:
        processors.append(as_json)
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", stream)),
        cache_logger_on_first_use=True,
    )
    return structlog.get_logger().bind()


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Replace passwords, SASL answers and the credentials of URIs, wherever they stand in an event."""
    return {key: _redacted(key, value, DEPTH_MAX) for key, value in event.items()}


def _redacted(key: object, value: Any, depth: int) -> Any:
    if isinstance(key, str) and value is not None and names_secret(key):
        return REDACTED
    if isinstance(value, str):
        return _redacted_text(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _redacted_text(bytes(value).decode(errors="backslashreplace"))
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if depth == 0:
        return REDACTED
    if isinstance(value, Mapping):
        return {str(name): _redacted(name, inner, depth - 1) for name, inner in value.items()}
    if isinstance(value, Sequence):
        return [_redacted(None, inner, depth - 1) for inner in value]
    return _redacted(None, str(value), depth - 1)  # an exception or a path: what the renderer would have printed


@lru_cache(KEYS_MAX)
def names_secret(key: str) -> bool:
    """Return whether the value of a key is a secret; the same few keys come with every event."""
    return SECRET_KEY.search(key) is not None


def _redacted_text(text: str) -> str:
    """Return a text without secrets. Hardly any has what a secret cannot be without, so that is looked for first."""
    if len(text) > TEXT_MAX:
        text = text[:TEXT_MAX] + "[cut]"
    if "://" in text:
        text = URI_CREDENTIALS.sub(rf"\1{REDACTED}@", text)
    if "\0" in text or "\\" in text:
        text = SASL_PLAIN.sub(REDACTED, text)
    return text


def spell_out(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Escape what is not printable, so that a name chosen by a client can neither end a line nor steer a terminal."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            kept = "\n" if key == "exception" else ""  # a traceback has lines
            event[key] = "".join(c if c.isprintable() or c in kept else ascii(c)[1:-1] for c in value)
    return event


def as_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    """Return an event as one line of JSON; nearly all values are texts, which need no encoder of their own."""
    fields = [
        f"{quoted(key)}: {quoted(value) if isinstance(value, str) else encode_value(value)}"
        for key, value in event.items()
    ]
    return "{" + ", ".join(fields) + "}"


quoted: Final[Callable[[str], str]] = encode_basestring_ascii
encode_value: Final = json.JSONEncoder(default=str).encode


class TimeStamp:
    """Adds the time in UTC, as ISO 8601 with microseconds.

    Cost: the calendar is asked once per second.
    """

    __slots__ = ("_clock_ns", "_second")

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._second = (-1, "")  # since the epoch, and as text; replaced at once, because any thread may log

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        """Return the event with its time."""
        seconds, rest_ns = divmod(self._clock_ns(), SECOND_NS)
        second, text = self._second
        if second != seconds:
            text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
            self._second = (seconds, text)
        event["timestamp"] = f"{text}.{str(rest_ns // 1000).zfill(6)}Z"  # a format would be parsed each time
        return event


class RepeatedWarnings:
    """Passes a warning on once per interval and counts the rest; the next one that passes says suppressed=n.

    Two warnings are the same when event, kind, reason, user, vhost and queue are. Errors are never held back.
    Cost: one dictionary look-up a warning; at most REMEMBERED_MAX kinds are kept, the oldest goes first.
    """

    __slots__ = ("_clock", "_interval_s", "_seen")

    def __init__(self, interval_s: float, clock: Callable[[], float]) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._seen: OrderedDict[tuple[object, ...], list[float]] = OrderedDict()  # kind -> [when it passed, suppressed]

    def __call__(self, _logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        """Return the event. Raises: structlog.DropEvent when it is one too many."""
        if method != "warning" or not self._interval_s:
            return event
        kind = tuple(str(event.get(name)) for name in ("event", "kind", "reason", "user", "vhost", "queue"))
        now = self._clock()
        entry = self._seen.get(kind)
        if entry is not None and now - entry[0] < self._interval_s:
            entry[1] += 1
            raise structlog.DropEvent
        if entry is not None and entry[1]:
            event["suppressed"] = int(entry[1])
        self._seen[kind] = [now, 0]
        self._seen.move_to_end(kind)
        if len(self._seen) > REMEMBERED_MAX:
            self._seen.popitem(last=False)
        return event
