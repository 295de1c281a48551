"""The queues' integration tests against two nodes: publishers are on one, consumers and declarations on the other."""

from __future__ import annotations

from types import FunctionType
from typing import Final

from tests.integration.pika import (
    test_consume,
    test_dead_letter,
    test_delivery_counts,
    test_expiry,
    test_length,
    test_prefetch,
    test_priorities,
    test_publish,
    test_queue,
    test_quorum_priorities,
    test_routing,
    test_transactions,
)

MODULES: Final = (
    test_consume,
    test_dead_letter,
    test_delivery_counts,
    test_expiry,
    test_length,
    test_prefetch,
    test_priorities,
    test_publish,
    test_queue,
    test_quorum_priorities,
    test_routing,
    test_transactions,
)
NOT_SPLIT: Final = {
    # turns are exact while nobody waits for PostgreSQL: test_shared_prefetch.py
    "test_queues_take_turns_in_a_global_prefetch",
    # the keeper drops what has expired wherever it is in the queue
    "test_a_message_expires_at_the_head_only",
    # each of its thousands of publishes would wait for a confirm; the checker delivers as many
    "test_thousands_of_messages_over_many_slots",
    # the order of returns is known where they happen; what a node has leased comes before what arrives later
    "test_a_consumer_gets_the_levels_in_order",
    "test_what_comes_back_is_first_in_the_order_of_its_return",
    "test_a_closed_channel_returns_what_it_held_in_order",
    "test_drop_head_drops_what_would_be_delivered_next",
    # these are about the router alone
    "test_topic_exchange_routes_as_rabbitmq",
    "test_topic_exchange_speaks_mqtt",
    # these restart a broker of their own
    "test_restarts",
    "test_a_commit_survives_kill_9_whole",
    "test_both_counts_are_kept",
    "test_levels_and_returns_are_kept",
    "test_an_operator_sees_the_levels",
}

for _module in MODULES:
    _stem = _module.__name__.rpartition(".test_")[2]
    for _name, _value in vars(_module).items():
        if isinstance(_value, FunctionType) and _name.startswith("test_") and _name not in NOT_SPLIT:
            globals()[f"test_{_stem}_{_name.removeprefix('test_')}"] = _value
        elif type(_value).__name__ == "FixtureFunctionDefinition":
            globals()[_name] = _value
