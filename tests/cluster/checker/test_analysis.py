"""The analysis finds each kind of violation in a history made for it, and nothing in the history without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.checker.analysis import HANDOVER_S, WAKE_S, Analysis
from tests.cluster.checker.history import NEVER, Delivery, History, Message, Rewind, Session, Stop, Transaction


class Story:
    """A history that is written by hand: every call is one second later than the one before."""

    def __init__(self) -> None:
        self.history = History()
        self.now = 0.0

    def tick(self) -> float:
        """Return the next second."""
        self.now += 1
        return self.now

    def session(self, client: str = "client", node: str = "a") -> Session:
        """Open a session."""
        session = self.history.open(client, node)
        session.opened_at = self.now - HANDOVER_S
        return session

    def sent(self, session: Session, *queues: str, transaction: Transaction | None = None) -> Message:
        """Publish a message to queues ("q" if none is named)."""
        message = self.history.publish(session, queues or ("q",), 20, transaction)
        message.sent_at = self.tick()
        return message

    def confirmed(self, session: Session, *queues: str) -> Message:
        """Publish a message that is confirmed."""
        message = self.sent(session, *queues)
        message.confirmed_at = self.tick()
        session.receipts.append((message.sent_at, message.confirmed_at))
        return message

    def delivered(self, session: Session, message: Message, queue: str = "q", **more: Any) -> Delivery:
        """Deliver a message; it arrives within one second."""
        delivery = Delivery(message.number, queue, session, more.pop("redelivered", False), self.tick(), self.tick())
        for name, value in more.items():
            setattr(delivery, name, value)
        session.deliveries.append(delivery)
        return delivery

    def acked(self, delivery: Delivery) -> None:
        """Ack a delivery."""
        delivery.settled_at = self.tick()

    def begun(self, session: Session, *deliveries: Delivery) -> Transaction:
        """Begin a transaction that acks deliveries."""
        transaction = Transaction(session, deliveries=list(deliveries))
        session.transactions.append(transaction)
        for delivery in deliveries:
            delivery.transaction = transaction
        return transaction

    def asked(self, transaction: Transaction) -> None:
        """Ask to commit."""
        transaction.asked_at = self.tick()
        for delivery in transaction.deliveries:
            delivery.settled_at = transaction.asked_at

    def committed(self, transaction: Transaction) -> None:
        """Ask to commit, and get the answer."""
        self.asked(transaction)
        transaction.answered_at = self.tick()
        transaction.committed = True
        transaction.session.receipts.append((transaction.asked_at, transaction.answered_at))


@pytest.fixture
def story() -> Story:
    """Provide an empty story."""
    return Story()


def kinds(story: Story, **rules: Any) -> list[str]:
    """Return the kinds of fault that the analysis finds."""
    rules = {"ordered": ("q",), "dead": {"q": "dead"}} | rules
    return list(Analysis(story.history, **rules).judge().faults)


def in_order(story: Story) -> None:
    """Write a message that is acked, one that is requeued and one that no one confirmed."""
    publisher, consumer = story.session("publisher"), story.session("consumer", "b")
    first, second = story.confirmed(publisher), story.confirmed(publisher)
    story.sent(publisher)
    story.acked(story.delivered(consumer, first))
    story.delivered(consumer, second, returned_at=story.tick())
    story.acked(story.delivered(consumer, second, redelivered=True))
    story.confirmed(consumer, "receipts")
    drain = story.session("drain")
    story.acked(story.delivered(drain, story.history.messages[4], "receipts", drained=True))


def a_redelivery_after_the_end_of_a_node(story: Story) -> None:
    """Write a message that its session held when the node ended, and an ack without a proof that it was committed."""
    publisher, consumer, other = story.session("publisher"), story.session("consumer"), story.session("other", "b")
    held, acked = story.confirmed(publisher), story.confirmed(publisher)
    story.delivered(consumer, held)
    story.acked(story.delivered(consumer, acked))
    story.acked(story.delivered(other, held, redelivered=True))
    story.acked(story.delivered(other, acked, redelivered=True))


def a_moved_message(story: Story) -> None:
    """Write a committed transaction, and two whose end no one knows: one took effect."""
    publisher, mover, reader = story.session("publisher"), story.session("mover"), story.session("reader")
    for ending in (story.committed, story.asked, story.asked):
        one = story.confirmed(publisher)
        transaction = story.begun(mover, story.delivered(mover, one))
        out = [story.sent(mover, "out-1", "out-2", transaction=transaction) for _ in range(2)]
        ending(transaction)
        if out[0].number < 8:
            for message in out:
                for queue in message.queues:
                    story.acked(story.delivered(reader, message, queue))
        else:
            story.acked(story.delivered(reader, one, redelivered=True))


def a_dead_letter(story: Story) -> None:
    """Write a message that is rejected, and settled as a dead letter."""
    publisher, consumer = story.session("publisher"), story.session("consumer")
    message = story.confirmed(publisher)
    story.delivered(consumer, message, rejected=True, settled_at=story.tick())
    story.acked(story.delivered(consumer, message, "dead"))


@pytest.mark.parametrize("write", [in_order, a_redelivery_after_the_end_of_a_node, a_moved_message, a_dead_letter])
def test_what_is_promised_is_no_fault(story: Story, write: Callable[[Story], None]) -> None:
    """Histories that a broker may produce pass."""
    write(story)
    assert kinds(story) == []


def test_a_confirmed_message_that_nobody_settled_is_lost(story: Story) -> None:
    """Neither a message that never came nor one that was only requeued counts as kept."""
    publisher, consumer = story.session("publisher"), story.session("consumer")
    story.confirmed(publisher)
    assert kinds(story) == ["lost"]
    requeued = story.confirmed(publisher, "other")
    story.delivered(consumer, requeued, "other", returned_at=story.tick())
    assert len(Analysis(story.history).judge().faults["lost"]) == 2


def test_a_message_that_one_of_two_queues_lacks_is_lost(story: Story) -> None:
    """Each queue of a message is judged by itself."""
    message = story.confirmed(story.session("publisher"), "q", "p")
    story.acked(story.delivered(story.session("consumer"), message))
    assert kinds(story) == ["lost"]


def test_a_rejected_message_without_its_dead_letter_is_lost(story: Story) -> None:
    """A reject settles nothing where it makes a dead letter."""
    message = story.confirmed(story.session("publisher"))
    story.delivered(story.session("consumer"), message, rejected=True, settled_at=story.tick())
    assert kinds(story) == ["lost"]
    assert kinds(story, dead={}) == []


def test_a_message_that_nobody_published_is_unexpected(story: Story) -> None:
    """A number that no one used, or a queue that the message was not sent to."""
    message = story.confirmed(story.session("publisher"))
    consumer = story.session("consumer")
    story.acked(story.delivered(consumer, message))
    story.delivered(consumer, message, "other")
    assert kinds(story) == ["unexpected"]
    consumer.deliveries[-1].queue, consumer.deliveries[-1].number = "q", 77
    assert kinds(story) == ["unexpected"]


@pytest.mark.parametrize("asked", [False, True])
def test_a_message_of_a_transaction_that_nobody_committed_is_unexpected(story: Story, asked: bool) -> None:
    """Rolled back, or never asked to commit."""
    mover = story.session("mover")
    transaction = story.begun(mover)
    message = story.sent(mover, transaction=transaction)
    if asked:
        story.asked(transaction)
        transaction.committed = False
    story.acked(story.delivered(mover, message))
    assert kinds(story) == ["unexpected"]


def test_a_refused_message_that_is_delivered(story: Story) -> None:
    """A nack of the broker means that its only queue did not take the message."""
    message = story.sent(story.session("publisher"))
    message.refused, message.confirmed_at = True, story.tick()
    assert kinds(story) == []
    story.acked(story.delivered(story.session("consumer"), message))
    assert kinds(story) == ["refused"]


def test_a_changed_body_is_damaged(story: Story) -> None:
    """One octet that differs is noticed."""
    message = story.confirmed(story.session("publisher"))
    consumer = story.session("consumer")
    for octets in (message.body(), message.body()[:-1] + b"?"):
        story.acked(story.history.deliver(consumer, "q", octets, redelivered=consumer.deliveries != [], since=0.0))
    assert kinds(story) == ["damaged"]


def test_a_second_delivery_without_the_flag_is_unmarked(story: Story) -> None:
    """In whatever order the clients read the two."""
    message = story.confirmed(story.session("publisher"))
    story.delivered(story.session("consumer"), message)
    story.acked(story.delivered(story.session("other"), message))
    assert kinds(story) == ["unmarked"]


def test_a_settled_message_that_returns(story: Story) -> None:
    """A later confirm on the same channel makes the ack certain; a delivery under way then is none after it."""
    publisher, consumer, other = story.session("publisher"), story.session("consumer"), story.session("other", "b")
    message = story.confirmed(publisher)
    story.acked(story.delivered(consumer, message))
    receipt = story.confirmed(consumer, "receipts")
    story.acked(story.delivered(other, receipt, "receipts"))
    again = story.delivered(other, message, redelivered=True)
    assert kinds(story) == ["returned"]
    again.since = receipt.confirmed_at - 0.5  # may have been sent before
    again.at = receipt.confirmed_at
    assert kinds(story) == []


def a_write_after_a_stop(story: Story) -> tuple[Delivery, Stop]:
    """Write a stopped node, the settlement of its message by another one, and the delivery with which it continues."""
    publisher, other, zombie = story.session("publisher"), story.session("other"), story.session("zombie", "b")
    message = story.confirmed(publisher)
    began_at = story.tick()
    story.acked(story.delivered(other, message, redelivered=True))
    story.acked(story.delivered(other, story.confirmed(other, "receipts"), "receipts"))
    stop = Stop("b", began_at, story.now + WAKE_S / 2)
    return story.delivered(zombie, message), stop


def test_a_write_that_a_node_was_stopped_in_is_as_old_as_the_stop(story: Story) -> None:
    """The node looked at its lease before the stop, and its client gets the message after another has settled it."""
    late, stop = a_write_after_a_stop(story)
    assert kinds(story) == ["returned"]
    assert kinds(story, stops=[stop._replace(node="c")]) == ["returned"]
    assert kinds(story, stops=[stop._replace(woken_at=late.since - WAKE_S - 0.1)]) == ["returned"]
    assert kinds(story, stops=[stop]) == []


@pytest.mark.parametrize(("to_another", "returned"), [(False, 1), (True, 2)])
def test_a_second_write_after_a_stop_was_not_under_way(story: Story, to_another: bool, returned: int) -> None:
    """A node that writes twice when it wakes, or to two clients, continues with an epoch that has ended."""
    late, stop = a_write_after_a_stop(story)
    zombie = late.session
    if to_another:
        zombie = story.session("another zombie", "b")
        zombie.opened_at = 0.0
    message = story.history.messages[late.number]
    story.delivered(zombie, message, redelivered=True, since=late.since + 0.1, at=late.at + 0.1)
    assert len(Analysis(story.history, stops=[stop]).judge().faults["returned"]) == returned


def test_a_delivery_to_a_client_that_came_after_a_stop_was_not_under_way(story: Story) -> None:
    """The node made the connection when it was awake."""
    late, stop = a_write_after_a_stop(story)
    late.session.opened_at = stop.woken_at
    assert kinds(story, stops=[stop]) == ["returned"]


def test_a_message_of_a_committed_transaction_that_returns(story: Story) -> None:
    """tx.commit-ok makes the acks of the transaction certain, and its messages prove them too."""
    publisher, mover, other = story.session("publisher"), story.session("mover"), story.session("other", "b")
    message = story.confirmed(publisher)
    transaction = story.begun(mover, story.delivered(mover, message))
    story.committed(transaction)
    story.delivered(other, message, redelivered=True)
    assert kinds(story) == ["returned"]


def test_a_message_that_two_sessions_hold(story: Story) -> None:
    """A session that holds a message and commits something after another session got the message."""
    publisher, zombie, other = story.session("publisher"), story.session("zombie"), story.session("other", "b")
    message = story.confirmed(publisher)
    held = story.delivered(zombie, message)
    story.acked(story.delivered(other, message, redelivered=True))
    assert kinds(story) == []
    receipt = story.confirmed(zombie, "receipts")
    story.acked(story.delivered(other, receipt, "receipts"))
    assert kinds(story) == ["held twice"]
    held.returned_at = held.at + 0.5  # it gave the message back before
    assert kinds(story) == []


def test_messages_out_of_order(story: Story) -> None:
    """First deliveries of one publisher's messages to the only consumer; other publishers and flags do not count."""
    publisher, another, consumer = story.session("one"), story.session("two"), story.session("consumer")
    first, second, foreign = story.confirmed(publisher), story.confirmed(publisher), story.confirmed(another)
    story.acked(story.delivered(consumer, foreign))
    story.acked(story.delivered(consumer, second))
    late = story.delivered(consumer, first)
    story.acked(late)
    assert kinds(story) == ["reordered"]
    assert kinds(story, ordered=()) == []
    late.redelivered = True
    assert kinds(story) == []
    late.redelivered, consumer.opened_at = False, story.now  # the consumer before may have held the first
    assert kinds(story) == []


