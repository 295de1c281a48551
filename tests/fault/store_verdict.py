"""Checks a store that was recovered after a crash against the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.store.checkpoint import QueueState
from broker.store.recovery import Recovered
from tests.fault.store_state import NEVER, ModelQueue, ModelTransaction, delivery_counts, unsettled
from tests.stored_record import read_slot

if TYPE_CHECKING:
    from tests.fault.store_model import StoreModel


def verify(model: StoreModel, safe: int) -> None:
    """Compare the recovered state with the operations; those up to log position `safe` must be in effect."""
    recovered = model.recovered
    topology = [change for _, change in model.changes]
    assert recovered.topology == topology[: len(recovered.topology)], "a change was recovered that was never made"
    assert len(recovered.topology) >= sum(end <= safe for end, _ in model.changes), "a confirmed change is lost"
    unsettled_count = 0
    for queue in model.queues.values():
        state = recovered.queues.get(queue.number)
        if state is None:
            lost = [
                message_id
                for message_id, message in queue.messages.items()
                if message.published_end <= safe and not message.settled
            ]
            assert queue.deleted_end != NEVER or not lost, f"queue {queue.number} is missing with {lost}"
            continue
        assert queue.deleted_end > safe, f"queue {queue.number} reappeared"
        unsettled_count += verify_queue(model, queue, state, safe)
    assert recovered.queues.keys() <= model.queues.keys() | model.discarded
    for number in recovered.queues.keys() & model.discarded:
        unsettled_count += sum(len(unsettled(slot)) for slot in recovered.queues[number].slots)
    assert recovered.messages == unsettled_count
    assert recovered.next_queue_number >= max(
        (queue.number + 1 for queue in model.queues.values() if queue.declared_end <= safe), default=1
    )
    for transaction in model.transactions:
        signs = applied(model, transaction)
        assert len(set(signs)) < 2, f"{transaction} was recovered in part"
        assert transaction.end > safe or all(signs), f"{transaction} is lost"


def verify_queue(model: StoreModel, queue: ModelQueue, state: QueueState, safe: int) -> int:
    """Compare one queue; return the number of its unsettled messages."""
    found: dict[int, tuple[bytes, int]] = {}
    end = 0
    for slot in state.slots:
        assert end <= slot.first < slot.end <= state.next_id, "slots overlap"
        end = slot.end
        counts = delivery_counts(slot)
        for index, message in enumerate(read_slot(model.store, queue.number, slot.first, slot.end, unsettled(slot))):
            if message is not None:
                found[slot.first + index] = (message.body, counts.get(index, 0))
    for message_id, (body, count) in found.items():
        known = queue.messages.get(message_id)
        assert known is not None and known.body == body, f"message {message_id} of {queue.number} has another body"
        assert known.settled_end > safe, f"message {message_id} of {queue.number} was settled and reappeared"
        lowest = max((number for log_end, number in known.counts if log_end <= safe), default=0)
        highest = max((number for _, number in known.counts), default=0)
        assert lowest <= count <= highest, f"message {message_id} was delivered {lowest}..{highest} times, not {count}"
    for message_id, known in queue.messages.items():
        if known.published_end <= safe:
            assert message_id < state.next_id, f"id {message_id} of {queue.number} may be assigned again"
            assert message_id in found or known.settled, f"message {message_id} of {queue.number} is lost"
    return len(found)


def applied(model: StoreModel, transaction: ModelTransaction) -> list[bool]:
    """Return, for each part of a transaction that can be checked, whether it was recovered.

    A queue that was deleted later cannot be checked, and a settlement only when its queue exists.
    """
    recovered: Recovered = model.recovered
    signs = []
    for number, message_id in transaction.published:
        state = recovered.queues.get(number)
        if state is not None:
            signs.append(message_id < state.next_id)
        elif model.queues[number].deleted_end == NEVER:
            signs.append(False)
    for number, message_id in transaction.settled:
        state = recovered.queues.get(number)
        if state is not None:
            waiting = any(
                slot.first <= message_id < slot.end and message_id - slot.first in unsettled(slot)
                for slot in state.slots
            )
            signs.append(message_id < state.next_id and not waiting)
    if transaction.changes:
        signs.append(len(recovered.topology) >= transaction.changes)
    return signs
