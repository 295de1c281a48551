"""The rows of queues. Lists of 10,000 are asked for, so each microsecond of a row counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from broker.amqp.header_edit import cut_properties
from broker.core.message.message import OVERHEAD_BYTES
from broker.core.queue.queue_bytes import QueueBytes
from broker.core.queue.rules import merged_definitions
from broker.core.session.connection import SessionOfConnection
from broker.manage.columns import Row
from broker.manage.counts import (
    NO_PROCESS,
    QUEUE_COUNTERS,
    QUEUE_NUMBERS,
    QUEUE_STATS,
    queue_key,
    queue_numbers,
    with_rates,
)
from broker.manage.samples import Sampled
from broker.operations.rows import active_tag, queue_lengths, queue_row, slot_count

if TYPE_CHECKING:
    from broker.core.queue.queue import Queue
    from broker.core.vhost import Vhost
    from broker.manage.managed_broker import ManagedBroker

__all__ = ["BRIEF_COLUMNS", "LISTED_EXACTLY_MAX", "NO_SIZES", "ListedQueue", "QueueRows"]

LISTED_EXACTLY_MAX: Final = 1000  # messages of a queue whose bytes a list counts; more are extrapolated
LENGTHS: Final = QUEUE_NUMBERS[QUEUE_COUNTERS:]
STEADY: Final = {f"{name}_details": {"rate": 0.0} for name in LENGTHS}
NO_STATS: Final = with_rates(QUEUE_STATS, [0] * QUEUE_COUNTERS, None)
NO_SIZES: Final = dict.fromkeys(
    (
        "memory",
        "message_bytes",
        "message_bytes_paged_out",
        "message_bytes_persistent",
        "message_bytes_ram",
        "message_bytes_ready",
        "message_bytes_unacknowledged",
        "messages_paged_out",
        "messages_persistent",
        "messages_ram",
        "messages_ready_ram",
        "messages_unacknowledged_ram",
    ),
    0,
)
BRIEF_COLUMNS: Final = frozenset(
    {"vhost", "name", "node", "type", "durable", "auto_delete", "exclusive", "state", "policy", "consumers", *LENGTHS}
)

ListedQueue = tuple["Vhost", "Queue"]


class QueueRows:
    """Makes the rows of queues."""

    __slots__ = ("_broker", "_node")

    def __init__(self, broker: ManagedBroker) -> None:
        self._broker = broker
        self._node = broker.node_name

    def without_stats(self, listed: ListedQueue) -> Row:
        """Return the row of a queue without any number."""
        return queue_row(self._node, *listed)

    def brief(self, listed: ListedQueue) -> Row:
        """Return the row of a queue with its length."""
        return queue_row(self._node, *listed) | queue_lengths(listed[1])

    def whole(self, listed: ListedQueue, counted: QueueBytes | None = None) -> Row:
        """Return the row of a queue with all that is known. Cost: O(slots), and bounded in the messages.

        `counted` are its bytes; without them those of its first messages are counted.
        """
        vhost, queue = listed
        samples = self._broker.samples
        key, numbers = queue_key(vhost, queue), queue_numbers(queue)
        rates = samples.rates.of(key, numbers, QUEUE_COUNTERS)
        row = self.brief(listed)
        _add_counters(row, numbers, rates)
        row |= _sizes(queue, row["messages"], counted)
        row |= NO_PROCESS
        consumers = queue.consumers
        able = consumers.present and consumers.able()
        alone = next(iter(consumers)) if consumers.exclusive else None
        row |= {
            "consumer_capacity": int(able),
            "consumer_utilisation": int(able),
            "effective_policy_definition": _effective_policy(vhost, queue),
            "exclusive_consumer_tag": None if alone is None else alone.tag,
            "head_message_timestamp": _head_timestamp(queue),
            "operator_policy": queue.operator_policy,
            "recoverable_slaves": None,
            "single_active_consumer_tag": active_tag(queue),
            "slots": slot_count(queue),
        }
        if row["type"] == "quorum":
            row["message_bytes_dlx"] = row["messages_dlx"] = 0
            row["open_files"] = {self._node: 0}
            row["single_active_consumer_ctag"] = active_tag(queue)
        changed_s = samples.rates.changed_s(key) if rates is None else None
        if changed_s is not None:
            row["idle_since"] = datetime.fromtimestamp(changed_s, UTC).isoformat(timespec="milliseconds")
        owner = queue.exclusive_owner
        if isinstance(owner, SessionOfConnection):
            peer = owner.peer
            row["owner_pid_details"] = {"name": owner.name, "peer_host": peer.address, "peer_port": peer.port}
        return row

    def add_samples(self, row: Row, vhost: Vhost, queue: Queue, query: Mapping[str, str]) -> None:
        """Add to the row of a queue the samples that a query asks for; its history begins when somebody asks."""
        samples = self._broker.samples
        sampled = Sampled(queue_key(vhost, queue), QUEUE_NUMBERS, QUEUE_COUNTERS, partial(_numbers_of, queue))
        row["message_stats"] = dict(row["message_stats"])
        sampled.add_to(row, "lengths", LENGTHS, query, samples)
        sampled.add_to(row["message_stats"], "msg_rates", QUEUE_STATS, query, samples)


def _numbers_of(queue: Queue) -> Sequence[int] | None:
    return None if queue.deleted else queue_numbers(queue)


def _add_counters(row: Row, numbers: Sequence[int], rates: Sequence[float] | None) -> None:
    """Add message_stats and the rates of the lengths; a queue where nothing happens shares its tables with others."""
    counters = numbers[:QUEUE_COUNTERS]
    if rates is None:
        row |= STEADY
        row["message_stats"] = with_rates(QUEUE_STATS, counters, None) if any(counters) else NO_STATS
        return
    for name, rate in zip(LENGTHS, rates[QUEUE_COUNTERS:], strict=True):
        row[f"{name}_details"] = {"rate": rate}
    row["message_stats"] = with_rates(QUEUE_STATS, counters, rates[:QUEUE_COUNTERS])


def _effective_policy(vhost: Vhost, queue: Queue) -> dict[str, Any]:
    """Return the definitions of the policies that apply to a queue in one table."""
    if queue.policy is None and queue.operator_policy is None:
        return {}
    policies = vhost.policies
    own = None if queue.policy is None else policies.get(queue.policy)
    operator = None if queue.operator_policy is None else policies.get(queue.operator_policy, operator=True)
    return merged_definitions({} if own is None else own.definition, {} if operator is None else operator.definition)


def _head_timestamp(queue: Queue) -> int | None:
    """Return the timestamp of the next ready message, of several levels the earliest; None while it is on disk."""
    found: list[int] = []
    for stream in queue.levels:
        slot = next((slot for slot in stream.manager.slots.values() if slot.ready), None)
        message = None if slot is None or slot.contents is None else slot.contents[slot.front(1)[0]]
        stamp = None if message is None else cut_properties(message.header).get("timestamp")
        if stamp is not None:
            found.append(int.from_bytes(stamp, "big"))
    return min(found, default=None)


def _sizes(queue: Queue, messages: int, counted: QueueBytes | None) -> Mapping[str, int]:
    """Return the bytes of a queue's messages, and how many are in memory and in the log."""
    if not messages:
        return NO_SIZES
    if counted is None:
        counted = QueueBytes()
        for _length in counted.count(queue):
            if counted.messages >= LISTED_EXACTLY_MAX:
                break
    known, all_messages = max(counted.messages, 1), max(messages, counted.messages)

    def scaled(value: int) -> int:
        return value * all_messages // known

    size_bytes = scaled(counted.ready + counted.unacked)
    resident, resident_bytes = scaled(counted.resident_messages), scaled(counted.resident)
    return {
        "memory": resident_bytes + OVERHEAD_BYTES * resident,
        "message_bytes": size_bytes,
        "message_bytes_paged_out": size_bytes - resident_bytes,
        "message_bytes_persistent": scaled(counted.persistent),
        "message_bytes_ram": resident_bytes,
        "message_bytes_ready": scaled(counted.ready),
        "message_bytes_unacknowledged": scaled(counted.unacked),
        "messages_paged_out": all_messages - resident,
        "messages_persistent": scaled(counted.persistent_messages),
        "messages_ram": resident,
        "messages_ready_ram": max(0, resident - queue.unacked),
        "messages_unacknowledged_ram": min(resident, queue.unacked),
    }
