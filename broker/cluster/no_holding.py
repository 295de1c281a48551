"""What a cluster refuses: queues that hold messages until they are due. PostgreSQL hands out messages to all nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from broker.amqp.errors import ChannelError
from broker.core.names import Resource
from broker.core.policy.policy_definition import DISABLED
from broker.core.queue.rules import queue_rules

KEYS: Final = ("delayed-retry-type", "hold-until-header")
REASON: Final = "is not available in a cluster: its queues hold no messages until they are due"


def refuse_policies(policies: Iterable[Mapping[str, Any]]) -> None:
    """Refuse policies by which queues would hold messages. Shapes: as in the definitions. Raises: ValueError."""
    for row in policies:
        definition = row.get("value", row).get("definition") or {}
        for key in KEYS:
            if definition.get(key, DISABLED) != DISABLED:
                raise ValueError(f"'{key}' of policy '{row['name']}' {REASON}")


def refuse_arguments(vhost: str, name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse a queue whose arguments ask for a delayed retry. Raises: ChannelError 406."""
    if queue_rules(arguments).retry is not None:
        resource = Resource("queue", vhost, name)
        raise ChannelError(406, f"invalid arg 'x-delayed-retry-type' for {resource}: \"it {REASON}\"")
