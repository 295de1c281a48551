"""The recorder reuses bytes of the records before: no record shows what came before it."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from broker.store.message_log import APART_BYTES
from broker.store.record import PERSISTENT, TARGET, Recorded, encode_message, encode_route
from tests.unit.store.room import Room

FIELDS: Final[dict[str, list[Any]]] = {
    "timestamp_ms": [1, 2],
    "flags": [0, PERSISTENT],
    "route": [encode_route("topic", key) for key in ("a.b", "c.d", "a.longer.key")],
    "header": [b"head", b"tail", b"a longer header"],
    "body": [b"body", b"", bytes(APART_BYTES)],
    "targets": [TARGET.pack(1, 0)[:-8], TARGET.pack(2, 0)[:-8], TARGET.pack(1, 7) + TARGET.pack(2, 0)[:-8]],
    "message_id": [1, 255, 256, 1 << 16],
    "synced": [False, True],  # whether the log is synced before the record
}
CHANGES = st.sampled_from([(name, value) for name, values in FIELDS.items() for value in values])


@given(st.lists(CHANGES, max_size=30))
def test_a_record_depends_on_its_message_alone(changes: list[tuple[str, Any]]) -> None:
    """Each record that differs from the previous one in one respect equals that of `encode_message`."""
    room = Room()
    now = {name: values[0] for name, values in FIELDS.items()}
    expected = []
    for name, value in changes:
        now[name] = value
        if now["synced"]:
            room.commit()
        message = Recorded()
        message.timestamp_ms, message.header, message.body = now["timestamp_ms"], now["header"], now["body"]
        same = (now["timestamp_ms"], now["flags"], now["route"], now["header"], now["body"])
        target = now["targets"] + now["message_id"].to_bytes(8, "big")
        expected.append((message, encode_message(room.store.log.synced, *same, target)))
        room.store.recorder.record(message, now["flags"], now["route"], now["targets"], now["message_id"])
    room.commit()
    for message, record in expected:
        assert room.store.log.read_span(message.position, message.record_bytes) == record