def test_a_drain_out_of_order(story: Story) -> None:
    """A queue at rest is drained in order, redelivered or not; dead letters are in the order of their rejection."""
    publisher, drain = story.session("publisher"), story.session("drain")
    first, second = story.confirmed(publisher), story.confirmed(publisher)
    for message in (second, first):
        story.acked(story.delivered(drain, message, drained=True, redelivered=True))
    assert kinds(story) == ["reordered"]
    assert kinds(story, drains_in_order=False) == []
    assert kinds(story, dead={"p": "q"}) == []


def test_a_part_of_a_transaction_is_torn(story: Story) -> None:
    """One message of a transaction is in one queue only."""
    mover, reader = story.session("mover"), story.session("reader", "b")
    transaction = story.begun(mover)
    message = story.sent(mover, "out-1", "out-2", transaction=transaction)
    story.asked(transaction)
    story.acked(story.delivered(reader, message, "out-1"))
    assert kinds(story) == ["torn"]
    reader.node = "a"  # which delivers before it commits
    assert kinds(story) == []
    reader.node = "b"
    story.acked(story.delivered(reader, message, "out-2"))
    assert kinds(story) == []


def test_a_transaction_without_its_acks_is_torn(story: Story) -> None:
    """The source message returns although the transaction's own messages were seen."""
    publisher, mover, reader = story.session("publisher"), story.session("mover"), story.session("reader", "b")
    source = story.confirmed(publisher)
    transaction = story.begun(mover, story.delivered(mover, source))
    message = story.sent(mover, "out", transaction=transaction)
    story.asked(transaction)
    story.acked(story.delivered(reader, message, "out"))
    assert kinds(story) == []
    story.acked(story.delivered(reader, source, redelivered=True))
    assert kinds(story) == ["torn"]


