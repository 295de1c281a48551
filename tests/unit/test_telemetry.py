"""Logging: redaction, suppression and the form of a line."""

import io
import json
from typing import Any

import pytest

from broker.telemetry import REMEMBERED_MAX, TEXT_MAX, LineLogger, RepeatedWarnings, TimeStamp, redact


class Clock:
    """A clock that the test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def redacted(**event: Any) -> str:
    """Return the redacted event as one text."""
    return json.dumps(redact(event))


@pytest.mark.parametrize(
    "key",
    [
        "password",
        "user_password",
        "passwd",
        "passphrase",
        "new_secret",
        "sasl_response",
        "response",
        "authorization",
        "Token",
    ],
)
def test_secret_keys_lose_their_values(key: str) -> None:
    """The value of a key that names a secret is redacted at any depth."""
    assert "hunter2" not in redacted(**{key: "hunter2"})
    assert "hunter2" not in redacted(client={"properties": [{key: b"hunter2"}]})


@pytest.mark.parametrize(
    "uri",
    [
        "amqp://alice:hunter2@host:5672/vhost",
        "AMQPS://alice:hunter2@host",
        "amqp://alice:p@hunter2@host",
        "amqp://a:x/hunter2@h",
    ],
)
def test_credentials_of_uris_are_cut_out(uri: str) -> None:
    """A URI keeps scheme and host and loses user and password, also within a sentence."""
    said = redacted(reason=f"cannot reach {uri} (refused)", error=ValueError(uri))
    assert "hunter2" not in said
    assert "alice" not in said
    assert "://[redacted]@h" in said


@pytest.mark.parametrize("answer", [b"\0alice\0hunter2", b"zid\0alice\0hunter2"])
def test_sasl_plain_answers_are_cut_out(answer: bytes) -> None:
    """A SASL PLAIN response is redacted as bytes, text and the repr of either, under any key."""
    for value in (
        answer,
        answer.decode(),
        repr(answer),
        bytearray(answer),
        memoryview(answer),
        [answer],
        f"got {answer!r}",
    ):
        assert "hunter2" not in redacted(body=value)


def test_what_is_no_secret_stays() -> None:
    """Names, numbers and URIs without credentials are logged unchanged."""
    event = {
        "event": "server.ready",
        "port": 5672,
        "url": "amqp://host:5672/",
        "queue": "pass.word",
        "ok": True,
        "took_s": 0.5,
    }
    assert redact(dict(event)) == event


def test_long_and_deep_values_are_bounded() -> None:
    """Values of clients are truncated in length and depth."""
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    assert len(redacted(name="x" * 10 * TEXT_MAX, table=deep)) < 2 * TEXT_MAX


def warn(gate: RepeatedWarnings, event: str, **fields: Any) -> int | None:
    """Return what the gate says to a warning: how many were suppressed before it, or None if it is suppressed."""
    return gate.admit(event, fields)


def test_repeated_warnings_are_counted_instead_of_said() -> None:
    """A warning is logged once per interval, and the next one has the number of suppressed ones."""
    clock = Clock()
    gate = RepeatedWarnings(10, clock)
    assert warn(gate, "connection.refused") == 0
    assert [warn(gate, "connection.refused") for _ in range(3)] == [None] * 3
    clock.now += 10
    assert warn(gate, "connection.refused") == 3
    clock.now += 10
    assert warn(gate, "connection.refused") == 0


def test_different_warnings_do_not_suppress_each_other() -> None:
    """A memory alarm does not suppress a disk alarm, nor does one queue suppress another."""
    gate = RepeatedWarnings(10, Clock())
    for fields in (
        {"kind": "memory"},
        {"kind": "disk"},
        {"kind": "disk", "queue": "a"},
        {"kind": "disk", "queue": "b"},
    ):
        assert warn(gate, "alarm.raised", **fields) == 0


def test_only_warnings_are_suppressed() -> None:
    """A repeated error or info is a line each time, a repeated warning is not."""
    out, log = lines("json")
    for write in (log.error, log.info, log.warning) * 2:
        write("store.failed")
    levels = [json.loads(line)["level"] for line in out.getvalue().splitlines()]
    assert levels == ["error", "info", "warning", "error", "info"]


def test_interval_of_zero_says_every_warning() -> None:
    """With repeat_interval_ms = 0 nothing is suppressed."""
    gate = RepeatedWarnings(0, Clock())
    assert [warn(gate, "x.happened") for _ in range(2)] == [0, 0]


def test_remembered_warnings_are_bounded() -> None:
    """Names that a client invents do not grow the memory of warnings without limit."""
    gate = RepeatedWarnings(10, Clock())
    for number in range(REMEMBERED_MAX + 100):
        warn(gate, "queue.refused", queue=str(number))
    assert len(gate._seen) == REMEMBERED_MAX


def lines(form: str, level: str = "info") -> tuple[io.StringIO, Any]:
    """Return a logger and its output."""
    out = io.StringIO()
    return out, LineLogger(out, level, form)


def test_json_lines_hold_event_level_and_time() -> None:
    """JSON is one object per line, with event, level, time and keys."""
    out, log = lines("json")
    log.info("server.ready", port=5672)
    said = json.loads(out.getvalue())
    assert (said["event"], said["level"], said["port"]) == ("server.ready", "info", 5672)
    assert said["timestamp"].endswith("Z")


def test_a_line_has_its_keys_in_a_fixed_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller's keys come first; what the logger adds follows, and a traceback comes last."""
    clock = Clock()
    with monkeypatch.context() as patched:
        patched.setattr("time.monotonic", clock)
        out, log = lines("json")
    log.warning("queue.failed", queue="q")
    log.warning("queue.failed", queue="q")
    clock.now += 10
    log.warning("queue.failed", queue="q", exc_info=ValueError("no"))
    keys = [list(json.loads(line)) for line in out.getvalue().splitlines()]
    assert keys[0] == ["queue", "event", "level", "timestamp"]
    assert keys[1] == ["queue", "event", "level", "suppressed", "timestamp", "exception"]


