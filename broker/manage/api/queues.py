"""Routes for queues.

Clients list 10,000 queues, so each microsecond of a row counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from broker.administration.deciding import count_all
from broker.amqp.header_edit import cut_properties
from broker.amqp.lenient_methods import DeclareAny, DeleteAny
from broker.core.message.message import OVERHEAD_BYTES
from broker.core.queue.queue import Queue
from broker.core.queue.rules import merged_definitions
from broker.core.session.connection import SessionOfConnection
from broker.core.vhost import Vhost
from broker.event_log import get_logger
from broker.manage.acting import acting
from broker.manage.answers import Response, created, json_answer, no_content
from broker.manage.call import ApiRoute, Call, Needs, visible_vhosts
from broker.manage.counts import (
    LENGTHS,
    NO_PROCESS,
    QUEUE_COUNTERS,
    QUEUE_NUMBERS,
    QUEUE_STATS,
    queue_key,
    queue_numbers,
    with_rates,
)
from broker.manage.listing import Columns, Listing, listed
from broker.manage.managed_broker import ManagedBroker
from broker.manage.refusal import bad_request, not_found
from broker.manage.samples import Sampled
from broker.operations.listing import count_bytes
from broker.operations.queue_readings import QueueBytes
from broker.operations.rows import (
    Row,
    active_tag,
    consumer_row,
    consumers_of,
    queue_delays,
    queue_lengths,
    queue_row,
    slot_count,
)

QUEUE: Final = "/api/queues/{vhost}/{queue}"
ACTIONS: Final = ("sync", "cancel_sync")  # on mirrored queues; this broker has none
SHOWN_EXACTLY_MAX: Final = 100_000  # messages that are counted to show one queue; sizes are extrapolated from these
LISTED_EXACTLY_MAX: Final = 1000  # messages that are counted for each queue of a list
NO_LENGTH_RATES: Final = {f"{name}_details": {"rate": 0.0} for name in LENGTHS}
NO_STATS: Final = with_rates(QUEUE_STATS, [0] * QUEUE_COUNTERS, None)
NO_SIZES: Final = dict.fromkeys(
    (
        *("memory", "message_bytes", "message_bytes_paged_out", "message_bytes_persistent", "message_bytes_ram"),
        *("message_bytes_ready", "message_bytes_unacknowledged", "messages_paged_out", "messages_persistent"),
        *("messages_ram", "messages_ready_ram", "messages_unacknowledged_ram"),
    ),
    0,
)
BRIEF_COLUMNS: Final = frozenset(
    {"vhost", "name", "node", "type", "durable", "auto_delete", "exclusive", "state", "policy", "consumers", *LENGTHS}
)

ListedQueue = tuple["Vhost", "Queue"]

_log = get_logger()


class QueueRows:
    """Build the rows of queues."""

    def __init__(self, broker: ManagedBroker) -> None:
        self._broker = broker
        self._node = broker.node_name

    def without_stats(self, listed: ListedQueue) -> Row:
        return queue_row(self._node, *listed)

    def brief(self, listed: ListedQueue) -> Row:
        return queue_row(self._node, *listed) | queue_lengths(listed[1])

    def whole(self, listed: ListedQueue, counted: QueueBytes | None = None) -> Row:
        """Return the complete row of a queue. If `counted` is None, sizes are extrapolated from the first messages.

        Cost: O(slots), plus about LISTED_EXACTLY_MAX messages.
        """
        vhost, queue = listed
        samples = self._broker.samples
        key, numbers = queue_key(vhost, queue), queue_numbers(queue)
        rates = samples.rates.of(key, numbers, QUEUE_COUNTERS)
        row = self.brief(listed)
        _add_counters(row, numbers, rates)
        row |= _sizes(queue, row["messages"], counted)
        row |= queue_delays(vhost, queue)
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
        if rates is None:
            row |= samples.rates.idle_since(key)
        owner = queue.exclusive_owner
        if isinstance(owner, SessionOfConnection):
            peer = owner.peer
            row["owner_pid_details"] = {"name": owner.name, "peer_host": peer.address, "peer_port": peer.port}
        return row

    def add_samples(self, row: Row, vhost: Vhost, queue: Queue, query: Mapping[str, str]) -> None:
        """Add the requested samples to the row of a queue; its history begins with the first request."""
        samples, sampled = self._broker.samples, sampled_queue(vhost, queue)
        row["message_stats"] = dict(row["message_stats"])
        sampled.add_to(row, "lengths", LENGTHS, query, samples)
        sampled.add_to(row["message_stats"], "msg_rates", QUEUE_STATS, query, samples)


def sampled_queue(vhost: Vhost, queue: Queue) -> Sampled:
    """Return the description of a queue for samples."""
    key = queue_key(vhost, queue)
    return Sampled(key, QUEUE_NUMBERS, QUEUE_COUNTERS, lambda: None if queue.deleted else queue_numbers(queue))


def _add_counters(row: Row, numbers: Sequence[int], rates: Sequence[float] | None) -> None:
    """Add message_stats and the rates of the lengths; idle queues share tables."""
    counters = numbers[:QUEUE_COUNTERS]
    if rates is None:
        row |= NO_LENGTH_RATES
        row["message_stats"] = with_rates(QUEUE_STATS, counters, None) if any(counters) else NO_STATS
        return
    for name, rate in zip(LENGTHS, rates[QUEUE_COUNTERS:], strict=True):
        row[f"{name}_details"] = {"rate": rate}
    row["message_stats"] = with_rates(QUEUE_STATS, counters, rates[:QUEUE_COUNTERS])


def _effective_policy(vhost: Vhost, queue: Queue) -> dict[str, Any]:
    """Return the merged definitions of the policies that apply to a queue."""
    if queue.policy is None and queue.operator_policy is None:
        return {}
    policies = vhost.policies
    own = None if queue.policy is None else policies.get(queue.policy)
    operator = None if queue.operator_policy is None else policies.get(queue.operator_policy, operator=True)
    return merged_definitions({} if own is None else own.definition, {} if operator is None else operator.definition)


def _head_timestamp(queue: Queue) -> int | None:
    """Return the earliest timestamp of the levels' next messages, or None if no such message in memory has one."""
    found: list[int] = []
    for level in queue.levels:
        slot = next((slot for slot in level.manager.slots.values() if slot.ready), None)
        message = None if slot is None or slot.contents is None else slot.contents[slot.front(1)[0]]
        stamp = None if message is None else cut_properties(message.header).get("timestamp")
        if stamp is not None:
            found.append(int.from_bytes(stamp, "big"))
    return min(found, default=None)


