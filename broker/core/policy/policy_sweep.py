"""A change of policies, applied to the queues and exchanges of a vhost one slice per turn of the loop. A hundred
thousand queues take seconds, and clients are served in between. Every object that a client uses is updated first, so
that no client can tell that others still wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from broker.core.deadlines import Deadlines
from broker.core.policy.policy import Policies
from broker.core.queue.queue import Queue
from broker.routing.exchange import Exchange

SLICE_UNITS: Final = 200  # of about ten microseconds
UNITS: Final = 4  # the cost of one queue or exchange under a few policies
POLICIES_PER_UNIT: Final = 4  # a search takes some microseconds


class PolicySweep:
    """Apply the current policies to the queues and exchanges that existed when they changed. Invariant: ``pending``
    while objects are left. Objects declared meanwhile get the current policies at once, and another change restarts
    the sweep. Policies are stored as a whole, so a start sweeps everything again, wherever a sweep was interrupted.
    Cost: a slice takes at most SLICE_UNITS of a turn's share, and ends early with a pattern that ran out of time.
    """

    def __init__(
        self,
        policies: Policies,
        deadlines: Deadlines,
        *,
        resolve_again: Callable[[], None],
        rerouted: Callable[[str], None],
    ) -> None:
        """`resolve_again` drops the publish caches; `rerouted` is called with an exchange whose alternate changed."""
        self._policies = policies
        self._deadlines = deadlines
        self._resolve_again = resolve_again
        self._rerouted = rerouted
        self._queues: dict[str, Queue] = {}
        self._exchanges: dict[str, Exchange] = {}
        self._unsettled: list[Queue] = []  # have their rules, which are still to be enforced
        self._followers: list[Callable[[], None]] = []
        self.pending = False
        self.slices = 0

    def __len__(self) -> int:
        """Return the number of queues and exchanges left."""
        return len(self._queues) + len(self._exchanges)

    def begin(self, queues: Mapping[str, Queue], exchanges: Mapping[str, Exchange]) -> None:
        """Begin to apply the policies, with the first slice at once, which is enough for a small vhost."""
        self._queues = dict(queues)
        self._exchanges = dict(exchanges)
        self.pending = True
        self._resolve_again()
        self.turn()

    def follow(self, done: Callable[[], None]) -> None:
        """Call `done` when everything follows the policies, including changes made meanwhile."""
        if self.pending:
            self._followers.append(done)
        else:
            done()

    def update(self, queue: Queue) -> None:
        """Apply the policies now to a queue that a client uses."""
        if self._queues.pop(queue.name, None) is queue:
            self._policies.apply_to_queue(queue)

    def update_rules(self, queues: Iterable[Queue]) -> None:
        """Set the rules now of the queues to which a message was routed.

        A later turn drops what exceeds them: the queues may be in the middle of taking messages.
        """
        for queue in queues:
            if self._queues.pop(queue.name, None) is queue and self._policies.apply_to_queue(queue, settle=False):
                self._unsettled.append(queue)

    def update_exchange(self, exchange: Exchange) -> None:
        """Apply the policies now to an exchange that a client uses."""
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
        over = False
        while not over and deadlines.units_left - spent > floor and policies.timeouts == timeouts:
            spent += units
            if self._unsettled:
                self._unsettled.pop().settle_in()
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
                over = True
        deadlines.spend(spent)
        if over:
            self._end()
        else:
            deadlines.next_turn(self, self.turn)

    def end(self) -> None:
        """Stop the sweep, because the vhost is deleted."""
        self._queues, self._exchanges, self._unsettled = {}, {}, []
        self._rerouted = lambda _name: None
        self._end()

    def _end(self) -> None:
        self.pending = False
        self._deadlines.cancel(self)
        followers, self._followers = self._followers, []
        for done in followers:
            done()
