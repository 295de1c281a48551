"""Routes for parameters of vhosts, and for those of the broker, such as the cluster name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from broker.manage.answers import Response, created, json_answer, no_content
from broker.manage.call import ApiRoute, Call, Needs
from broker.manage.listing import small_list
from broker.manage.refusal import not_found
from broker.operations.vhosts import clear_global_parameter, clear_parameter, set_global_parameter, set_parameter

PARAMETERS: Final = "/api/parameters"
CLUSTER_NAME: Final = "cluster_name"

Key = tuple[str, str, str] | str
"""Vhost, component and name; for a parameter of the broker, only its name."""


def _row(key: Key, value: Any) -> dict[str, Any]:
    if isinstance(key, str):
        return {"name": key, "value": value}
    return {"value": value, "vhost": key[0], "component": key[1], "name": key[2]}


def _key(call: Call) -> Key:
    """Return the key of the parameter that the path names. Raises: HttpRefused."""
    words = call.words
    return (call.vhost().name, words["component"], words["name"]) if "component" in words else words["name"]


def _found(call: Call) -> tuple[Key, Any]:
    """Return the parameter that the path names, and its value. Raises: HttpRefused."""
    key, administration = _key(call), call.broker.administration
    known: Mapping[Any, Any] = administration.global_parameters if isinstance(key, str) else administration.parameters
    if key not in known:
        raise not_found()
    return key, known[key]


async def parameters(call: Call) -> Response:
    """List the parameters of the visible vhosts, or only those of the component and the vhost in the path."""
    wanted, vhosts = call.words.get("component"), [call.vhost().name] if "vhost" in call.words else None
    rows = [
        _row(key, value)
        for key, value in list(call.broker.administration.parameters.items())
        if wanted in (None, key[1]) and (call.sees_vhost(key[0]) if vhosts is None else key[0] in vhosts)
    ]
    return await small_list(call, rows, "name", "component", "vhost")


async def global_parameters(call: Call) -> Response:
    """List the parameters of the broker."""
    known = call.broker.administration.global_parameters
    return await small_list(call, [_row(name, value) for name, value in known.items()], "name")


async def show(call: Call) -> Response:
    """Show a parameter."""
    return json_answer(_row(*_found(call)))


async def put(call: Call) -> Response:
    """Set a parameter; answer 201 for a new one, 204 for an existing one."""
    key, fields, administration = _key(call), await call.fields(required=("value",)), call.broker.administration
    if isinstance(key, str):
        is_new = await set_global_parameter(administration, key, fields.value("value"))
    else:
        is_new = await set_parameter(administration, *key, fields.value("value"))
    return created() if is_new else no_content()


async def clear(call: Call) -> None:
    """Remove a parameter."""
    key, _value = _found(call)
    if isinstance(key, str):
        await clear_global_parameter(call.broker.administration, key)
    else:
        await clear_parameter(call.broker.administration, *key)


async def put_cluster_name(call: Call) -> None:
    """Set the name of the cluster, or of a standalone broker."""
    fields = await call.fields(required=("name",))
    await set_global_parameter(call.broker.administration, CLUSTER_NAME, fields.text("name"))


ROUTES: Final = (
    ApiRoute("GET", PARAMETERS, Needs.POLICYMAKER, parameters),
    ApiRoute("GET", f"{PARAMETERS}/{{component}}", Needs.POLICYMAKER, parameters),
    ApiRoute("GET", f"{PARAMETERS}/{{component}}/{{vhost}}", Needs.POLICYMAKER, parameters),
    ApiRoute("GET", "/api/global-parameters", Needs.POLICYMAKER, global_parameters),
    *(
        ApiRoute(method, path, Needs.POLICYMAKER, respond)
        for path in (f"{PARAMETERS}/{{component}}/{{vhost}}/{{name}}", "/api/global-parameters/{name}")
        for method, respond in (("GET", show), ("PUT", put), ("DELETE", clear))
    ),
    ApiRoute("PUT", "/api/cluster-name", Needs.ADMINISTRATOR, put_cluster_name),
)
