"""Making room for a new client: the oldest client of the busiest origin goes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from broker.net.strangers import Strangers


def test_one_origin_cannot_push_another_one_out() -> None:
    """Ever new clients of one origin push out each other."""
    strangers: Strangers[str] = Strangers()
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
    strangers: Strangers[int] = Strangers()
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
