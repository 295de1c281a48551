"""Operations on vhosts, policies, and the parameters of vhosts and of the broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from broker.administration.administration import Administration, ReportProgress
from broker.administration.definitions import VHOST_LIMITS, Draft, event_fields, limits_key
from broker.core.definitions.reading import check_depth
from broker.core.policy.policy import OPERATOR_POLICY, Policy
from broker.core.policy.policy_definition import plain_definition
from broker.core.queue.queue_arguments import check_default_type
from broker.core.vhost_limits import vhost_limits_table
from broker.event_log import get_logger
from broker.operations.operated_broker import OperatedBroker
from broker.operations.operation import Operation
from broker.operations.request import Asker, Range, parameters
from broker.operations.users import ClearLimits, Named, SetLimits

PROTECTED: Final = "protected_from_deletion"  # a field of a vhost, named as in RabbitMQ 4.1
POLICIES: Final = ("policy", OPERATOR_POLICY)  # the components under which RabbitMQ stores policies
OWN: Final = "slotmq-"  # the prefix of SlotMQ's own components
PRIORITY_MAX: Final = (1 << 31) - 1

_log = get_logger()


class VhostProtected(ValueError):
    """A vhost is protected from deletion."""


@parameters
class AddVhost(Named):
    """A new vhost."""

    description: str = ""
    default_queue_type: str | None = None


@parameters
class SetPolicy(Named):
    """A policy; values of its definition may have units."""

    vhost: str = "/"
    operator: bool = False
    pattern: str
    apply_to: str = "all"
    definition: dict[str, Any]
    priority: Annotated[int, Range(-PRIORITY_MAX, PRIORITY_MAX)] = 0


@parameters
class DeletePolicy(Named):
    """The policy to delete."""

    vhost: str = "/"
    operator: bool = False


async def add_vhost(broker: OperatedBroker, asked: AddVhost, asker: Asker) -> None:
    """Add a vhost, unless an equal one exists. The user who adds it gets all permissions in it."""
    facts = {"description": asked.description}
    default_type = check_default_type(asked.default_queue_type)
    if default_type is not None:
        facts["default_queue_type"] = default_type
    administration, name = broker.administration, asked.name

    def change(draft: Draft) -> None:
        _check_up(administration, name)
        if name not in draft.vhost_names:
            _add(administration, draft, name, facts, asker.user_name)
        known = draft.vhost_facts.get(name, {})
        if any(value and known.get(key) != value for key, value in facts.items()):
            raise ValueError(f"Virtual host '{name}' already exists, with another description or default queue type")

    await administration.change(change)


async def put_vhost(administration: Administration, name: str, facts: Mapping[str, Any], creator: str) -> bool:
    """Add a vhost, or change some facts of an existing one, and return whether it is new.

    The user who adds a vhost gets all permissions in it, as in RabbitMQ.
    """

    def change(draft: Draft) -> bool:
        if name not in draft.vhost_names:
            _add(administration, draft, name, facts, creator)
            return True
        _check_up(administration, name)
        known = draft.vhost_facts.get(name, {})
        metadata = {"metadata": {**known["metadata"], **facts}} if "metadata" in known else {}
        draft.set_facts(name, {**known, **facts, **metadata})
        return False

    is_new = await administration.change(change)
    if not is_new and facts:
        _log.info("vhost.changed", vhost=name, **facts)
    return is_new


def _check_up(administration: Administration, name: str) -> None:
    if administration.vhosts.is_down(name):
        raise ValueError(f"Virtual host '{name}' is down: {administration.vhosts.offline[name]}")


def _add(administration: Administration, draft: Draft, name: str, facts: Mapping[str, Any], creator: str) -> None:
    administration.check_new_vhosts(draft, [name])
    draft.add_vhost(name, facts)
    if creator in draft.users and not draft.users.is_configured(creator):
        draft.permissions.set(creator, name, ".*", ".*", ".*")


async def delete_vhost(broker: OperatedBroker, asked: Named, _asker: Asker) -> None:
    """Delete a vhost from the definitions, then close its connections and remove its files.

    In this order, a vhost does not reappear if a crash interrupts its deletion. Raises: VhostProtected, ValueError.
    """
    administration, name = broker.administration, asked.name

    def change(draft: Draft) -> None:
        if not administration.vhosts.is_down(name):
            draft.check_vhost(name)
        if draft.vhost_facts.get(name, {}).get(PROTECTED) is True:
            raise VhostProtected(
                f"Cannot delete virtual host '{name}': it is protected from deletion. End the protection first"
            )
        draft.drop_vhost(name)

    await administration.change(change)


async def set_vhost_limits(broker: OperatedBroker, asked: SetLimits, _asker: Asker) -> None:
    """Set the given limits of a vhost. A negative number means no limit."""
    name, limits = asked.name, vhost_limits_table(asked.limits)

    def change(draft: Draft) -> None:
        draft.set_parameter(limits_key(name), {**draft.vhost_limits(name), **limits})

    await broker.administration.change(change, "vhost.limits_set", vhost=name, **event_fields(limits))


async def clear_vhost_limits(broker: OperatedBroker, asked: ClearLimits, _asker: Asker) -> None:
    """Remove one limit of a vhost, or all."""
    name, limit = asked.name, asked.limit

    def change(draft: Draft) -> None:
        limits = {} if limit is None else draft.vhost_limits(name)
        limits.pop(limit or "", None)
        if limits:
            draft.set_parameter(limits_key(name), limits)
        else:
            draft.drop_parameter(limits_key(name))

    await broker.administration.change(change, "vhost.limits_cleared", vhost=name, limit=limit)


async def set_policy(broker: OperatedBroker, asked: SetPolicy, asker: Asker) -> None:
    """Set a policy, and return when it is applied everywhere."""
    check_depth("definition", asked.definition)
    definition = plain_definition(asked.definition, operator=asked.operator)
    policy = Policy(asked.name, asked.pattern, asked.apply_to, definition, asked.priority)
    await put_policy(broker.administration, asked.vhost, policy, operator=asked.operator, report=asker.write_progress)


async def put_policy(
    administration: Administration, vhost: str, policy: Policy, *, operator: bool, report: ReportProgress
) -> None:
    """Set a policy, or replace the one with its name, and return when it is applied everywhere."""
    await administration.change(
        lambda draft: draft.policies(vhost).set(policy, operator=operator),
        "policy.set",
        vhost=vhost,
        policy=policy.name,
        pattern=policy.pattern,
        apply_to=policy.apply_to,
        definition=dict(policy.definition),
        priority=policy.priority,
        operator=operator,
    )
    await administration.swept(vhost, report=report)


async def delete_policy(broker: OperatedBroker, asked: DeletePolicy, asker: Asker) -> None:
    """Delete a policy, and return when it no longer applies anywhere."""
    name, operator = asked.name, asked.operator

    def change(draft: Draft) -> None:
        if not draft.policies(asked.vhost).clear(name, operator=operator):
            raise ValueError(f"{'Operator policy' if operator else 'Policy'} '{name}' does not exist")

    await broker.administration.change(change, "policy.cleared", vhost=asked.vhost, policy=name, operator=operator)
    await broker.administration.swept(asked.vhost, report=asker.write_progress)


async def set_parameter(administration: Administration, vhost: str, component: str, name: str, value: Any) -> bool:
    """Set a parameter of a vhost, and return whether it is new.

    Parameters that the broker does not use are stored and exported, with a warning in the log.
    Raises: ValueError for policies; BadDefinitions.
    """
    if component in POLICIES:
        raise ValueError("policies may not be set using this method")
    check_depth("value", value)
    key = (vhost, component, name)

    def change(draft: Draft) -> bool:
        is_new = key not in draft.parameters
        draft.set_parameter(key, value)
        return is_new

    is_new = await administration.change(change, "parameter.set", vhost=vhost, component=component, name=name)
    if not (component == VHOST_LIMITS or component.startswith(OWN)):
        _log.warning("parameter.without_effect", vhost=vhost, component=component, name=name)
    return is_new


async def clear_parameter(administration: Administration, vhost: str, component: str, name: str) -> None:
    """Remove a parameter of a vhost. Raises: ValueError if it does not exist."""

    def change(draft: Draft) -> None:
        if (vhost, component, name) not in draft.parameters:
            raise ValueError(f"Parameter '{name}' of component '{component}' does not exist")
        draft.drop_parameter((vhost, component, name))

    await administration.change(change, "parameter.cleared", vhost=vhost, component=component, name=name)


async def set_global_parameter(administration: Administration, name: str, value: Any) -> bool:
    """Set a parameter of the broker, and return whether it is new."""
    check_depth("value", value)

    def change(draft: Draft) -> bool:
        is_new = name not in draft.global_parameters
        draft.put_row(("global_parameters", name), {"name": name, "value": value})
        return is_new

    return await administration.change(change, "global_parameter.set", name=name)


async def clear_global_parameter(administration: Administration, name: str) -> None:
    """Remove a parameter of the broker. Raises: ValueError if it does not exist."""

    def change(draft: Draft) -> None:
        if draft.global_parameters.pop(name, None) is None:
            raise ValueError(f"Global parameter '{name}' does not exist")

    await administration.change(change, "global_parameter.cleared", name=name)


OPERATIONS: Final[dict[str, Operation[Any]]] = {
    "add_vhost": Operation(add_vhost, AddVhost),
    "delete_vhost": Operation(delete_vhost, Named),
    "set_vhost_limits": Operation(set_vhost_limits, SetLimits),
    "clear_vhost_limits": Operation(clear_vhost_limits, ClearLimits),
    "set_policy": Operation(set_policy, SetPolicy),
    "delete_policy": Operation(delete_policy, DeletePolicy),
}