def test_auto_is_json_where_there_is_no_terminal() -> None:
    """A pipe or file gets JSON unless text is configured, and that text has no colours."""
    out, log = lines("auto")
    log.info("server.ready")
    assert json.loads(out.getvalue())["event"] == "server.ready"
    out, log = lines("text")
    log.info("server.ready", port=5672)
    assert "server.ready port=5672" in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_lines_below_the_level_are_not_made() -> None:
    """At level warning an info call writes nothing and formats nothing."""
    out, log = lines("json", "warning")
    log.info("server.ready")
    assert out.getvalue() == ""


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize(
    "name", ["q\n2026 [error] forged", "q\r[error]", "q\x1b[31m", "q\x9b31m", "q\u2028[error]", "q\x7f"]
)
def test_text_of_a_client_cannot_forge_a_line(form: str, name: str) -> None:
    """Line ends and terminal escapes in a value are escaped in both forms, so they stay within the line."""
    out, log = lines(form)
    log.info("queue.declared", queue=name, names=[name])
    assert out.getvalue().endswith("\n")
    assert out.getvalue()[:-1].isprintable()


def test_tracebacks_are_redacted() -> None:
    """A password in an exception's text is redacted."""
    for form in ("json", "text"):
        out, log = lines(form)
        try:
            raise ValueError("amqp://alice:hunter2@host")
        except ValueError:
            log.exception("server.crashed")
        assert "ValueError" in out.getvalue()
        assert "hunter2" not in out.getvalue()


def test_a_time_has_six_digits_of_its_second() -> None:
    """Microseconds keep their zeros, also of a later event in the same second, so that texts sort as times do."""
    now_ns = iter([5_000_123_999, 5_120_000_000, 6_999_999_999])
    stamp = TimeStamp(lambda: next(now_ns))
    assert [stamp.now() for _ in range(3)] == [
        "1970-01-01T00:00:05.000123Z",
        "1970-01-01T00:00:05.120000Z",
        "1970-01-01T00:00:06.999999Z",
    ]
