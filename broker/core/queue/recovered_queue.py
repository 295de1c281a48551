"""Queues whose declaration was lost: an operator moves their messages to other queues.

The log names queues by number; the name, the arguments and the bindings stand in the declaration alone. So the messages
of a number that no readable change declares go to `recovered.<number>`, a durable queue without bindings for which no
policy holds, so that nothing expires or overflows.
"""

from __future__ import annotations

from broker.core.queue.queue import Queue

__all__ = ["RecoveredQueue"]


class RecoveredQueue(Queue):
    """The messages of a queue whose declaration was lost. Clients use it like any other queue."""

    __slots__ = ()

    recovered = True
