"""The histogram of message sizes counts a run as its messages one by one."""

from __future__ import annotations

import pytest

from broker.core.statistics.publish_tally import SIZE_BOUNDS, ChannelPublishes, PublishTally, SizeTally


@pytest.mark.parametrize(
    "sizes",
    [[5], [100], [101], [7] * 9, [5, 50, 99], [5, 100, 101], [99_999, 100_000, 100_001], [3, 3, 2_000, 3, 3]],
)
def test_a_run_counts_as_its_messages(sizes: list[int]) -> None:
    """Neighbours of equal size share their header; the part of the run that was taken counts, and nothing else."""
    headers: list[bytes] = []
    for place, size in enumerate(sizes):
        headers.append(headers[-1] if place and sizes[place - 1] == size else size.to_bytes(8, "big"))
    bodies = [bytes(size) for size in sizes]
    for start in range(len(sizes)):
        for stop in range(start + 1, len(sizes) + 1):
            run, single = SizeTally(), SizeTally()
            channel = ChannelPublishes(PublishTally(), run)
            channel.published_run(headers, bodies, start, stop, 0, 0, confirming=False)
            for size in sizes[start:stop]:
                single.count(size, 1)
            assert (run.counts, run.total_bytes) == (single.counts, single.total_bytes)


def test_a_bound_counts_the_size_that_it_names() -> None:
    """As the buckets of Prometheus: `le` includes its bound."""
    tally = SizeTally()
    for bound in SIZE_BOUNDS:
        tally.count(bound, 1)
    tally.count(SIZE_BOUNDS[-1] + 1, 2)
    assert tally.counts == [1] * len(SIZE_BOUNDS) + [2]
