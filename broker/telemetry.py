"""Logging: events as text for a terminal or as JSON lines, without secrets and without floods.

An event is `noun.past_verb`, with keys such as conn, vhost and queue. Events above debug are never logged per message.
"""

from __future__ import annotations

import json
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from json.encoder import encode_basestring_ascii
from typing import Any, Final, TextIO

from broker.log_writer import LogWriter

DEBUG: Final = 10
INFO: Final = 20
WARNING: Final = 30
ERROR: Final = 40
LEVELS: Final = {"debug": DEBUG, "info": INFO, "warning": WARNING, "error": ERROR}
REDACTED: Final = "[redacted]"
DEPTH_MAX: Final = 6  # deeper values are replaced
REMEMBERED_MAX: Final = 1024  # kinds of warnings whose repetitions are counted
KEYS_MAX: Final = 1024  # cached keys of events

SECOND_NS: Final = 1_000_000_000
TEXT_MAX: Final = 1 << 15  # characters of one value; longer values, which clients may send, are cut

# Keys whose values are secret in any event, such as user_password, sasl_response, new_secret. Source: CVE-2025-50200.
SECRET_KEY: Final = re.compile(
    r"pass(word|wd|phrase)?$|secret|sasl|^response$|authori[sz]ation|token|credential|cookie", re.IGNORECASE
)
# user:password@ of a URI; the match ends at the last @, because a password may contain one. Source: CVE-2026-66068.
URI_CREDENTIALS: Final = re.compile(r"([a-z][a-z0-9+.-]{0,30}://)[^\s'\"<>]{0,1024}@", re.IGNORECASE)
# RFC 4616: [authzid] NUL authcid NUL passwd, raw or as repr() writes it.
SASL_PLAIN: Final = re.compile(r"[^\s\0]{0,255}(?:\0|\\x00|\\0)[^\0\\]{1,255}(?:\0|\\x00|\\0)[^\s\0]*")


