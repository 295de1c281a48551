"""Inbox, outbox and ledger: every copy is counted in its cell."""

from pathlib import Path

import pytest

from demo.flights import checksum
from demo.ledger import Count, Failed, Inbox, Ledger, Outbox

KEY, BODY = "flight.UA.EWR.IAH.on-time", b'{"year":2013}'
ROWS = 3


@pytest.fixture
def ledger() -> Ledger:
    """Provide a ledger of three flights and two queues."""
    return Ledger(ROWS, queues=2, clients=1, checksums=[checksum(KEY.encode(), BODY)] * ROWS)


@pytest.fixture
def outbox(ledger: Ledger, tmp_path: Path) -> Outbox:
    """Provide the outbox of a publisher of all flights."""
    (tmp_path / "flights").write_bytes(b"%b\t%b\n" % (KEY.encode(), BODY) * ROWS)
    return Outbox(ledger, 0, tmp_path / "flights", 0, ROWS)


def inbox_of(ledger: Ledger, prefetch: int = 200) -> Inbox:
    """Return the inbox of a consumer of both queues."""
    return Inbox(ledger, 0, [(0, "a"), (1, "b")], prefetch)


def taken(outbox: Outbox) -> list[tuple[int, int]]:
    """Return tag and row of every flight that is published now."""
    return [(tag, row) for tag, (row, _, _) in iter(outbox.take, None)]


def test_redelivered_copies_are_kept_apart(ledger: Ledger) -> None:
    """A second copy with the flag counts as redelivered, not as fresh, and for no other flight."""
    inbox = inbox_of(ledger)
    for redelivered in (False, True, True):
        inbox.record(0, 1, redelivered=redelivered, message_id="0", key=KEY, body=BODY)
    assert [list(ledger.copies(0, flag)) for flag in (False, True)] == [[1, 0, 0], [2, 0, 0]]
    assert (ledger.total(Count.DELIVERED), ledger.total(Count.DISTINCT)) == (3, 1)


@pytest.mark.parametrize(
    ("message_id", "key", "body"),
    [("0", KEY, b"{}"), ("0", "flight.UA.EWR.IAH.late", BODY), (None, KEY, BODY), ("3", KEY, BODY), ("-1", KEY, BODY)],
)
def test_altered_delivery_marks_no_cell(ledger: Ledger, message_id: str | None, key: str, body: bytes) -> None:
    """A changed body, a changed key or an unknown row counts as altered, never as received."""
    inbox_of(ledger).record(0, 1, redelivered=False, message_id=message_id, key=key, body=body)
    assert ledger.total(Count.ALTERED) == 1
    assert not any([*ledger.copies(0, False), *ledger.copies(0, True)])


def test_new_connection_forgets_what_was_unacked(ledger: Ledger) -> None:
    """Delivery tags of a lost channel are not acked on the new one."""
    inbox = inbox_of(ledger)
    inbox.record(0, 7, redelivered=False, message_id="0", key=KEY, body=BODY)
    inbox.connected()
    assert (inbox.unacked, inbox.last_tag, ledger.total(Count.CONNECTED)) == (0, 0, 1)


def test_unconfirmed_flights_go_out_before_the_rest(ledger: Ledger, outbox: Outbox) -> None:
    """After a reconnect tags begin at 1, unconfirmed flights go first, the oldest before all, and count as resent."""
    assert outbox.take() and outbox.take()
    assert len(outbox) == 2
    outbox.connected()
    assert taken(outbox) == [(1, 0), (2, 1), (3, 2)]
    assert list(ledger.attempts) == [2, 2, 1]
    assert (ledger.total(Count.PUBLISHED), ledger.total(Count.RESENT)) == (5, 2)


@pytest.mark.parametrize(
    ("confirms", "left"),
    [([(2, False)], [0, 2]), ([(2, True)], [2]), ([(1, False), (2, True), (2, False)], [2]), ([(3, True)], [])],
)
def test_a_confirm_takes_its_flight_or_all_up_to_it(
    confirms: list[tuple[int, bool]], left: list[int], ledger: Ledger, outbox: Outbox
) -> None:
    """A tag that is settled does not count again; the outbox has finished when every flight is confirmed."""
    taken(outbox)
    for tag, multiple in confirms:
        outbox.confirmed(tag, multiple)
    assert (len(outbox), outbox.finished) == (len(left), not left)
    assert ledger.total(Count.CONFIRMED) == sum(ledger.confirmed) == ROWS - len(left)
    outbox.connected()
    assert [row for _, row in taken(outbox)] == left


def test_connection_may_be_lost_only_to_a_kill(ledger: Ledger) -> None:
    """A loss is excused while the broker is down and after its restart, not while it should run."""
    ledger.broker_started()
    generation = ledger.await_broker()
    assert generation == 1
    with pytest.raises(Failed, match="gone"):
        ledger.lost(generation, OSError("gone"))
    ledger.broker_dying()
    ledger.lost(generation, OSError("gone"))
    ledger.broker_started()
    ledger.lost(generation, OSError("gone"))
    assert ledger.await_broker() == 2
