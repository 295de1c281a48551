"""The output of `slotmq slots`."""

from typing import Any

from broker.cli.resources import slot_table

SEALED: dict[str, Any] = {
    "first": 1, "end": 1001, "state": "sealed", "owner": None, "settled": 999, "bytes": 16000, "resident": False,
}  # fmt: skip
OPEN: dict[str, Any] = {
    "first": 1001, "end": 1004, "state": "open", "owner": "local/w1", "settled": 0, "bytes": 48, "resident": True,
}  # fmt: skip


def answer(*slots: dict[str, Any], **others: Any) -> dict[str, Any]:
    """Return the broker's answer about queue q."""
    return {
        "queue": "q",
        "vhost": "/",
        "ready": 4,
        "unacked": 0,
        "levels": 1,
        "slot_count": len(slots),
        "slots": slots,
    } | others


def test_each_slot_is_a_row() -> None:
    """A row has range, state, owner, settled, bytes and place under their names, and a last line has the sums."""
    assert slot_table(answer(SEALED, OPEN)).splitlines() == [
        "range      state   owner     settled   bytes  where",
        "1-1000     sealed  -         999/1000  16000  on disk",
        "1001-1003  open    local/w1  0/3       48     resident",
        "queue 'q' in vhost '/': 2 slots, 4 messages ready, 0 unacked",
    ]


def test_levels_of_a_priority_queue_are_told_apart() -> None:
    """Each level has its own ids, so each row has its level."""
    lines = slot_table(answer(SEALED | {"level": 3}, OPEN | {"level": 0}, levels=4)).splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["level", "3", "0"]


def test_slot_without_messages_has_no_last_id() -> None:
    """An empty open slot has a first id and no last id."""
    assert slot_table(answer(OPEN | {"end": 1001})).splitlines()[1].startswith("1001-  open")


def test_rows_left_out_are_counted() -> None:
    """A truncated answer says how many rows are missing."""
    assert "... and 1,234 more" in slot_table(answer(OPEN, slot_count=1235)).splitlines()


def test_name_of_a_queue_cannot_steer_the_terminal() -> None:
    """Control characters in a queue's name are escaped."""
    assert "\x1b" not in slot_table(answer(OPEN, queue="q\x1b[2J"))
