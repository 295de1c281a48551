"""Room for a new client: the oldest client of the busiest origin goes, and the store keeps descriptors."""

from __future__ import annotations

import resource
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.net.pending_clients import PendingClients, descriptors_for_clients


def test_one_origin_cannot_push_another_one_out() -> None:
    """Ever new clients of one origin push out each other."""
    strangers: PendingClients[str] = PendingClients()
    strangers.add("probe", "10.0.0.1")
    for number in range(1000):
        strangers.add(f"flood{number}", "10.0.0.2")
        if len(strangers) > 3:
            assert strangers.take() == f"flood{number - 2}"
    strangers.remove("probe")
    strangers.remove("probe")
    assert [strangers.take() for _ in range(4)] == ["flood998", "flood999", None, None]


@given(
    st.lists(st.tuples(st.sampled_from(["add", "add", "remove", "take"]), st.integers(0, 9), st.sampled_from("abc")))
)
def test_it_does_as_a_plain_list_does(steps: list[tuple[str, int, str]]) -> None:
    """Against a list of members and origins in the order of their arrival."""
    strangers: PendingClients[int] = PendingClients()
    plain: dict[int, str] = {}
    for step, member, origin in steps:
        if step == "add" and member not in plain:
            strangers.add(member, origin)
            plain[member] = origin
        elif step == "remove":
            strangers.remove(member)
            plain.pop(member, None)
        elif step == "take":
            sizes = Counter(plain.values())
            oldest = {name: next(one for one, of in plain.items() if of == name) for name in sizes}
            taken = strangers.take()
            if taken is None:
                assert not plain
            else:
                assert taken in {oldest[name] for name, size in sizes.items() if size == max(sizes.values())}
                del plain[taken]
        assert len(strangers) == len(plain)


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
