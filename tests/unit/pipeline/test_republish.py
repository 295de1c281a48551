"""What replay, deadletters and synth publish with: numbers, times, and changed headers."""

from __future__ import annotations

import pytest

from broker.amqp.content_header import decode_properties
from broker.pipeline.replay.header_changes import HeaderChanges
from tests.unit.pipeline.encoded import properties

pa = pytest.importorskip("pyarrow")

from broker.pipeline.replay.republish import due_us, sequence_of  # noqa: E402 - what it stands on may be missing


def test_a_row_has_the_number_of_its_slot_and_a_snapshot_none() -> None:
    """No two rows of a store have one number."""
    rows = [(seal, slot, slot + at) for seal, slot in ((1, 1), (2, 50_001), (3, 1)) for at in (0, 1, 65_535)]
    assert len({sequence_of(*row) for row in rows}) == len(rows)
    assert (sequence_of(1, 10, 12), sequence_of(0, 1, 5), sequence_of(None, 1, 5)) == (65_538, None, None)


def test_times_never_fall() -> None:
    """A clock that was set back does not let a message overtake one that stood in front of it."""
    times = pa.array([5, 3, None, 9, 8], pa.timestamp("us", tz="UTC"))
    assert due_us(times) == [5, 5, 5, 9, 9]


def test_only_named_headers_and_properties_change() -> None:
    """The rest keeps its octets; the same octets are edited once."""
    before = properties({"keep": 1, "drop": 2, "set": 3}, user_id="u", content_type="t")
    changes = HeaderChanges({"set": "new"}, ("drop",), ("user_id",))
    after = decode_properties(bytes(12) + changes(before))
    assert after.headers == {"keep": 1, "set": "new"}
    assert (after.user_id, after.content_type) == (None, "t")
    assert changes(before) is changes(before)
    assert not HeaderChanges()
    assert HeaderChanges()(before) == before
