"""The versions, plugins and feature flags that the API reports to tools written for RabbitMQ."""

from __future__ import annotations

from typing import Any, Final

from broker.routing.exchange_types import EXCHANGE_TYPES
from broker.settings import Settings

PRODUCT: Final = "SlotMQ"
COMPATIBLE_VERSION: Final = "4.3.0"
"""The release of RabbitMQ that the API follows; tools read it to find out which requests they can send."""
ERLANG_VERSION: Final = "27.0"
ENABLED_PLUGINS: Final = (
    "rabbitmq_consistent_hash_exchange",
    "rabbitmq_delayed_message_exchange",
    "rabbitmq_management",
    "rabbitmq_management_agent",
    "rabbitmq_message_deduplication",
    "rabbitmq_prometheus",
    "rabbitmq_random_exchange",
    "rabbitmq_recent_history_exchange",
)
"""RabbitMQ's plugins whose features this broker always has."""

_TYPES: Final = {
    "direct": "AMQP direct exchange, as per the AMQP specification",
    "fanout": "AMQP fanout exchange, as per the AMQP specification",
    "headers": "AMQP headers exchange, as per the AMQP specification",
    "topic": "AMQP topic exchange, as per the AMQP specification",
    "x-consistent-hash": "Consistent Hashing Exchange",
    "x-delayed-message": "Delayed Message Exchange",
    "x-local-random": "Picks one random local binding (queue) to route via (to).",
    "x-message-deduplication": "Message Deduplication Exchange.",
    "x-modulus-hash": "Modulus Hashing Exchange",
    "x-random": "Picks one random binding (queue) to route via (to).",
    "x-recent-history": "Recent History Exchange.",
}
EXCHANGE_TYPE_ROWS: Final = [
    {"name": name, "description": _TYPES.get(name, ""), "enabled": True} for name in sorted(EXCHANGE_TYPES)
]
_FLAGS: Final = {
    "classic_mirrored_queue_version": "Support setting version for classic mirrored queues",
    "direct_exchange_routing_v2": "Support of fast routing in direct exchanges",
    "drop_unroutable_metric": "Count unroutable publishes to be dropped in stats",
    "empty_basic_get_metric": "Count AMQP `basic.get` on empty queues in stats",
    "feature_flags_v2": "Feature flags subsystem V2",
    "implicit_default_bindings": "Default bindings are now implicit, instead of being stored in the database",
    "listener_records_in_ets": "Store listener records in ETS",
    "maintenance_mode_status": "Maintenance mode status",
    "message_containers": "Message containers",
    "quorum_queue": "Support queues of type `quorum`",
    "rabbitmq_4.0.0": "Allows rolling upgrades from 3.13.x to 4.0.x",
    "stream_queue": "At-least-once dead lettering of queues of type `quorum`",
    "tracking_records_in_ets": "Store tracking records in ETS",
    "user_limits": "Configure connection and channel limits for a user",
    "virtual_host_metadata": "Virtual host metadata (description, tags, etc)",
}
FEATURE_FLAG_ROWS: Final[list[dict[str, Any]]] = [
    {
        "desc": text,
        "doc_url": "",
        "name": name,
        "provided_by": "rabbit",
        "stability": "required",
        "state": "enabled",
    }
    for name, text in _FLAGS.items()
]
_MECHANISMS: Final = {
    "PLAIN": "SASL PLAIN authentication mechanism",
    "AMQPLAIN": "QPid AMQPLAIN mechanism",
    "EXTERNAL": "TLS peer verification",
}


def auth_mechanism_rows(settings: Settings) -> list[dict[str, Any]]:
    """Return the login mechanisms, and whether each is enabled."""
    enabled = settings.auth.mechanisms
    return [{"name": name, "description": text, "enabled": name in enabled} for name, text in _MECHANISMS.items()]
