"""The search of the log for messages without an entry: what it holds in memory is bounded, and nothing is lost."""

from __future__ import annotations

from broker.store.entry_search import FOUND_MAX, EntrySearch
from broker.store.record import DUE, TARGET, encode_message
from tests.unit.store.room import ROUTE


def test_what_is_found_is_passed_on_when_it_has_become_much() -> None:
    """Each of very many messages is passed on once, with its place and its moment, before many more accumulate."""
    each = FOUND_MAX * 2 // 5
    passed: list[tuple[int, int]] = []
    sizes: list[int] = []

    def relieve(search: EntrySearch) -> None:
        found, due_ms = search.take_found()
        sizes.append(len(found))
        passed.extend(found)
        assert {position >> 20 for position, _ in found.values()} == {number for number, _ in found}
        assert due_ms == {key: key[0] for key in found if key[0] % 2}

    search = EntrySearch(lambda _number, message_id: message_id > 1, relieve)
    queues = range(1, 8)
    for queue in queues:
        targets = b"".join([TARGET.pack(queue, one) for one in range(1, each + 1)])
        moment = TARGET.pack(DUE, queue) if queue % 2 else b""
        record = encode_message(0, 1, 0, ROUTE, b"header", b"body", moment + targets)
        assert search.run(record, queue << 20).used == len(record)
        assert len(search.found) <= FOUND_MAX
    relieve(search)
    assert len(sizes) == 3
    assert max(sizes) <= FOUND_MAX + each
    assert passed == [(queue, one) for queue in queues for one in range(2, each + 1)]