def test_a_committed_transaction_without_its_messages_is_lost(story: Story) -> None:
    """tx.commit-ok is a confirm; an unanswered commit without messages settles nothing."""
    publisher, mover = story.session("publisher"), story.session("mover")
    source = story.confirmed(publisher)
    transaction = story.begun(mover, story.delivered(mover, source))
    story.sent(mover, "out", transaction=transaction)
    story.asked(transaction)
    assert kinds(story) == ["lost"]  # the source
    story.committed(transaction)
    assert kinds(story) == ["lost"]  # the message


def test_a_source_after_its_dead_letter_is_doubled(story: Story) -> None:
    """The dead letter was there, so that its source must be settled."""
    publisher, consumer, other = story.session("publisher"), story.session("consumer"), story.session("other", "b")
    message = story.confirmed(publisher)
    story.delivered(consumer, message, rejected=True, settled_at=story.tick())
    story.acked(story.delivered(other, message, "dead"))
    assert kinds(story) == []
    story.acked(story.delivered(other, message, redelivered=True))
    assert kinds(story) == ["doubled"]


def test_a_dead_letter_may_be_made_again_when_its_node_did_not_commit_it(story: Story) -> None:
    """Two fresh dead letters of one source are a fault only if both are certainly committed."""
    publisher, consumer, other = story.session("publisher"), story.session("consumer"), story.session("other")
    message = story.confirmed(publisher)
    story.delivered(consumer, message, rejected=True, settled_at=story.tick())
    story.acked(story.delivered(other, message, "dead"))
    story.delivered(consumer, message, redelivered=True, rejected=True, settled_at=story.tick())
    story.acked(story.delivered(other, message, "dead"))
    assert kinds(story) == []
    story.acked(story.delivered(other, story.confirmed(other, "receipts"), "receipts"))
    assert "unmarked" in kinds(story)


