"""pytest fixtures: `broker` in this process, `broker_url` of it, and `broker_process` for a broker of its own.

pytest loads this in every run where the package is installed, so it imports what pytest has imported anyway.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from broker.testing.broker import Broker

__all__ = ["broker", "broker_process", "broker_url"]


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A fresh broker in a thread of this process, for clients that block and clients that do not."""
    from broker.testing.broker import Broker  # noqa: PLC0415 - a test run that uses no broker does not load one

    with Broker() as running:
        yield running


@pytest.fixture
def broker_url(broker: Broker) -> str:
    """The address of `broker` for a client, with user and password."""
    return broker.url


@pytest.fixture
def broker_process(tmp_path: Path) -> Iterator[str]:
    """The address of a fresh broker in a process of its own, with its files on disk."""
    from broker.testing.process import broker_process as process  # noqa: PLC0415 - as above

    with process(tmp_path / "slotmq") as url:
        yield url
