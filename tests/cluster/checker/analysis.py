"""The rules for every history, whatever happened to the nodes and to PostgreSQL (as in Jepsen's queue test).

The rules follow from the broker's guarantees. A fault is:

- lost: a confirmed message, or one of a committed transaction, was never settled by a client. The end of a run drains
  every queue and settles everything, so that each message must have been settled.
- unexpected: a message that was not published to this queue, or whose transaction was not committed.
- damaged: a body that is not the published one.
- refused: a message that the broker refused with a nack.
- unmarked: a message that one queue delivered twice without the redelivered flag.
- returned: a delivery after an ack that is certainly committed. An ack is certain when a persistent message, published
  later on the same channel, was confirmed, or when tx.commit-ok answered its transaction: a node commits what it
  gathered in order, and settles again what a crash of PostgreSQL undid. Nothing else proves that an ack is committed:
  acks alone are committed asynchronously.
- held twice: a delivery of a message that another session held, when that session's node committed something later:
  the node acted in an epoch that had ended.
- reordered: one publisher's messages, delivered for the first time and out of order, to the only consumer of a queue
  (only messages sent more than a second after the consumer started: a node notices late that the former consumer has
  ended, and then returns its messages); or any messages out of order when a queue at rest is drained. Dead letters are
  in the order of their rejection.
- torn: a transaction that took effect in part.
- doubled: a message that was delivered in its queue after its dead letter.

A node may deliver to its own clients what it has not committed yet, a transaction's messages too. So a delivery proves
a commit only when another node made it, when it was made in the drain, or when its settlement is certain.

A node that is stopped between checking the clock and the system call of a write completes this one write when it
continues. The messages in it count as sent before the stop. Late messages to two clients, or in two writes, do not: a
node that sends them did not check its lease.

A restored database lacks what was committed after its copy was made: messages of that time may be lost, and settlements
of that time prove nothing. Messages confirmed before the copy must be settled, and acks that the copy cannot contain do
not count.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from tests.cluster.checker.history import NEVER, Delivery, History, Message, Rewind, Session, Stop, Transaction

CASES_SHOWN: Final = 5
HANDOVER_S: Final = 1.0
ANSWER_S: Final = 10.0
"""The time after its tx.commit from which an unanswered transaction cannot commit any more."""
WAKE_S: Final = 1.0
"""How long a continued process may wait for a processor."""


@dataclass
class Verdict:
    """The faults by kind, each with a text for every case."""

    faults: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, text: str) -> None:
        """Record one case."""
        self.faults.setdefault(kind, []).append(text)

    def report(self) -> str:
        """Return the number of cases of each kind, and the first few of them."""
        lines = []
        for kind, cases in self.faults.items():
            lines.append(f"{kind}: {len(cases)}")
            lines += [f"  {case}" for case in cases[:CASES_SHOWN]]
        return "\n".join(lines)


class Analysis:
    """Judges one history after its drain.

    `ordered` are the queues with at most one consumer at a time; `dead` maps a queue to the queue of its dead letters;
    `expiring` are the queues whose messages expire, so that any node may have published the dead letter; `late` are the
    queues of delayed messages. `drains_in_order` says that nothing was leased when the drain began; `stops` are the
    stops of all nodes.
    """

    def __init__(
        self,
        history: History,
        *,
        ordered: Collection[str] = (),
        dead: Mapping[str, str] | None = None,
        expiring: Collection[str] = (),
        late: Collection[str] = (),
        drains_in_order: bool = True,
        stops: Collection[Stop] = (),
        rewinds: Collection[Rewind] = (),
    ) -> None:
        self.history = history
        self.ordered = ordered
        self.dead = dict(dead or {})
        self.expiring = expiring
        self.late = late
        self.drains_in_order = drains_in_order
        self.stops = stops
        self.rewinds = rewinds
        self.verdict = Verdict()
        self.copies: dict[tuple[str, int], list[Delivery]] = {}

    def judge(self) -> Verdict:
        """Return the verdict. Cost: O(events), and the square of the deliveries of one message."""
        for delivery in self.history.deliveries():
            self.copies.setdefault((delivery.queue, delivery.number), []).append(delivery)
        _make_certain(self.history)
        for delivery in self.history.deliveries() if self.rewinds else ():
            if self._may_be_undone(delivery.certain_at):
                delivery.certain_at = NEVER
        for stop in self.stops:
            _date_write_under_way(self.history, stop)
        for text in self.history.damaged:
            self.verdict.add("damaged", text)
        for transaction in self.history.transactions():
            self._judge_transaction(transaction)
        self._judge_losses()
        for (queue, number), deliveries in self.copies.items():
            self._judge_copies(queue, number, deliveries)
        for session in self.history.sessions:
            self._judge_order(session)
        return self.verdict

    def _may_be_undone(self, since: float, until: float | None = None) -> bool:
        """Return whether a restored database may lack the operations of this time."""
        return any(rewind.touches(since, since if until is None else until) for rewind in self.rewinds)

    # ---- messages

    def _judge_losses(self) -> None:
        for message in self.history.messages.values():
            transaction = message.transaction
            accepted = transaction.committed if transaction else message.confirmed_at < NEVER and not message.refused
            answered_at = transaction.answered_at if transaction else message.confirmed_at
            if accepted and self._may_be_undone(message.sent_at, answered_at):
                continue
            for queue in message.queues if accepted else ():
                copies = self._copies_of(queue, message.number)
                if not any(map(self._is_settled, copies)):
                    seen = [self._show(copy) for copy in copies]
                    self.verdict.add("lost", f"{queue}: {_show_message(message)}, deliveries {seen}")

    def _copies_of(self, queue: str, number: int) -> list[Delivery]:
        """Return the deliveries of a message from a queue and from the queue of its dead letters."""
        copies = self.copies.get((queue, number), [])
        return copies + (self._copies_of(self.dead[queue], number) if queue in self.dead else [])

    def _is_settled(self, delivery: Delivery) -> bool:
        """Return whether a client asked to settle this delivery, and no evidence shows that it had no effect."""
        if delivery.settled_at == NEVER or (delivery.rejected and delivery.queue in self.dead):
            return False
        if any(rewind.copied_at < delivery.settled_at < rewind.restoring_at for rewind in self.rewinds):
            return False
        transaction = delivery.transaction
        if transaction is None or transaction.committed or not transaction.messages:
            return True
        return any(self._is_present(message) for message in transaction.messages)

    def _is_present(self, message: Message) -> bool:
        return any(self._copies_of(queue, message.number) for queue in message.queues)

    def _judge_copies(self, queue: str, number: int, deliveries: list[Delivery]) -> None:
        message = self.history.messages.get(number)
        if message is None or queue not in self._reachable(message):
            self.verdict.add("unexpected", f"{queue}: message {number}, published as {message and message.queues}")
            return
        transaction = message.transaction
        if transaction is not None and (transaction.committed is False or transaction.asked_at == NEVER):
            self.verdict.add("unexpected", f"{queue}: {_show_message(message)}, {_show_transaction(transaction)}")
        if message.refused and message.queues == (queue,):
            self.verdict.add("refused", f"{queue}: {_show_message(message)}, deliveries {len(deliveries)}")
        fresh = [delivery for delivery in deliveries if not delivery.redelivered and self._is_of_one_message(delivery)]
        if len(fresh) > 1:
            self.verdict.add("unmarked", f"{queue}: {_show_message(message)}: {[self._show(one) for one in fresh]}")
        self._judge_pairs(queue, message, deliveries)
        letters = self.copies.get((self.dead[queue], number), []) if queue in self.dead else []
        rejecters = {delivery.session.node for delivery in deliveries if delivery.rejected}
        origin = None if queue in self.expiring else rejecters
        dead_at = min((_proof_at(letter, origin) for letter in letters), default=NEVER)
        for again in deliveries:
            if again.since > dead_at and not self._may_be_undone(dead_at):
                self.verdict.add("doubled", f"{queue}: {_show_message(message)} after its dead letter, {again.at:.3f}")

    def _is_of_one_message(self, delivery: Delivery) -> bool:
        """Return whether another fresh delivery would be of the same message.

        A dead letter that a node delivered but did not commit is lost with the node, and its source is rejected again.
        A delayed message whose release was not logged before its node was killed is released again.
        """
        sources = [queue for queue, dead in self.dead.items() if dead == delivery.queue]
        if (sources or delivery.queue in self.late) and self._may_be_undone(delivery.at):
            return False  # it is published again
        if delivery.queue in self.late:
            return _proof_at(delivery, None) < NEVER
        if self.expiring and not {*sources}.isdisjoint(self.expiring):
            return _proof_at(delivery, None) < NEVER
        rejecters = {
            copy.session.node
            for queue in sources
            for copy in self.copies.get((queue, delivery.number), ())
            if copy.rejected
        }
        return not sources or _proof_at(delivery, rejecters) < NEVER

    def _reachable(self, message: Message) -> set[str]:
        return {*message.queues, *(self.dead[queue] for queue in message.queues if queue in self.dead)}

    def _judge_pairs(self, queue: str, message: Message, deliveries: list[Delivery]) -> None:
        for first in deliveries if len(deliveries) > 1 else ():
            for again in deliveries:
                if again.since > first.certain_at:
                    text = f"{self._show(first)} and then {self._show(again)}"
                    self.verdict.add("returned", f"{queue}: {_show_message(message)}: {text}")
                elif self._may_be_undone(first.at, again.at):
                    continue
                elif first is not again and again.since > first.at and first.returned_at > again.at:
                    later = _receipt_after(first.session, again.at)
                    if later is not None:
                        text = f"{self._show(first)}, {self._show(again)}, and {first.session.client} had a message "
                        text += f"of {later[0]:.3f} confirmed at {later[1]:.3f}"
                        self.verdict.add("held twice", f"{queue}: {_show_message(message)}: {text}")

    # ---- transactions and order

    def _judge_transaction(self, transaction: Transaction) -> None:
        if self._may_be_undone(transaction.asked_at, min(transaction.answered_at, transaction.asked_at + ANSWER_S)):
            return
        copies = {
            (queue, message.number): self._copies_of(queue, message.number)
            for message in transaction.messages
            for queue in message.queues
        }
        origin = {transaction.session.node}
        proofs = [_proof_at(copy, origin) for deliveries in copies.values() for copy in deliveries]
        proof_at = min(proofs, default=NEVER)
        if proof_at == NEVER:
            return
        missing = [place for place, deliveries in copies.items() if not deliveries]
        if missing:
            self.verdict.add(
                "torn", f"of {len(copies)} messages {missing} are missing, {_show_transaction(transaction)}"
            )
        for delivery in transaction.deliveries:
            for again in self.copies.get((delivery.queue, delivery.number), ()):
                if again.since > proof_at:
                    text = f"{delivery.queue} delivered {delivery.number} at {again.at:.3f}, after a message of its "
                    text += f"transaction was committed ({proof_at:.3f}), {_show_transaction(transaction)}"
                    self.verdict.add("torn", text)

    def _judge_order(self, session: Session) -> None:
        by_queue = sorted(session.deliveries, key=lambda delivery: delivery.queue)  # stable: in order of arrival
        for queue, deliveries in groupby(by_queue, lambda delivery: delivery.queue):
            last: dict[Session, Message] = {}
            for delivery in deliveries:
                if delivery.drained:
                    counts = self.drains_in_order and queue not in self.dead.values() and queue not in self.late
                else:
                    counts = queue in self.ordered and not delivery.redelivered
                message = self.history.messages.get(delivery.number)
                if (
                    message is None
                    or not counts
                    or not (delivery.drained or message.sent_at > session.opened_at + HANDOVER_S)
                ):
                    continue
                before = last.get(message.session)
                if before is not None and before.place >= message.place:
                    drain = " in the drain" if delivery.drained else ""
                    text = f"{queue}: {_show_message(message)} after {_show_message(before)}{drain}"
                    text += f", session {session.number} on {session.node}, opened {session.opened_at:.3f}"
                    self.verdict.add("reordered", text + self._show_former(session, queue))
                last[message.session] = message

    # ---- texts

    def _show_former(self, session: Session, queue: str) -> str:
        """Return a text about the session that consumed a queue before this one."""
        former = [
            other
            for other in self.history.sessions
            if other.opened_at < session.opened_at and any(delivery.queue == queue for delivery in other.deliveries)
        ]
        if not former:
            return ""
        last = former[-1]
        return f", before it session {last.number} on {last.node} until {last.ended_at:.3f}"

    def _show(self, delivery: Delivery) -> str:
        session = delivery.session
        flag = "again" if delivery.redelivered else "fresh"
        text = f"{session.client}#{session.number}@{session.node} {flag} {delivery.since:.3f}..{delivery.at:.3f}"
        times = {"settled": delivery.settled_at, "certain": delivery.certain_at, "requeued": delivery.returned_at}
        return text + "".join(f" {name} {at:.3f}" for name, at in times.items() if at < NEVER)


def _make_certain(history: History) -> None:
    """Set the time from which each settlement is certainly committed: the first receipt that was sent after it."""
    for session in history.sessions:
        latest = sorted(session.receipts)
        for place in range(len(latest) - 2, -1, -1):  # the earliest confirm of any later publish
            sent, confirmed = latest[place]
            latest[place] = sent, min(confirmed, latest[place + 1][1])
        session.receipts[:] = latest
        for delivery in session.deliveries:
            if delivery.settled_at < NEVER:
                place = bisect_left(latest, (delivery.settled_at, 0.0))
                if place < len(latest):
                    delivery.certain_at = latest[place][1]


def _date_write_under_way(history: History, stop: Stop) -> None:
    """Date a write that a stop interrupted back to the stop: the first late one, if only one client received any."""
    late = [
        delivery
        for session in history.sessions
        if session.node == stop.node and session.opened_at < stop.began_at
        for delivery in session.deliveries
        if delivery.at >= stop.woken_at and stop.began_at < delivery.since <= stop.woken_at + WAKE_S
    ]
    if len({delivery.session for delivery in late}) == 1:
        first = late[0].since
        for delivery in late:
            if delivery.since == first:
                delivery.since = stop.began_at


def _proof_at(copy: Delivery, origin: Collection[str] | None) -> float:
    """Return when a delivery proves that its message is committed; nodes of `origin`, or any, may have committed it."""
    proves = copy.drained or (origin is not None and copy.session.node not in origin)
    return copy.at if proves else copy.certain_at


def _receipt_after(session: Session, moment: float) -> tuple[float, float] | None:
    """Return the first receipt of a session whose message was sent after a moment."""
    place = bisect_left(session.receipts, (moment, NEVER))
    return session.receipts[place] if place < len(session.receipts) else None


def _show_message(message: Message) -> str:
    session = message.session
    state = "refused" if message.refused else "confirmed" if message.confirmed_at < NEVER else "unconfirmed"
    text = f"{session.client}#{session.number}@{session.node} message {message.number} place {message.place}"
    text += f" sent {message.sent_at:.3f} {state}"
    return text + (f" {message.confirmed_at:.3f}" if message.confirmed_at < NEVER else "")


def _show_transaction(transaction: Transaction) -> str:
    session = transaction.session
    state = {None: "no commit-ok", True: "committed", False: "rolled back"}[transaction.committed]
    return f"transaction of {session.client}#{session.number}@{session.node} at {transaction.asked_at:.3f}: {state}"
