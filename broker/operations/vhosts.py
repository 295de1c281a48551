"""Vhosts and policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from broker.administration.policy_changes import PolicyChanges
from broker.administration.vhost_changes import VhostChanges
from broker.core.definitions.reading import check_depth
from broker.core.policy.plain_definition import plain_definition
from broker.core.policy.policy import Policy
from broker.core.queue.default_type import check_default_type
from broker.core.vhost_limits import vhost_limits_table
from broker.operations.operation import Operation
from broker.operations.request import Asker, Range, parameters
from broker.operations.users import Named, SetLimits

if TYPE_CHECKING:
    from broker.operations.operated_broker import OperatedBroker

__all__ = ["VHOST_OPERATIONS"]

PRIORITY_MAX: Final = (1 << 31) - 1


@parameters
class AddVhost(Named):
    """A new vhost."""

    description: str = ""
    default_queue_type: str | None = None


@parameters
class SetPolicy(Named):
    """A policy, whose definition may have units."""

    vhost: str = "/"
    operator: bool = False
    pattern: str
    apply_to: str = "all"
    definition: dict[str, Any]
    priority: Annotated[int, Range(-PRIORITY_MAX, PRIORITY_MAX)] = 0


@parameters
class DeletePolicy(Named):
    """A policy to delete."""

    vhost: str = "/"
    operator: bool = False


async def add_vhost(broker: OperatedBroker, asked: AddVhost, asker: Asker) -> None:
    """Add a vhost."""
    facts = {"description": asked.description}
    default_type = check_default_type(asked.default_queue_type)
    if default_type is not None:
        facts["default_queue_type"] = default_type
    await VhostChanges(broker.administration).add(asked.name, facts, asker.user_name)


async def delete_vhost(broker: OperatedBroker, asked: Named, _asker: Asker) -> None:
    """Delete a vhost."""
    await VhostChanges(broker.administration).delete(asked.name)


async def set_vhost_limits(broker: OperatedBroker, asked: SetLimits, _asker: Asker) -> None:
    """Set some limits of a vhost."""
    await VhostChanges(broker.administration).set_limits(asked.name, vhost_limits_table(asked.limits))


async def clear_vhost_limits(broker: OperatedBroker, asked: Named, _asker: Asker) -> None:
    """Remove the limits of a vhost."""
    await VhostChanges(broker.administration).clear_limits(asked.name)


async def set_policy(broker: OperatedBroker, asked: SetPolicy, asker: Asker) -> None:
    """Set a policy. Return when it is applied to all queues."""
    check_depth("definition", asked.definition)
    definition = plain_definition(asked.definition, operator=asked.operator)
    policy = Policy(asked.name, asked.pattern, asked.apply_to, definition, asked.priority)
    changes = PolicyChanges(broker.administration)
    await changes.set(asked.vhost, policy, operator=asked.operator, tell=asker.tell)


async def delete_policy(broker: OperatedBroker, asked: DeletePolicy, asker: Asker) -> None:
    """Delete a policy. Return when it is applied to no queue any more."""
    changes = PolicyChanges(broker.administration)
    await changes.clear(asked.vhost, asked.name, operator=asked.operator, tell=asker.tell)


VHOST_OPERATIONS: Final[dict[str, Operation[Any]]] = {
    "add_vhost": Operation(add_vhost, AddVhost),
    "delete_vhost": Operation(delete_vhost, Named),
    "set_vhost_limits": Operation(set_vhost_limits, SetLimits),
    "clear_vhost_limits": Operation(clear_vhost_limits, Named),
    "set_policy": Operation(set_policy, SetPolicy),
    "delete_policy": Operation(delete_policy, DeletePolicy),
}
