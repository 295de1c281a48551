"""Parameters of vhosts and of the broker, among them the cluster's name: listed, set and cleared."""

from __future__ import annotations

from typing import Any, Final

from broker.manage.answers import Response, created, json_answer, no_content
from broker.manage.call import ApiRoute, Call, Needs
from broker.manage.listing import small_list
from broker.manage.refusal import not_found
from broker.operations.vhosts import clear_global_parameter, clear_parameter, set_global_parameter, set_parameter

PARAMETERS: Final = "/api/parameters"
ONE: Final = "/api/parameters/{component}/{vhost}/{name}"
GLOBAL: Final = "/api/global-parameters/{name}"
CLUSTER_NAME: Final = "cluster_name"


def _row(key: tuple[str, str, str], value: Any) -> dict[str, Any]:
    return {"value": value, "vhost": key[0], "component": key[1], "name": key[2]}


def _rows(call: Call) -> list[dict[str, Any]]:
    """Return the parameters of the vhosts that the caller sees, and of the component that the path names, if any."""
    wanted, vhosts = call.words.get("component"), [call.vhost().name] if "vhost" in call.words else None
    return [
        _row(key, value)
        for key, value in list(call.broker.administration.parameters.items())
        if wanted in (None, key[1]) and (call.sees_vhost(key[0]) if vhosts is None else key[0] in vhosts)
    ]


async def parameters(call: Call) -> Response:
    """List the parameters of all vhosts, those of a component, or those of a component in a vhost."""
    return await small_list(call, _rows(call), "name", "component", "vhost")


def _parameter(call: Call) -> dict[str, Any]:
    """Return the parameter that the path names. Raises: HttpRefused."""
    words = (call.vhost().name, call.words["component"], call.words["name"])
    known = call.broker.administration.parameters
    if words not in known:
        raise not_found()
    return _row(words, known[words])


async def parameter(call: Call) -> Response:
    """Show a parameter."""
    return json_answer(_parameter(call))


async def put(call: Call) -> Response:
    """Set a parameter: 201 for a new one, 204 for one that existed."""
    vhost, fields = call.vhost(), await call.fields(required=("value",))
    named = (vhost.name, call.words["component"], call.words["name"])
    is_new = await set_parameter(call.broker.administration, *named, fields.value("value"))
    return created() if is_new else no_content()


async def clear(call: Call) -> Response:
    """Remove a parameter."""
    row = _parameter(call)
    await clear_parameter(call.broker.administration, row["vhost"], row["component"], row["name"])
    return no_content()


async def global_parameters(call: Call) -> Response:
    """List the parameters of the broker."""
    known = call.broker.administration.global_parameters
    return await small_list(call, [{"name": name, "value": value} for name, value in known.items()], "name")


def _check_global(call: Call) -> None:
    if call.words["name"] not in call.broker.administration.global_parameters:
        raise not_found()


async def global_parameter(call: Call) -> Response:
    """Show a parameter of the broker."""
    _check_global(call)
    name = call.words["name"]
    return json_answer({"name": name, "value": call.broker.administration.global_parameters[name]})


async def put_global(call: Call) -> Response:
    """Set a parameter of the broker: 201 for a new one, 204 for one that existed."""
    fields = await call.fields(required=("value",))
    is_new = await set_global_parameter(call.broker.administration, call.words["name"], fields.value("value"))
    return created() if is_new else no_content()


async def clear_global(call: Call) -> Response:
    """Remove a parameter of the broker."""
    _check_global(call)
    await clear_global_parameter(call.broker.administration, call.words["name"])
    return no_content()


async def put_cluster_name(call: Call) -> Response:
    """Name the cluster, which may be this broker alone."""
    fields = await call.fields(required=("name",))
    await set_global_parameter(call.broker.administration, CLUSTER_NAME, fields.text("name"))
    return no_content()


ROUTES: Final = (
    ApiRoute("GET", PARAMETERS, Needs.POLICYMAKER, parameters),
    ApiRoute("GET", f"{PARAMETERS}/{{component}}", Needs.POLICYMAKER, parameters),
    ApiRoute("GET", f"{PARAMETERS}/{{component}}/{{vhost}}", Needs.POLICYMAKER, parameters),
    ApiRoute("GET", ONE, Needs.POLICYMAKER, parameter),
    ApiRoute("PUT", ONE, Needs.POLICYMAKER, put),
    ApiRoute("DELETE", ONE, Needs.POLICYMAKER, clear),
    ApiRoute("GET", "/api/global-parameters", Needs.POLICYMAKER, global_parameters),
    ApiRoute("GET", GLOBAL, Needs.POLICYMAKER, global_parameter),
    ApiRoute("PUT", GLOBAL, Needs.POLICYMAKER, put_global),
    ApiRoute("DELETE", GLOBAL, Needs.POLICYMAKER, clear_global),
    ApiRoute("PUT", "/api/cluster-name", Needs.ADMINISTRATOR, put_cluster_name),
)
