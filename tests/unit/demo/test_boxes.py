"""Inbox, outbox and ledger: every copy is counted in its cell."""

from collections.abc import Iterator

import pytest

from demo.flights import checksum
from demo.inbox import Inbox
from demo.ledger import FRESH_MASK, REDELIVERED_SHIFT, ConnectionUnexpectedlyLost, Count, Ledger
from demo.outbox import Outbox

KEY, BODY = "flight.UA.EWR.IAH.on-time", b'{"year":2013}'
ROWS = 3


@pytest.fixture
def ledger() -> Ledger:
    """Provide a ledger of three flights and two queues."""
    return Ledger(ROWS, queues=2, clients=1, checksums=[checksum(KEY.encode(), BODY)] * ROWS)


def source() -> Iterator[tuple[int, str, bytes]]:
    """Return the three flights."""
    return iter([(row, KEY, BODY) for row in range(ROWS)])


def inbox_of(ledger: Ledger, ack_every: int = 100) -> Inbox:
    """Return the inbox of a consumer of both queues."""
    return Inbox(ledger, 0, [0, 1], ack_every)


def test_delivery_is_counted_in_its_queue_and_row(ledger: Ledger) -> None:
    """A first copy is counted in its cell only."""
    inbox_of(ledger).take(1, 1, redelivered=False, message_id="2", key=KEY, body=BODY)
    assert list(ledger.copies(0)) == [0, 0, 0]
    assert list(ledger.copies(1)) == [0, 0, 1]
    assert (ledger.total(Count.DELIVERED), ledger.total(Count.DISTINCT)) == (1, 1)


def test_redelivered_copies_are_kept_apart(ledger: Ledger) -> None:
    """A second copy with the flag counts as redelivered, not as fresh, and for no other flight."""
    inbox = inbox_of(ledger)
    for redelivered in (False, True, True):
        inbox.take(0, 1, redelivered=redelivered, message_id="0", key=KEY, body=BODY)
    cell = ledger.copies(0)[0]
    assert (cell & FRESH_MASK, cell >> REDELIVERED_SHIFT) == (1, 2)
    assert (ledger.total(Count.DELIVERED), ledger.total(Count.DISTINCT)) == (3, 1)


def test_a_cell_does_not_run_over(ledger: Ledger) -> None:
    """The count of copies saturates within its half of the cell."""
    inbox = inbox_of(ledger)
    for tag in range(100):
        inbox.take(0, tag, redelivered=False, message_id="1", key=KEY, body=BODY)
    assert list(ledger.copies(0)) == [0, FRESH_MASK, 0]
    for tag in range(100):
        inbox.take(0, tag, redelivered=True, message_id="1", key=KEY, body=BODY)
    assert list(ledger.copies(0)) == [0, 0xFF, 0]


@pytest.mark.parametrize(
    ("message_id", "key", "body"),
    [("0", KEY, b"{}"), ("0", "flight.UA.EWR.IAH.late", BODY), (None, KEY, BODY), ("3", KEY, BODY), ("-1", KEY, BODY)],
)
def test_altered_delivery_marks_no_cell(ledger: Ledger, message_id: str | None, key: str, body: bytes) -> None:
    """A changed body, a changed key or an unknown row counts as altered, never as received."""
    inbox_of(ledger).take(0, 1, redelivered=False, message_id=message_id, key=key, body=body)
    assert ledger.total(Count.ALTERED) == 1
    assert not any(ledger.copies(0))


def test_ack_is_due_after_every_so_many_deliveries(ledger: Ledger) -> None:
    """The inbox requests an ack after a number of unacked deliveries, and then none is due."""
    inbox = inbox_of(ledger, ack_every=2)
    due = [inbox.take(0, tag, redelivered=False, message_id="0", key=KEY, body=BODY) for tag in (1, 2)]
    assert due == [False, True]
    assert inbox.last_tag == 2
    inbox.acked()
    assert not inbox.owes_ack
    assert not inbox.take(0, 3, redelivered=False, message_id="0", key=KEY, body=BODY)


def test_new_connection_forgets_what_was_unacked(ledger: Ledger) -> None:
    """Delivery tags of a lost channel are not acked on the new one."""
    inbox = inbox_of(ledger)
    inbox.take(0, 7, redelivered=False, message_id="0", key=KEY, body=BODY)
    inbox.connected()
    assert not inbox.owes_ack
    assert inbox.last_tag == 0


def test_unconfirmed_flights_go_out_before_the_rest(ledger: Ledger) -> None:
    """After a reconnect the outbox sends unconfirmed flights first and counts them as resent."""
    outbox = Outbox(ledger, 0, source())
    first = outbox.take()
    assert first is not None
    outbox.connected([first])
    assert [flight.row for flight in iter(outbox.take, None)] == [0, 1, 2]
    assert list(ledger.attempts) == [2, 1, 1]
    assert (ledger.total(Count.PUBLISHED), ledger.total(Count.RESENT)) == (4, 1)


def test_refused_flight_is_sent_again(ledger: Ledger) -> None:
    """A nack queues the flight again, a confirm does not."""
    outbox = Outbox(ledger, 0, source())
    flights = list(iter(outbox.take, None))
    outbox.refused(flights[:1])
    outbox.confirmed(flights[1:])
    assert [flight.row for flight in iter(outbox.take, None)] == [0]
    assert list(ledger.confirmed) == [0, 1, 1]
    assert (ledger.total(Count.REFUSED), ledger.total(Count.CONFIRMED)) == (1, 2)


def test_connection_may_be_lost_only_to_a_kill(ledger: Ledger) -> None:
    """A loss is excused while the broker is down and after its restart, not while it should run."""
    ledger.broker_started()
    generation = ledger.await_broker()
    assert generation == 1
    with pytest.raises(ConnectionUnexpectedlyLost, match="gone"):
        ledger.lost(generation, OSError("gone"))
    ledger.broker_dying()
    ledger.lost(generation, OSError("gone"))
    ledger.broker_started()
    ledger.lost(generation, OSError("gone"))
    assert ledger.await_broker() == 2


def test_nobody_waits_for_a_broker_when_the_run_is_over(ledger: Ledger) -> None:
    """A stopped run provides no broker and excuses every loss."""
    ledger.stop()
    assert ledger.await_broker() is None
    ledger.lost(0, OSError("gone"))
