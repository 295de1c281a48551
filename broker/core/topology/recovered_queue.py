"""Queues whose declaration was lost: their messages are kept in a queue of another name, until an operator moves them.

The log names queues by number; the name, the arguments and the bindings stand in the declaration alone. So the messages
of a number that no readable change declares are put into `recovered.<number>`, a durable queue without bindings for
which no policy holds, so that nothing expires or overflows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from broker.core.queue.queue import Queue
from broker.core.queue.rules import queue_rules
from broker.core.topology.changes import arguments_from_json, queue_declared

if TYPE_CHECKING:
    from broker.core.topology.changes import Change
    from broker.core.vhost import Vhost

__all__ = ["RecoveredQueue", "deleted_numbers", "make_recovered"]


class RecoveredQueue(Queue):
    """The messages of a queue whose declaration was lost. Clients use it like any other."""

    __slots__ = ()

    recovered = True


def make_recovered(vhost: Vhost, number: int) -> Queue:
    """Return a new durable queue under the number of one whose declaration was lost, and journal it."""
    name = f"recovered.{number}"
    while name in vhost.queues:
        name = vhost.new_name(f"recovered.{number}.")
    queue = vhost.queues.add(
        name, number=number, durable=True, exclusive_owner=None, auto_delete=False, arguments={}, recovered=True
    )
    vhost.journal(queue_declared(queue))
    return queue


def deleted_numbers(changes: Iterable[Change]) -> set[int]:
    """Return the numbers of the queues that some changes delete, those of all their priorities included."""
    levels: dict[int, int] = {}
    deleted: set[int] = set()
    for change in changes:
        if change["change"] == "queue_declared":
            levels[change["number"]] = _levels(arguments_from_json(change["arguments"]))
        elif change["change"] == "queue_deleted":
            number = change["number"]
            deleted.update(range(number, number + levels.get(number, 1)))
    return deleted


def _levels(arguments: Mapping[str, object]) -> int:
    return queue_rules(arguments).max_priority + 1
