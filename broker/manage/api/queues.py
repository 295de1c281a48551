"""GET /api/queues: the queues, and what binds them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from broker.administration.deciding import count_all
from broker.core.arguments import queue_type
from broker.core.definitions.export import json_table
from broker.core.message.message import OVERHEAD_BYTES
from broker.core.queue.queue_bytes import QueueBytes
from broker.core.session.connection import SessionOfConnection
from broker.manage.answers import json_answer
from broker.manage.api.bindings import bindings_to
from broker.manage.api.consumers import consumers_of
from broker.manage.api.visible import visible_vhosts
from broker.manage.api_route import ApiRoute
from broker.manage.columns import Columns, Row
from broker.manage.counts import QUEUE_COUNTERS, QUEUE_NUMBERS, queue_key, queue_numbers
from broker.manage.history import sample_range
from broker.manage.listing import Listing, listed
from broker.manage.message_stats import NO_PROCESS, with_rates
from broker.manage.needs import Needs
from broker.manage.refusal import not_found

if TYPE_CHECKING:
    from broker.core.queue.queue import Queue
    from broker.core.vhost import Vhost
    from broker.manage.call import Call
    from broker.manage.managed_broker import ManagedBroker

__all__ = ["LISTED_EXACTLY_MAX", "QueueRows", "queue_of", "queue_routes"]

LISTED_EXACTLY_MAX: Final = 1000  # messages of a queue whose bytes a list counts; more are extrapolated
MESSAGES_AT_ONCE: Final = 10_000  # messages that are counted between two turns of the loop
LENGTHS: Final = ("messages", "messages_ready", "messages_unacknowledged")
BRIEF: Final = frozenset(
    {"vhost", "name", "node", "type", "durable", "auto_delete", "exclusive", "state", "policy", "consumers", *LENGTHS}
)
Listed = tuple["Vhost", "Queue"]


def queue_routes() -> list[ApiRoute]:
    """Return the routes."""
    return [
        ApiRoute("GET", "/api/queues", Needs.MANAGEMENT, list_queues),
        ApiRoute("GET", "/api/queues/{vhost}", Needs.MANAGEMENT, list_queues),
        ApiRoute("GET", "/api/queues/{vhost}/{queue}", Needs.MANAGEMENT, show_queue),
        ApiRoute("GET", "/api/queues/{vhost}/{queue}/bindings", Needs.MANAGEMENT, list_bindings),
    ]


def queue_of(call: Call) -> Listed:
    """Return the vhost and the queue that the path names. Raises: HttpRefused 404, 401."""
    vhost = call.vhost()
    queue = vhost.queues.get(call.words["queue"])
    if queue is None:
        raise not_found()
    return vhost, queue


async def list_queues(call: Call) -> Response:
    """Answer with a list of queues."""
    found = [(vhost, queue) for vhost in visible_vhosts(call) for queue in vhost.queues.values()]
    if call.broker.cluster is not None:
        await count_all([queue for _vhost, queue in found])
    rows = QueueRows(call.broker)
    whole: Callable[[Listed], Row] = rows.whole
    if call.query.get("disable_stats") == "true":
        whole = rows.brief if call.query.get("enable_queue_totals") == "true" else rows.without_stats
    return await listed(
        call.query,
        Listing(
            found,
            names=lambda one: (one[1].name,),
            whole=whole,
            order=lambda one: (one[0].name, one[1].name),
            brief=rows.brief,
            brief_columns=BRIEF,
        ),
    )


async def show_queue(call: Call) -> Response:
    """Answer with one queue: its consumers, exact bytes unless disable_stats is set, and samples if asked for."""
    vhost, queue = queue_of(call)
    broker = call.broker
    if broker.cluster is not None:
        await count_all([queue])
    rows = QueueRows(broker)
    row = (
        rows.brief((vhost, queue))
        if call.query.get("disable_stats") == "true"
        else rows.whole((vhost, queue), await _count_bytes(queue))
    )
    row |= {
        "consumer_details": list(consumers_of(broker, vhost, queue)),
        "deliveries": [],
        "incoming": [],
    }
    if "message_stats" in row:
        rows.add_samples(row, vhost, queue, call.query)
    columns = call.query.get("columns", "")
    return json_answer(Columns(columns).of(row) if columns else row)


async def _count_bytes(queue: Queue) -> QueueBytes:
    """Return the bytes of a queue's messages. Cost: O(messages), in pieces."""
    counted = QueueBytes()
    messages = 0
    for length in counted.count(queue):
        messages += length
        if messages > MESSAGES_AT_ONCE:
            messages = 0
            await asyncio.sleep(0)
    return counted


async def list_bindings(call: Call) -> Response:
    """Answer with the bindings to one queue."""
    vhost, queue = queue_of(call)
    return await bindings_to(call, vhost, queue)


