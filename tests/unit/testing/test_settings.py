"""The settings of a broker under test."""

from __future__ import annotations

from typing import Any

import pytest

from broker.testing import Broker


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        ({"amqp": {"hartbeat_s": 1}}, "amqp.hartbeat_s: unknown key; did you mean amqp.heartbeat_s?"),
        ({"slot": {}}, "slot: unknown key; did you mean slots?"),
    ],
)
def test_a_wrong_setting_is_told_in_one_line(sections: dict[str, Any], text: str) -> None:
    """The error is one line, as for the settings file, without the library's long text."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        Broker(**sections)
    assert str(caught.value) == text