def _sizes(queue: Queue, messages: int, counted: QueueBytes | None) -> Mapping[str, int]:
    """Return the columns about the sizes of a queue's messages, extrapolated if not all messages are counted."""
    if not messages:
        return NO_SIZES
    if counted is None:
        counted = QueueBytes()
        for _length in counted.count(queue):
            if counted.messages >= LISTED_EXACTLY_MAX:
                break
    counted_messages, all_messages = max(counted.messages, 1), max(messages, counted.messages)

    def scaled(value: int) -> int:
        return value * all_messages // counted_messages

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


def queue_of(call: Call) -> ListedQueue:
    """Return the vhost and the queue that the path names. Raises: HttpRefused 404, 401, 503."""
    vhost = call.vhost()
    queue = vhost.queues.get(call.words["queue"])
    if queue is None:
        raise not_found()
    return vhost, queue


async def list_queues(call: Call) -> Response:
    """Answer with the queues of the visible vhosts."""
    vhosts = visible_vhosts(call)
    if call.broker.cluster is not None:
        await count_all([queue for vhost in vhosts for queue in vhost.queues.values()])
    found = ((vhost, queue) for vhost in vhosts for queue in list(vhost.queues.values()))
    rows = QueueRows(call.broker)
    whole: Callable[[ListedQueue], Row] = rows.whole
    if call.asks("disable_stats"):
        whole = rows.brief if call.asks("enable_queue_totals") else rows.without_stats
    return await listed(
        call.query,
        Listing(
            found,
            names=lambda one: (one[1].name,),
            whole=whole,
            order=lambda one: f"{one[0].name}\0{one[1].name}",
            brief=rows.brief,
            brief_columns=BRIEF_COLUMNS,
        ),
    )


