"""The number of descriptors for clients."""

from __future__ import annotations

import resource
import sys

import pytest

from broker.net.strangers import descriptors_for_clients


@pytest.mark.parametrize(
    ("limit", "clients"),
    [
        (64, 32),
        (150, 86),
        (1024, 768),
        (4096, 3072),
        (131_072, 130_048),
        (resource.RLIM_INFINITY, sys.maxsize),
    ],
)
def test_some_are_kept_for_the_store(limit: int, clients: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the descriptors is kept, within limits; with very few, some clients are served."""
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (limit, limit))
    assert descriptors_for_clients() == clients
