"""The three paths of ARCHITECTURE.md stay short: a change that makes one longer pays for it elsewhere on the path."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from tools.house import paths, tracer

LONGEST = {"publish": (54, 18, 16), "deliver": (60, 22, 24), "policy": (110, 26, 53)}
"""By path: the functions that run, their files, and the returns to a file that was left. Only lower them."""


@pytest.fixture
def log_settings() -> Iterator[None]:
    """Restore how events are logged: a trace logs none."""
    settings = structlog.get_config()
    yield
    structlog.configure(**settings)


@pytest.mark.usefixtures("log_settings")
@pytest.mark.interpreted("the functions are traced, which compiled ones cannot be")
@pytest.mark.parametrize("name", LONGEST)
def test_a_path_is_no_longer_than_it_was(name: str) -> None:
    """A path runs at most this many functions, in this many files, and returns so often to one of them."""
    steps = paths.walk(name)
    counts = (len(tracer.functions(steps)), len(tracer.files(steps)), tracer.reentries(steps))
    assert all(count <= most for count, most in zip(counts, LONGEST[name], strict=True)), (
        f"{name}: {counts} functions, files and returns; at most {LONGEST[name]}. "
        f"`python -m tools.house path {name}` prints each call"
    )
