"""Routes for policies and operator policies."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from broker.core.definitions.reading import check_depth
from broker.core.policy.policy import Policy
from broker.core.policy.policy_definition import plain_definition
from broker.manage.answers import Response, created, json_answer, no_content
from broker.manage.call import ApiRoute, Call, Needs, visible_vhosts
from broker.manage.listing import small_list
from broker.manage.origin import PAGE
from broker.manage.refusal import bad_request, not_found
from broker.operations.request import Asker
from broker.operations.vhosts import put_policy

KINDS: Final = (("/api/policies", False, Needs.POLICYMAKER), ("/api/operator-policies", True, Needs.ADMINISTRATOR))


async def policies(call: Call, *, operator: bool) -> Response:
    """List the policies of the vhost in the path, or of all visible vhosts."""
    rows = [
        policy.row(vhost.name) for vhost in visible_vhosts(call) for policy in vhost.policies.list(operator=operator)
    ]
    return await small_list(call, rows, "name", "vhost")


def _policy(call: Call, *, operator: bool) -> dict[str, Any]:
    """Return the policy that the path names. Raises: HttpRefused."""
    vhost = call.vhost()
    found = vhost.policies.get(call.words["policy"], operator=operator)
    if found is None:
        raise not_found()
    return found.row(vhost.name)


async def policy(call: Call, *, operator: bool) -> Response:
    """Show a policy."""
    return json_answer(_policy(call, operator=operator))


async def put(call: Call, *, operator: bool) -> Response:
    """Set a policy, and answer once it is applied: 201 for a new one, 204 for an existing one."""
    vhost, fields = call.vhost(), await call.fields(required=("pattern", "definition"))
    definition = fields.table("definition")
    check_depth("definition", definition)
    if call.request.headers.get("x-requested-with") == PAGE:  # the page sends values with units
        definition = plain_definition(definition, operator=operator)
    name, is_new = call.words["policy"], vhost.policies.get(call.words["policy"], operator=operator) is None
    wanted = Policy(
        name, fields.text("pattern"), fields.text("apply-to", "all"), definition, _priority(fields.value("priority"))
    )
    await put_policy(call.broker.administration, vhost.name, wanted, operator=operator, report=Asker().write_progress)
    return created() if is_new else no_content()


async def delete(call: Call, *, operator: bool) -> None:
    """Delete a policy, and answer once it no longer applies to any object."""
    row = _policy(call, operator=operator)
    await call.operate("delete_policy", vhost=row["vhost"], name=row["name"], operator=operator)


def _priority(value: Any) -> float:
    """Return a priority, 0 by default; some programs send it as a string. Raises: HttpRefused."""
    if value is None:
        return 0
    if isinstance(value, str) and value.removeprefix("-").isdecimal() and len(value) <= len(str(1 << 31)):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise bad_request("priority should be a number")
    return value


ROUTES: Final = tuple(
    ApiRoute(method, path + rest, changing if method in ("PUT", "DELETE") else Needs.MANAGEMENT, respond)
    for path, operator, changing in KINDS
    for method, rest, respond in (
        ("GET", "", partial(policies, operator=operator)),
        ("GET", "/{vhost}", partial(policies, operator=operator)),
        ("GET", "/{vhost}/{policy}", partial(policy, operator=operator)),
        ("PUT", "/{vhost}/{policy}", partial(put, operator=operator)),
        ("DELETE", "/{vhost}/{policy}", partial(delete, operator=operator)),
    )
)