async def show_queue(call: Call) -> Response:
    """Answer with one queue and its consumers. With disable_stats, sizes and samples are omitted.

    Cost: O(slots), plus up to about SHOWN_EXACTLY_MAX messages if the requested columns include sizes.
    """
    vhost, queue = queue_of(call)
    broker = call.broker
    if broker.cluster is not None:
        await count_all([queue])
    rows = QueueRows(broker)
    text = call.query.get("columns", "")
    columns = Columns(text) if text else None
    if call.asks("disable_stats"):
        row = rows.brief((vhost, queue))
    else:
        sized = columns is None or not columns.names.isdisjoint(NO_SIZES)
        row = rows.whole((vhost, queue), await count_bytes(queue, SHOWN_EXACTLY_MAX) if sized else QueueBytes())
    row |= {
        "consumer_details": [consumer_row(broker.node_name, vhost, queue, one) for one in consumers_of(queue)],
        "deliveries": [],
        "incoming": [],
    }
    if "message_stats" in row:
        rows.add_samples(row, vhost, queue, call.query)
    return json_answer(row if columns is None else columns.of(row))


async def declare(call: Call) -> Response:
    """Declare a queue; answer 201 for a new one, 204 if it exists."""
    vhost, name, fields = call.vhost(), call.words["queue"], await call.fields()
    if fields.flag("exclusive"):
        raise bad_request("an exclusive queue belongs to a connection, which a request does not have")
    method = DeclareAny(
        queue=name,
        durable=fields.flag("durable"),
        auto_delete=fields.flag("auto_delete"),
        arguments=fields.arguments("arguments"),
    )
    is_new = name not in vhost.queues
    async with acting(call, vhost.name) as client:
        await client.call(method)
    if is_new:
        facts = {"durable": method.durable, "arguments": method.arguments, "by": call.user.name}
        _log.info("queue.declared", vhost=vhost.name, queue=name, **facts)
    return created() if is_new else no_content()


async def delete(call: Call) -> None:
    """Delete a queue; with if-empty, only if it has no messages; with if-unused, only if it has no consumers."""
    vhost, queue = queue_of(call)
    conditions = {name: call.asks(f"if-{name}") for name in ("empty", "unused")}
    async with acting(call, vhost.name) as client:
        await client.call(DeleteAny(queue=queue.name, if_unused=conditions["unused"], if_empty=conditions["empty"]))
    _log.info("queue.deleted", vhost=vhost.name, queue=queue.name, by=call.user.name)


async def act(call: Call) -> None:
    """Accept RabbitMQ's actions on mirrored queues, and do nothing."""
    queue_of(call)
    action = (await call.fields()).text("action")
    if action not in ACTIONS:
        raise bad_request(f"unknown action '{action}': there are {', '.join(ACTIONS)}")


ROUTES: Final = (
    ApiRoute("GET", "/api/queues", Needs.MANAGEMENT, list_queues),
    ApiRoute("GET", "/api/queues/detailed", Needs.MANAGEMENT, list_queues),
    ApiRoute("GET", "/api/queues/{vhost}", Needs.MANAGEMENT, list_queues),
    ApiRoute("GET", QUEUE, Needs.MANAGEMENT, show_queue),
    ApiRoute("PUT", QUEUE, Needs.MANAGEMENT, declare),
    ApiRoute("DELETE", QUEUE, Needs.MANAGEMENT, delete),
    ApiRoute("POST", f"{QUEUE}/actions", Needs.MANAGEMENT, act),
)
