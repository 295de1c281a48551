"""The limit on open files."""

import resource

import pytest

from broker.cli.serve import raise_file_limit
from broker.net.pending_clients import DESCRIPTORS_WANTED

UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "becomes"),
    [
        (1024, 4096, 4096),
        (1024, UNLIMITED, DESCRIPTORS_WANTED),
        (1024, DESCRIPTORS_WANTED * 2, DESCRIPTORS_WANTED),
        (4096, 4096, None),
        (DESCRIPTORS_WANTED * 2, UNLIMITED, None),
        (UNLIMITED, UNLIMITED, None),
    ],
)
def test_limit_is_raised_and_never_lowered(
    soft: int, hard: int, becomes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is raised as far as the hard limit allows, and no further than is useful."""
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _kind, limits: made.append(limits))
    raise_file_limit()
    assert made == ([] if becomes is None else [(becomes, hard)])


def test_system_that_refuses_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the system refuses, the broker starts with the present limit."""

    def refuse(_kind: int, _limits: tuple[int, int]) -> None:
        raise ValueError

    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (256, UNLIMITED))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    raise_file_limit()
