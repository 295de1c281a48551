"""The clients of a run: threads that connect to any node, work at random, and connect again when a connection ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final, Protocol

from pamqp import commands

from broker.cli.control_client import Unanswered
from tests.broker_process import BrokerAddress
from tests.cluster.checker.conversation import Conversation, Gone
from tests.cluster.checker.history import History, Transaction
from tests.raw_client import PeerGone, RawClient, method_frame

EXCHANGE: Final = "checker"
BOTH: Final = "checker-both"
LATER: Final = "checker-later"
RECEIPTS: Final = "receipts"
ROUTES: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    # The queues of a message, by exchange and key: written by hand, so that the router is not tested with itself.
    (EXCHANGE, "a"): ("shared",),
    (EXCHANGE, "b"): ("ordered",),
    (EXCHANGE, "ab"): ("shared", "ordered"),
    (EXCHANGE, "g"): ("fetched",),
    (EXCHANGE, "r"): ("rejecting",),
    (EXCHANGE, "m"): ("source",),
    (EXCHANGE, "l"): ("limited",),
    (EXCHANGE, "al"): ("shared", "limited"),
    (EXCHANGE, "t"): ("brief",),
    (LATER, "d"): ("late",),
    (BOTH, ""): ("moved-1", "moved-2"),
    ("", RECEIPTS): (RECEIPTS,),
}
PUBLISHED: Final = ("a", "b", "ab", "g", "r", "m", "l", "al", "t", "d")
QUEUES: Final = (
    *("shared", "ordered", "fetched", "rejecting", "dead", "source", "moved-1", "moved-2"),
    *("limited", "brief", "expired", "late", RECEIPTS),
)
ORDERED: Final = frozenset({"ordered"})
"""Queues with at most one consumer at a time."""
DEAD: Final = {"rejecting": "dead", "brief": "expired"}
EXPIRING: Final = frozenset({"brief"})
LATE: Final = frozenset({"late"})
BRIEF_MS: Final = 400
DELAY_MAX_MS: Final = 1500
SIZES_BYTES: Final = (12, 100, 100, 1000, 1000, 20_000)
PAUSE_S: Final = 0.02


def declare(address: BrokerAddress) -> None:
    """Declare the durable exchanges, queues and bindings."""
    with RawClient(address.host, address.port).with_channel() as client:
        for exchange, kind in ((EXCHANGE, "direct"), (BOTH, "fanout")):
            declaration = commands.Exchange.Declare(exchange=exchange, exchange_type=kind, durable=True)
            client.call(1, declaration, commands.Exchange.DeclareOk)
        delaying = commands.Exchange.Declare(
            exchange=LATER, exchange_type="x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"}
        )
        client.call(1, delaying, commands.Exchange.DeclareOk)
        for queue in QUEUES:
            arguments: dict[str, str | int] = (
                {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD[queue]} if queue in DEAD else {}
            )
            if queue in EXPIRING:
                arguments["x-message-ttl"] = BRIEF_MS
            client.declare_queue(1, queue, durable=True, arguments=arguments)
        for (exchange, key), queues in ROUTES.items():
            for queue in queues if exchange else ():
                bind = commands.Queue.Bind(queue=queue, exchange=exchange, routing_key=key)
                client.call(1, bind, commands.Queue.BindOk)
        client.close()


class Work(Protocol):
    """The work of a member on one connection, until the work is done or the member is to leave."""

    def __call__(self, member: Member, talk: Conversation) -> None: ...


class Member(threading.Thread):
    """One client. A session that ends is followed by another, on any node, until the member is to leave."""

    def __init__(
        self,
        name: str,
        nodes: Callable[[], Sequence[tuple[str, BrokerAddress]]],
        history: History,
        seed: str,
        work: Work,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.nodes = nodes
        self.history = history
        self.random = Random(seed)
        self.work = work
        self.leaving = threading.Event()
        self.error: BaseException | None = None
        self.talk: Conversation | None = None

    def __str__(self) -> str:
        talk = self.talk
        if talk is None:
            return f"{self.name}: not connected"
        state = f"{talk.unconfirmed} unconfirmed, {len(talk.inbox)} held{', blocked' if talk.blocked else ''}"
        return f"{self.name}: session {talk.session.number} on {talk.session.node}, {state}"

    def run(self) -> None:
        """Work session after session."""
        try:
            while not self.leaving.is_set():
                self._session()
        except BaseException as error:  # noqa: BLE001 - handed to the test, which fails
            self.error = error

    def cut(self) -> None:
        """End the current connection from outside, as a broken network does."""
        talk = self.talk
        if talk is not None:
            talk.drop()

    def rests(self) -> bool:
        """Wait a moment and return whether the member is to leave."""
        return self.leaving.wait(PAUSE_S)

    def _session(self) -> None:
        nodes = self.nodes()
        if not nodes:
            self.rests()
            return
        node, address = self.random.choice(nodes)
        try:
            talk = Conversation(address, self.history, self.name, node)
        except (OSError, PeerGone, AssertionError):  # the node is down, or ends while the client logs in
            self.rests()
            return
        self.talk = talk
        try:
            self.work(self, talk)
        except Gone:
            pass
        finally:
            self.talk = None
            talk.drop()


class Publishing:
    """Publishes with confirms and a limited number of unanswered messages; ends its session now and then."""

    def __init__(self, keys: Sequence[str] = PUBLISHED, window: int = 60, pause_s: float = PAUSE_S) -> None:
        self.keys = keys
        self.window = window
        self.pause_s = pause_s  # the clients and the nodes share two cores

    def __call__(self, member: Member, talk: Conversation) -> None:
        """Publish until the session is long enough."""
        random = member.random
        talk.confirm_select()
        remaining = random.choice((200, 1000, 5000))
        while remaining > 0 and not member.leaving.is_set():
            burst = random.randint(1, self.window // 2)
            remaining -= burst
            keys = random.choices(self.keys, k=burst)
            sizes = random.choices(SIZES_BYTES, k=burst)
            talk.send(*(self._publish(random, talk, key, size) for key, size in zip(keys, sizes, strict=True)))
            talk.await_confirms(self.window - burst // 2)
            if member.leaving.wait(self.pause_s):
                break
        if member.leaving.is_set() or random.random() < 0.5:
            talk.await_confirms()
            talk.close()

    def _publish(self, random: Random, talk: Conversation, key: str, size: int) -> bytes:
        if (LATER, key) in ROUTES:
            return talk.publish(LATER, key, ROUTES[LATER, key], size, delay_ms=random.randint(1, DELAY_MAX_MS))
        return talk.publish(EXCHANGE, key, ROUTES[EXCHANGE, key], size)


class Governing:
    """Changes definitions on any node, as concurrent operators do: a limit, policies, users, rights and vhosts.

    A change that a node does not answer, or refuses because of another operator, may have happened or not.
    """

    def __init__(self, ask: Callable[..., object]) -> None:
        self.ask = ask  # takes the name of a node

    def __call__(self, member: Member, talk: Conversation) -> None:
        """Change definitions until the session is long enough."""
        random = member.random
        for _ in range(random.choice((5, 50))):
            if member.leaving.wait(10 * PAUSE_S):
                break
            nodes = member.nodes()
            if not nodes:
                continue
            name, (verb, arguments) = random.choice(nodes)[0], self._change(random, member.name)
            try:
                self.ask(name, verb, **arguments)
            except Unanswered:
                pass
            else:
                member.history.changes += 1
            talk.pump(0)
        if member.leaving.is_set():
            talk.close()

    def _change(self, random: Random, own: str) -> tuple[str, dict[str, object]]:
        limit = {"max-length": random.choice((0, 5, 50)), "overflow": "reject-publish"}
        name = f"{own}-{random.randint(1, 3)}"
        rights = {"configure": "", "write": "", "read": ".*"}
        changes: tuple[tuple[str, dict[str, object]], ...] = (
            ("set_policy", {"name": "limit", "pattern": "^limited$", "definition": limit, "apply_to": "queues"}),
            ("delete_policy", {"name": "limit"}),
            ("delete_policy", {"name": "limit"}),
            ("set_policy", {"name": name, "pattern": "^(shared|brief)$", "definition": {"delivery-limit": -1}}),
            ("delete_policy", {"name": name}),
            ("add_user", {"name": name, "password": name, "tags": []}),
            ("set_permission", {"user": name, "vhost": "/", **rights}),
            ("delete_user", {"name": name}),
            ("add_vhost", {"name": name}),
            ("delete_vhost", {"name": name}),
        )
        return random.choice(changes)


class Consuming:
    """Consumes a queue with a prefetch: acks singly and in bulk, requeues, rejects, and crashes now and then."""

    def __init__(self, queue: str, *, rejects: float = 0.0) -> None:
        self.queue = queue
        self.rejects = rejects

    def __call__(self, member: Member, talk: Conversation) -> None:
        """Consume until the session is long enough."""
        random = member.random
        talk.confirm_select()
        prefetch = random.choice((1, 10, 100))
        tag = talk.consume(self.queue, prefetch)
        remaining = random.choice((30, 300, 3000))
        while remaining > 0 and not member.leaving.is_set():
            talk.pump(PAUSE_S)
            enough = random.randint(1, prefetch)
            while len(talk.inbox) >= enough:
                remaining -= enough
                self._settle(random, talk, enough)
                if random.random() < 0.3:
                    receipt(talk)
        if member.leaving.is_set() or random.random() < 0.3:
            talk.cancel(tag)
            talk.pump(0)
            while talk.inbox:
                self._settle(random, talk, len(talk.inbox))
            receipt(talk)
            talk.await_confirms()
            talk.close()

    def _settle(self, random: Random, talk: Conversation, count: int) -> None:
        held = [talk.inbox.popleft() for _ in range(count)]
        tags, deliveries = [tag for tag, _ in held], [delivery for _, delivery in held]
        choice = random.random()
        if choice < 0.05:
            talk.requeue(tags[-1], deliveries, multiple=True)
        elif choice < 0.5:
            talk.settle(tags[-1], deliveries, multiple=True)
        else:
            random.shuffle(held)
            for tag, delivery in held:
                if random.random() < self.rejects:
                    talk.reject(tag, delivery)
                elif random.random() < 0.05:
                    talk.requeue(tag, [delivery])
                else:
                    talk.settle(tag, [delivery])


def receipt(talk: Conversation) -> None:
    """Publish a message whose confirm proves that the settlements before it are committed."""
    talk.send(talk.publish("", RECEIPTS, ROUTES["", RECEIPTS], 20))


class Fetching:
    """Fetches with basic.get, acks and requeues."""

    def __init__(self, queue: str) -> None:
        self.queue = queue

    def __call__(self, member: Member, talk: Conversation) -> None:
        """Fetch until the session is long enough."""
        random = member.random
        talk.confirm_select()
        for _ in range(random.choice((20, 400))):
            if member.leaving.is_set():
                break
            got = talk.get(self.queue)
            if got is None:
                if member.rests():
                    break
                continue
            tag, delivery = got
            choice = random.random()
            if choice < 0.1:
                talk.requeue(tag, [delivery])
            elif choice < 0.95:
                talk.settle(tag, [delivery])  # all others stay unacked until the session ends
            if random.random() < 0.1:
                receipt(talk)
        if member.leaving.is_set() or random.random() < 0.5:
            receipt(talk)
            talk.await_confirms()
            talk.close()


class Moving:
    """Moves messages in transactions: acks those of one queue and publishes as many to two others, or rolls back."""

    def __call__(self, member: Member, talk: Conversation) -> None:
        """Move until the session is long enough."""
        random = member.random
        talk.call(commands.Tx.Select(), commands.Tx.SelectOk)
        talk.consume("source", 20)
        for _ in range(random.choice((10, 100, 1000))):
            wanted = random.randint(1, 8)
            while len(talk.inbox) < wanted and not member.leaving.is_set():
                talk.pump(PAUSE_S)
            if member.leaving.is_set():
                break
            transaction = Transaction(talk.session)
            held = [talk.inbox.popleft() for _ in range(wanted)]
            talk.session.transactions.append(transaction)
            route = (BOTH, "", ROUTES[BOTH, ""])
            for _ in range(random.randint(1, 3)):
                talk.send(talk.publish(*route, random.choice(SIZES_BYTES), transaction))
            keeps = random.random() < 0.9
            for tag, delivery in held:
                transaction.deliveries.append(delivery)
                delivery.transaction = transaction
                talk.send(method_frame(1, commands.Basic.Ack(delivery_tag=tag)))
            if keeps:
                self._commit(talk, transaction)
            else:
                talk.call(commands.Tx.Rollback(), commands.Tx.RollbackOk)
                transaction.committed = False
                for delivery in transaction.deliveries:
                    delivery.transaction = None
                transaction.deliveries.clear()
                talk.inbox.extendleft(reversed(held))  # unacked again
        if member.leaving.is_set():
            talk.close()

    def _commit(self, talk: Conversation, transaction: Transaction) -> None:
        transaction.asked_at = now = time.monotonic()
        for delivery in transaction.deliveries:
            delivery.settled_at = now
        talk.call(commands.Tx.Commit(), commands.Tx.CommitOk)
        transaction.answered_at = time.monotonic()
        transaction.committed = True
        talk.session.receipts.append((transaction.asked_at, transaction.answered_at))
