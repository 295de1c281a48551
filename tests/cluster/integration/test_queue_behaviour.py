"""The queues' integration tests against two nodes: publishers are on one, consumers and declarations on the other."""

from __future__ import annotations

from types import FunctionType
from typing import Final

from tests.integration.pika import (
    test_consume,
    test_dead_letter,
    test_expiry,
    test_length,
    test_prefetch,
    test_priorities,
    test_publish,
    test_queue,
    test_reject_publish,
    test_routing,
    test_sender_selected,
    test_transactions,
)

MODULES: Final = (
    test_consume,
    test_dead_letter,
    test_expiry,
    test_length,
    test_prefetch,
    test_priorities,
    test_publish,
    test_queue,
    test_reject_publish,
    test_routing,
    test_sender_selected,
    test_transactions,
)
NOT_SPLIT: Final = {
    # these speak of exclusive queues, which belong to one node
    "test_declare_with_other_exclusiveness",
    "test_exclusive_queue_is_locked_for_other_connections",
    "test_exclusive_queue_dies_with_its_connection",
    "test_exclusive_queue_outlives_its_channel",
    # these need publishes and deliveries on one channel, or publishes without confirms
    "test_mandatory_returns_without_confirms",
    "test_queues_take_turns_in_a_global_prefetch",
    "test_too_many",
    # these look at once for what the keeper drops or expires in its next turn
    "test_a_consumer_that_waits_leaves_room",
    "test_a_limit_of_nothing_leaves_room_for_who_waits",
    "test_a_message_expires_at_the_head_only",
    "test_a_message_larger_than_the_queue_empties_it",
    "test_a_queue_that_nobody_uses_expires",
    "test_a_ttl_of_nothing_needs_somebody_who_waits",
    "test_bodies_count_for_the_limit_in_bytes",
    "test_the_head_of_a_full_priority_queue_is_its_highest",
    "test_the_oldest_goes_when_a_queue_is_full",
    "test_unacked_messages_do_not_count",
    # the count in get-ok is that of the node
    "test_get_counts_what_is_left",
    # these are about the router alone
    "test_topic_exchange_routes_as_rabbitmq",
    "test_topic_exchange_speaks_mqtt",
    # these restart a broker of their own
    "test_restarts",
    "test_a_commit_survives_kill_9_whole",
}

for _module in MODULES:
    _stem = _module.__name__.rpartition(".test_")[2]
    for _name, _value in vars(_module).items():
        if isinstance(_value, FunctionType) and _name.startswith("test_") and _name not in NOT_SPLIT:
            globals()[f"test_{_stem}_{_name.removeprefix('test_')}"] = _value
        elif type(_value).__name__ == "FixtureFunctionDefinition":
            globals()[_name] = _value