class QueueRows:
    """Makes the rows of queues."""

    __slots__ = ("_broker", "_node")

    def __init__(self, broker: ManagedBroker) -> None:
        self._broker = broker
        self._node = broker.node_name

    def without_stats(self, listed: Listed) -> Row:
        """Return the row of a queue without any number. Cost: microseconds."""
        vhost, queue = listed
        row = {
            "arguments": json_table(queue.arguments),
            "auto_delete": queue.auto_delete,
            "durable": queue.durable,
            "exclusive": queue.exclusive_owner is not None,
            "name": queue.name,
            "node": self._node,
            "policy": queue.policy,
            "state": "paused" if queue.paused else "running",
            "type": queue_type(queue.arguments),
            "vhost": vhost.name,
        }
        if row["type"] == "quorum":
            row |= {"leader": self._node, "members": [self._node], "online": [self._node]}
        return row

    def brief(self, listed: Listed) -> Row:
        """Return the row of a queue with its length. Cost: microseconds."""
        queue = listed[1]
        (ready, consumers), unacked = queue.counts(), queue.unacked
        row = self.without_stats(listed)
        row["messages"] = ready + unacked
        row["messages_ready"] = ready
        row["messages_unacknowledged"] = unacked
        row["consumers"] = consumers
        return row

    def whole(self, listed: Listed, counted: QueueBytes | None = None) -> Row:
        """Return the row of a queue with all that is known. Cost: O(slots), and O(1) of the messages.

        `counted` are its exact bytes; without them those of many messages are extrapolated from the first.
        """
        vhost, queue = listed
        samples = self._broker.samples
        key = queue_key(vhost, queue)
        numbers = queue_numbers(queue)
        rates = samples.rates.of(key, numbers, QUEUE_COUNTERS)
        row = self.brief(listed)
        lengths = with_rates(LENGTHS, numbers[QUEUE_COUNTERS:], None if rates is None else rates[QUEUE_COUNTERS:])
        row |= {name: value for name, value in lengths.items() if name not in row}
        row["message_stats"] = with_rates(
            QUEUE_NUMBERS[:QUEUE_COUNTERS],
            numbers[:QUEUE_COUNTERS],
            None if rates is None else rates[:QUEUE_COUNTERS],
        )
        consumers = queue.consumers
        alone = next(iter(consumers)) if consumers.exclusive else None
        able = int(consumers.able())
        changed_s = samples.rates.changed_s(key)
        row |= _sizes(queue, row["messages"], counted)
        row |= NO_PROCESS
        active_tag = None if consumers.active is None else consumers.active.tag
        row |= {
            "consumer_capacity": able,
            "consumer_utilisation": able,
            "effective_policy_definition": _effective_policy(vhost, queue),
            "exclusive_consumer_tag": None if alone is None else alone.tag,
            "head_message_timestamp": None,
            "operator_policy": queue.operator_policy,
            "recoverable_slaves": None,
            "single_active_consumer_tag": active_tag,
            "slots": sum([len(stream.manager.slots) for stream in queue.streams]),
        }
        if row["type"] == "quorum":
            row["message_bytes_dlx"] = row["messages_dlx"] = 0
            row["open_files"] = {self._node: 0}
            row["single_active_consumer_ctag"] = active_tag
        if rates is None and changed_s is not None:
            row["idle_since"] = datetime.fromtimestamp(changed_s, UTC).isoformat(timespec="milliseconds")
        owner = queue.exclusive_owner
        if isinstance(owner, SessionOfConnection):
            peer = owner.peer
            row["owner_pid_details"] = {"name": owner.name, "peer_host": peer.address, "peer_port": peer.port}
        return row

    def add_samples(self, row: Row, vhost: Vhost, queue: Queue, query: Mapping[str, str]) -> None:
        """Add to the row of a queue the samples that a query asks for; its history begins when somebody asks."""
        samples = self._broker.samples
        for kind, names, part in (
            ("lengths", QUEUE_NUMBERS[QUEUE_COUNTERS:], row),
            ("msg_rates", QUEUE_NUMBERS[:QUEUE_COUNTERS], row["message_stats"]),
        ):
            wanted = sample_range(query, kind)
            if wanted is not None:
                history = samples.watch(
                    queue_key(vhost, queue), QUEUE_NUMBERS, QUEUE_COUNTERS, partial(_numbers_of, queue)
                )
                for name in names:
                    part[f"{name}_details"] = history.details(name, wanted, samples.now_ms)


def _numbers_of(queue: Queue) -> Sequence[int] | None:
    return None if queue.deleted else queue_numbers(queue)


def _effective_policy(vhost: Vhost, queue: Queue) -> dict[str, Any]:
    """Return the definitions of the policies that apply to a queue in one table; an operator's wins."""
    if queue.policy is None and queue.operator_policy is None:
        return {}
    policies = vhost.policies
    found = (
        None if queue.policy is None else policies.get(queue.policy),
        None if queue.operator_policy is None else policies.get(queue.operator_policy, operator=True),
    )
    return {name: value for policy in found if policy is not None for name, value in policy.definition.items()}


def _sizes(queue: Queue, messages: int, counted: QueueBytes | None) -> Row:
    """Return the bytes of a queue's messages, and how many are in memory and in the log."""
    if counted is None:
        counted = QueueBytes()
        if messages:
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