def restored(story: Story, *, acks: bool, settles_again: bool) -> Rewind:
    """Write a message of before a copy, which is acked since, one of after it, and a restore of the copy."""
    publisher, consumer = story.session("publisher"), story.session("consumer")
    old = story.confirmed(publisher)
    began, copied = story.tick(), story.tick()
    story.confirmed(publisher)  # the copy has nothing of it
    first = story.delivered(consumer, old)
    if acks:
        story.acked(first)
        story.confirmed(consumer, "receipts")
    rewind = Rewind(began, copied, story.tick(), story.tick())
    again = story.delivered(story.session("later", "b"), old, redelivered=True)
    if settles_again:
        story.acked(again)
    return rewind


@pytest.mark.parametrize("acks", [False, True])
@pytest.mark.parametrize("settles_again", [False, True])
def test_a_restored_database_keeps_what_was_confirmed_before(story: Story, *, acks: bool, settles_again: bool) -> None:
    """Later messages and acks may be missing in the copy; earlier messages have to be settled again."""
    rewind = restored(story, acks=acks, settles_again=settles_again)
    assert "lost" in kinds(story)
    assert kinds(story, rewinds=[rewind]) == ([] if settles_again else ["lost"])


@pytest.mark.parametrize("expiring", [False, True])
def test_a_dead_letter_of_an_expired_message_proves_nothing_before_it_is_settled(
    story: Story, *, expiring: bool
) -> None:
    """Any node may have made it, also the one that delivers it before the commit and dies."""
    publisher, consumer = story.session("publisher"), story.session("consumer")
    message = story.confirmed(publisher)
    story.delivered(consumer, message, "dead")
    story.acked(story.delivered(story.session("later", "b"), message, redelivered=True))
    assert kinds(story, expiring=("q",) if expiring else ()) == ([] if expiring else ["doubled"])


def test_delayed_messages_arrive_in_the_order_of_their_delays(story: Story) -> None:
    """So their order says nothing."""
    publisher, drain = story.session("publisher"), story.session("drain")
    first, second = story.confirmed(publisher), story.confirmed(publisher)
    story.acked(story.delivered(drain, second, drained=True))
    story.acked(story.delivered(drain, first, drained=True))
    assert kinds(story) == ["reordered"]
    assert kinds(story, late=("q",)) == []


def test_the_history_counts_what_happened(story: Story) -> None:
    """The figures of a run."""
    in_order(story)
    Analysis(story.history).judge()
    figures = story.history.figures()
    assert figures["confirmed"] == 3
    assert figures["certainly settled"] == 2
    assert story.history.messages[3].confirmed_at == NEVER
