"""Spare descriptors."""

from __future__ import annotations

import errno

import pytest

from broker.store.files import SpareDescriptors


def refusing(times: int, number: int = errno.EMFILE) -> tuple[list[int], object]:
    """Return a call count, and a function that opens something after this many failures."""
    calls = [0]

    def opens() -> str:
        calls[0] += 1
        if calls[0] <= times:
            raise OSError(number, "refused")
        return "opened"

    return calls, opens


def test_spares_are_given_up_until_something_can_be_opened() -> None:
    """Spares are closed until the open succeeds, and then reopened."""
    spares = SpareDescriptors(4)
    assert spares.opening(lambda: "opened") == "opened"
    for _ in range(3):
        calls, opens = refusing(4)
        assert spares.opening(opens) == "opened"  # type: ignore[arg-type]
        assert calls == [5]
    with pytest.raises(OSError, match="refused"):
        spares.opening(refusing(9)[1])  # type: ignore[arg-type]


def test_another_failure_is_nothing_that_a_spare_could_mend() -> None:
    """Another failure is raised unchanged."""
    spares = SpareDescriptors(4)
    spares.opening(lambda: None)
    calls, opens = refusing(1, errno.EACCES)
    with pytest.raises(PermissionError):
        spares.opening(opens)  # type: ignore[arg-type]
    assert calls == [1]
