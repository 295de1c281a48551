"""Ranges of a file of 100 bytes with the ETag "t"."""

from __future__ import annotations

import pytest

from broker.manage.refusal import HttpRefused
from broker.manage.slot_routes import asked_bytes, is_known

TAG = '"t"'


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=10-19", (10, 20)),
        ("bytes=90-", (90, 100)),
        ("bytes=90-1000", (90, 100)),
        ("bytes=-10", (90, 100)),
        ("bytes=-1000", (0, 100)),
        ("bytes=0-1,5-6", None),
        ("bytes=20-10", None),
        ("bytes=-", None),
        ("bytes=x-", None),
        ("lines=1-2", None),
        ("", None),
    ],
)
def test_a_range_is_what_rfc_9110_says(asked: str, found: tuple[int, int] | None) -> None:
    """A single range is served, cut at the end of the file; anything else is the whole file."""
    assert asked_bytes({"range": asked}, 100, TAG) == found


@pytest.mark.parametrize("asked", ["bytes=100-", "bytes=100-200", "bytes=-0"])
def test_a_range_behind_the_end_is_refused_with_the_length(asked: str) -> None:
    """416 has the length of the file."""
    with pytest.raises(HttpRefused) as caught:
        asked_bytes({"range": asked}, 100, TAG)
    assert (caught.value.status, caught.value.headers) == (416, (("Content-Range", "bytes */100"),))


def test_a_range_of_other_content_is_the_whole_file() -> None:
    """If-Range with another tag gets the whole file."""
    assert asked_bytes({"range": "bytes=1-2", "if-range": TAG}, 100, TAG) == (1, 3)
    assert asked_bytes({"range": "bytes=1-2", "if-range": '"other"'}, 100, TAG) is None


@pytest.mark.parametrize(
    ("tags", "known"), [('"t"', True), ('"a", W/"t"', True), ("*", True), ('"a"', False), ("", False), ("t", False)]
)
def test_a_client_says_what_it_has(tags: str, known: bool) -> None:
    """If-None-Match is a list of tags or a star."""
    assert is_known({"if-none-match": tags}, TAG) is known
