"""Vhosts and policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.administration.policy_changes import PolicyChanges
from broker.administration.vhost_changes import VhostChanges
from broker.core.definitions.reading import check_depth
from broker.core.policy.plain_definition import plain_definition
from broker.core.policy.policy import Policy
from broker.core.queue.default_type import check_default_type
from broker.core.vhost_limits import vhost_limits_table
from broker.net.control_request import Request, Verb

if TYPE_CHECKING:
    from broker.administration.administration import Administration

__all__ = ["vhost_verbs"]

PRIORITY_MAX: Final = (1 << 31) - 1


def vhost_verbs(administration: Administration) -> dict[str, Verb]:
    """Return the verbs."""
    vhosts = VhostChanges(administration)
    policies = PolicyChanges(administration)

    async def add_vhost(request: Request) -> None:
        facts = {"description": request.text("description", "")}
        default_type = check_default_type(request.optional("default_queue_type"))
        if default_type is not None:
            facts["default_queue_type"] = default_type
        await vhosts.add(request.text("name"), facts, request.text("maker", ""))

    async def delete_vhost(request: Request) -> None:
        await vhosts.delete(request.text("name"))

    async def set_vhost_limits(request: Request) -> None:
        await vhosts.set_limits(request.text("name"), vhost_limits_table(request.table("limits")))

    async def clear_vhost_limits(request: Request) -> None:
        await vhosts.clear_limits(request.text("name"))

    async def set_policy(request: Request) -> None:
        operator = request.flag("operator")
        given = request.table("definition")
        check_depth("definition", given)
        definition = plain_definition(given, operator=operator)
        policy = Policy(
            request.text("name"),
            request.text("pattern"),
            request.text("apply_to", "all"),
            definition,
            request.integer("priority", 0, -PRIORITY_MAX, PRIORITY_MAX),
        )
        vhost = request.text("vhost", "/")
        await policies.set(vhost, policy, operator=operator, tell=request.asker.tell)

    async def delete_policy(request: Request) -> None:
        name, vhost = request.text("name"), request.text("vhost", "/")
        await policies.clear(vhost, name, operator=request.flag("operator"), tell=request.asker.tell)

    return {
        "add_vhost": add_vhost,
        "delete_vhost": delete_vhost,
        "set_vhost_limits": set_vhost_limits,
        "clear_vhost_limits": clear_vhost_limits,
        "set_policy": set_policy,
        "delete_policy": delete_policy,
    }