class LineLogger:
    """Write each event as one line. It has the methods of a structlog logger that the broker calls.

    Cost: each connection logs two lines, so this class is compiled and has no chain of processors.
    """

    __slots__ = ("_form", "_least", "_repeated", "_stamp", "_write")

    def __init__(
        self, out: TextIO | LogWriter, level: str = "info", form: str = "auto", repeat_interval_ms: int = 10_000
    ) -> None:
        """Drop events below `level`. `form` auto is text where `out` is a terminal, else JSON."""
        terminal = out.isatty()
        as_text = form == "text" or (form == "auto" and terminal)
        self._least = LEVELS[level]
        self._form = text_form(terminal) if as_text else json_line
        self._repeated = RepeatedWarnings(repeat_interval_ms / 1000, time.monotonic)
        self._stamp = TimeStamp(time.time_ns)
        self._write: Callable[[str], int] = out.write

    def debug(self, event: str, **fields: Any) -> None:
        """Log an event for developers."""
        if self._least <= DEBUG:
            self._log("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Log an event of normal operation."""
        if self._least <= INFO:
            self._log("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log an event that needs attention, unless an equal one was logged within the interval."""
        if self._least <= WARNING:
            suppressed = self._repeated.admit(event, fields)
            if suppressed is not None:
                self._log("warning", event, fields, suppressed)

    def error(self, event: str, **fields: Any) -> None:
        """Log a failure."""
        self._log("error", event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """Log a failure with the traceback of the exception that is being handled."""
        self._log("error", event, {"exc_info": True, **fields})

    def _log(self, level: str, event: str, fields: dict[str, Any], suppressed: int = 0) -> None:
        exc_info = fields.pop("exc_info", None)
        line = redact(fields)
        line["event"] = event
        line["level"] = level
        if suppressed:
            line["suppressed"] = suppressed
        line["timestamp"] = self._stamp.now()
        if exc_info:
            from structlog.processors import format_exc_info  # noqa: PLC0415 - tracebacks are rare

            line |= redact(format_exc_info(None, level, {"exc_info": exc_info}))
        self._write(self._form(line) + "\n")


def redact(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of an event without passwords, SASL responses and credentials of URIs, however deeply nested."""
    return {key: _redacted(key, value, DEPTH_MAX) for key, value in event.items()}


def _redacted(key: object, value: Any, depth: int) -> Any:
    if isinstance(key, str) and value is not None and key_of(key).is_secret:
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
        return {str(name): _redacted(name, inner, depth - 1) for name, inner in value.items()}  # depth: counted
    if isinstance(value, Sequence):
        return [_redacted(None, inner, depth - 1) for inner in value]  # depth: counted
    text = str(value)  # an exception or a path, for example
    return _redacted(None, text, depth - 1)  # depth: counted


class Key:
    """A key of events: whether its values are secret, and its JSON text with the colon."""

    __slots__ = ("in_json", "is_secret")

    def __init__(self, name: str) -> None:
        self.is_secret = SECRET_KEY.search(name) is not None
        self.in_json = quoted(name) + ": "


def key_of(name: str) -> Key:
    """Return a cached key. Events share a few keys, and functools.lru_cache would cost more."""
    key = _keys.get(name)
    if key is None:
        if len(_keys) >= KEYS_MAX:
            _keys.clear()
        key = _keys[name] = Key(name)
    return key


_keys: Final[dict[str, Key]] = {}


def _redacted_text(text: str) -> str:
    """Return a text without secrets, and shortened if it is long."""
    if len(text) > TEXT_MAX:
        text = text[:TEXT_MAX] + "[cut]"
    if "://" in text:
        text = URI_CREDENTIALS.sub(rf"\1{REDACTED}@", text)
    if "\0" in text or "\\" in text:
        text = SASL_PLAIN.sub(REDACTED, text)
    return text


def text_form(terminal: bool) -> Callable[[dict[str, Any]], str]:
    """Return a function that formats an event as text, for a terminal with colours and aligned columns."""
    from structlog.dev import ConsoleRenderer  # noqa: PLC0415 - JSON lines need none of it

    render = ConsoleRenderer(colors=terminal, pad_event_to=28 if terminal else 0)
    return lambda event: str(render(None, str(event["level"]), escape(event)))


def escape(event: dict[str, Any]) -> dict[str, Any]:
    """Escape unprintable characters, so that a name chosen by a client cannot end a line or control a terminal."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            kept = "\n" if key == "exception" else ""  # a traceback has lines
            event[key] = "".join(c if c.isprintable() or c in kept else ascii(c)[1:-1] for c in value)
    return event


def json_line(event: dict[str, Any]) -> str:
    """Return an event as one line of JSON. Most values are strings, which do not need the full encoder."""
    fields: list[str] = []
    for key, value in event.items():
        fields.append(key_of(key).in_json + (quoted(value) if isinstance(value, str) else encode_value(value)))
    return "{" + ", ".join(fields) + "}"


quoted: Final[Callable[[str], str]] = encode_basestring_ascii
encode_value: Final = json.JSONEncoder(default=str).encode


class TimeStamp:
    """Return the time in UTC, as ISO 8601 with microseconds.

    Cost: the calendar is computed once per second.
    """

    __slots__ = ("_clock_ns", "_second")

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._second = (-1, "")  # seconds since the epoch and their text; one tuple, because any thread may log

    def now(self) -> str:
        """Return the present time."""
        seconds, rest_ns = divmod(self._clock_ns(), SECOND_NS)
        second, text = self._second
        if second != seconds:
            text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
            self._second = (seconds, text)
        return f"{text}.{str(rest_ns // 1000).zfill(6)}Z"  # faster than :06d, which is parsed at each call


class RepeatedWarnings:
    """Admit a warning once per interval, and count its repetitions for the next admitted warning.

    Two warnings are equal if their event, kind, reason, user, vhost and queue are. Errors are never suppressed.
    Cost: one dictionary look-up per warning; only the REMEMBERED_MAX newest kinds are kept.
    """

    __slots__ = ("_clock", "_interval_s", "_seen")

    def __init__(self, interval_s: float, clock: Callable[[], float]) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._seen: OrderedDict[tuple[object, ...], list[float]] = OrderedDict()  # kind -> [admitted at, suppressed]

    def admit(self, event: str, fields: Mapping[str, Any]) -> int | None:
        """Return the number suppressed before this warning, or None to suppress it too."""
        if not self._interval_s:
            return 0
        kind = (event, *(str(fields.get(name)) for name in ("kind", "reason", "user", "vhost", "queue")))
        now = self._clock()
        entry = self._seen.get(kind)
        if entry is not None and now - entry[0] < self._interval_s:
            entry[1] += 1
            return None
        suppressed = 0 if entry is None else int(entry[1])
        self._seen[kind] = [now, 0]
        self._seen.move_to_end(kind)
        if len(self._seen) > REMEMBERED_MAX:
            self._seen.popitem(last=False)
        return suppressed
