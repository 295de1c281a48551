"""Apply changed policies to the queues and exchanges of a vhost, one slice per turn of the loop. A hundred thousand
queues take seconds, and clients are served in between. A queue or an exchange that a client uses is updated first, so
that clients do not see the effect of outdated policies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from broker.core.deadlines import Deadlines
from broker.core.policy.policy import Policies
from broker.core.queue.queue import Queue
from broker.routing.exchange import Exchange

SLICE_UNITS: Final = 200  # the part of the turn's share that a slice may use
UNITS: Final = 4  # the cost of one queue or exchange, without the searches
POLICIES_PER_UNIT: Final = 4  # each search takes some microseconds


class PolicySweep:
    """Apply the current policies to the queues and exchanges that existed when the policies changed. Objects that are
    declared later get the current policies at once. Another change restarts the sweep; a restart of the broker applies
    all policies again.
    Invariant: ``pending`` is set while queues or exchanges remain.
    Cost: a slice takes about SLICE_UNITS of a turn's share, and ends early if a search exceeds its time limit.
    """

    def __init__(
        self,
        policies: Policies,
        deadlines: Deadlines,
        *,
        resolve_again: Callable[[], None],
        rerouted: Callable[[str], None],
    ) -> None:
        """`resolve_again` drops the publish caches; `rerouted` is called with the name of each changed exchange."""
        self._policies = policies
        self._deadlines = deadlines
        self._resolve_again = resolve_again
        self._rerouted = rerouted
        self._queues: dict[str, Queue] = {}
        self._exchanges: dict[str, Exchange] = {}
        self._unenforced: list[Queue] = []  # queues whose new rules are set but not yet enforced
        self._followers: list[Callable[[], None]] = []
        self.pending = False
        self.slices = 0

    def __len__(self) -> int:
        """Return the number of queues and exchanges left."""
        return len(self._queues) + len(self._exchanges)

    def begin(self, queues: Mapping[str, Queue], exchanges: Mapping[str, Exchange]) -> None:
        """Start to apply the policies: the first slice at once, which is enough for a small vhost."""
        self._queues = dict(queues)
        self._exchanges = dict(exchanges)
        self.pending = True
        self._resolve_again()
        self.turn()

    def follow(self, done: Callable[[], None]) -> None:
        """Call `done` when the sweep has ended, or now if none is running."""
        if self.pending:
            self._followers.append(done)
        else:
            done()

    def update(self, queue: Queue) -> None:
        """Apply the policies to a queue now, because a client uses it."""
        if self._queues.pop(queue.name, None) is queue:
            self._policies.apply_to_queue(queue)

    def update_rules(self, queues: Iterable[Queue]) -> None:
        """Set the rules of queues to which a message was routed. A later turn enforces them, because the queues may be
        in the middle of accepting messages.
        """
        for queue in queues:
            if self._queues.pop(queue.name, None) is queue and self._policies.apply_to_queue(queue, enforce=False):
                self._unenforced.append(queue)

    def update_exchange(self, exchange: Exchange) -> None:
        """Apply the policies to an exchange now, because a client uses it."""
        if self._exchanges.pop(exchange.name, None) is exchange:
            if self._policies.apply_to_exchange(exchange):
                self._rerouted(exchange.name)
            if not self._exchanges:
                self._resolve_again()

    def turn(self) -> None:
        """Apply the policies to the next slice."""
        self.slices += 1
        policies = self._policies
        units = UNITS + policies.count // POLICIES_PER_UNIT
        timeouts = policies.timeouts
        deadlines = self._deadlines
        floor = max(deadlines.units_left - SLICE_UNITS, 0)
        spent = 0
        complete = False
        while not complete and deadlines.units_left - spent > floor and policies.timeouts == timeouts:
            spent += units
            if self._unenforced:
                self._unenforced.pop().enforce_rules()
            elif self._exchanges:
                name, exchange = self._exchanges.popitem()
                if policies.apply_to_exchange(exchange):
                    self._rerouted(name)
                if not self._exchanges:  # the route of a publish may lead through further exchanges
                    self._resolve_again()
            elif self._queues:
                queue = self._queues.popitem()[1]
                if not queue.deleted:
                    policies.apply_to_queue(queue)
            else:
                complete = True
        deadlines.spend(spent)
        if complete:
            self._end()
        else:
            deadlines.next_turn(self, self.turn)

    def end(self) -> None:
        self._queues, self._exchanges, self._unenforced = {}, {}, []
        self._rerouted = lambda _name: None
        self._end()

    def _end(self) -> None:
        self.pending = False
        self._deadlines.cancel(self)
        followers, self._followers = self._followers, []
        for done in followers:
            done()
