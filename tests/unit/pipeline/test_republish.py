"""The publishing of replay and deadletters: numbers, times and changed headers."""

from __future__ import annotations

import pyarrow as pa

from broker.amqp.content_header import decode_properties
from broker.pipeline.sink.property_columns import HeaderChanges
from broker.pipeline.sink.publishing import due_us
from broker.pipeline.sink.rows import sequence_of
from tests.unit.pipeline.encoded import properties


def test_a_row_has_the_number_of_its_slot_and_a_snapshot_none() -> None:
    """A row's number is unique within its store; rows of snapshots have none."""
    rows = [(seal, slot, slot + at) for seal, slot in ((1, 1), (2, 50_001), (3, 1)) for at in (0, 1, 65_535)]
    assert len({sequence_of(*row) for row in rows}) == len(rows)
    assert (sequence_of(1, 10, 12), sequence_of(0, 1, 5), sequence_of(None, 1, 5)) == (65_538, None, None)


def test_times_never_fall() -> None:
    """Messages keep their order when a clock was set back."""
    times = pa.array([5, 3, None, 9, 8], pa.timestamp("us", tz="UTC"))
    assert due_us(times) == [5, 5, 5, 9, 9]


def test_only_named_headers_and_properties_change() -> None:
    """All other entries keep their octets."""
    before = properties({"keep": 1, "drop": 2, "set": 3}, user_id="u", content_type="t")
    changes = HeaderChanges({"set": "new"}, ("drop",), ("user_id",))
    after = decode_properties(bytes(12) + changes(before))
    assert after.headers == {"keep": 1, "set": "new"}
    assert (after.user_id, after.content_type) == (None, "t")
    assert HeaderChanges()(before) == before
