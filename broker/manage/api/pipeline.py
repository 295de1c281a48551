"""The taps for the pipeline, with their cursors and their lag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from broker.manage.answers import created, json_answer, no_content
from broker.manage.api.carried_out import carried_out
from broker.manage.api_route import ApiRoute
from broker.manage.needs import Needs
from broker.manage.refusal import bad_request, not_found
from broker.manage.rights import check_cursor, check_new_tap, check_seal, check_tap, may_read_tap

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.manage.call import Call

__all__ = ["pipeline_routes"]

PIPELINE: Final = "/api/slotmq/pipeline"
TAP: Final = f"{PIPELINE}/taps/{{vhost}}/{{tap}}"
TAP_FIELDS: Final = ("exchange", "pattern", "cursors", "max_bytes", "max_age_ms")
FLAGS: Final = {"": False, "false": False, "true": True}


def pipeline_routes() -> list[ApiRoute]:
    """Return the routes."""
    return [
        ApiRoute("GET", PIPELINE, Needs.MANAGEMENT, pipeline, ()),
        ApiRoute("PUT", TAP, Needs.ADMINISTRATOR, add_tap, ()),
        ApiRoute("DELETE", TAP, Needs.ADMINISTRATOR, remove_tap, ("drop",)),
        ApiRoute("POST", f"{TAP}/seal", Needs.ADMINISTRATOR, seal, ()),
        ApiRoute("PUT", f"{TAP}/cursors/{{cursor}}", Needs.ADMINISTRATOR, set_cursor, ()),
        ApiRoute("DELETE", f"{TAP}/cursors/{{cursor}}", Needs.ADMINISTRATOR, remove_cursor, ()),
    ]


async def pipeline(call: Call) -> Response:
    """Answer with the taps that the caller may read, each with its cursors and their lag; a tag lists all."""
    every = call.may(Needs.MONITORING)
    rows = call.broker.taps.listing()
    return json_answer({"taps": [row for row in rows if every or may_read_tap(call, row["vhost"], row["name"])]})


async def add_tap(call: Call) -> Response:
    """Keep the messages that pass an exchange with a key that matches a topic pattern."""
    fields = await call.fields(TAP_FIELDS)
    arguments: dict[str, Any] = {name: fields.text(name) for name in ("exchange", "pattern")}
    arguments |= {name: fields.integer(name, 1, 1) for name in ("max_bytes", "max_age_ms") if fields.has(name)}
    arguments["cursors"] = fields.texts("cursors")
    check_new_tap(call, call.vhost(), call.words["tap"], arguments["exchange"], arguments["pattern"])
    await carried_out(call, "tap_add", **_tap(call), **arguments)
    return created()


async def remove_tap(call: Call) -> Response:
    """End a tap; `drop` deletes its slot files and cursors as well."""
    _row(call)
    check_tap(call, call.words["vhost"], call.words["tap"], "configure")
    drop = FLAGS.get(call.query.get("drop", ""))
    if drop is None:
        raise bad_request("the parameter 'drop' should be true or false")
    return json_answer(await carried_out(call, "tap_remove", **_tap(call), drop=drop))


async def seal(call: Call) -> Response:
    """Write what a tap holds into a slot file now, and answer with the last seal."""
    _row(call)
    vhost, tap = call.words["vhost"], call.words["tap"]
    check_seal(call, vhost, tap)
    return json_answer(await carried_out(call, "seal", vhost=vhost, tap=tap))


async def set_cursor(call: Call) -> Response:
    """Set the seal that a reader has passed; `reset` allows to move back."""
    _row(call)
    fields = await call.fields(("seal", "reset"))
    if not fields.has("seal"):
        raise bad_request("'seal' is missing")
    moved = {"seal": fields.integer("seal", 0), "reset": fields.flag("reset")}
    name, vhost, tap = call.words["cursor"], call.words["vhost"], call.words["tap"]
    check_cursor(call, name, vhost, tap)
    await carried_out(call, "cursor_set", name=name, vhost=vhost, tap=tap, maker=call.user.name, **moved)
    return no_content()


async def remove_cursor(call: Call) -> Response:
    """Remove a reader's position; nothing is kept for it any more."""
    name, vhost, tap = call.words["cursor"], call.words["vhost"], call.words["tap"]
    row = _row(call)
    check_cursor(call, name, vhost, tap)
    if name not in [cursor["name"] for cursor in row["cursors"]]:
        raise not_found(f"no cursor '{name}' of tap '{tap}' in vhost '{vhost}'")
    await carried_out(call, "cursor_remove", name=name, vhost=vhost, tap=tap)
    return no_content()


def _tap(call: Call) -> dict[str, str]:
    """Return the arguments that name the tap; its vhost must exist. Raises: HttpRefused."""
    return {"vhost": call.vhost().name, "name": call.words["tap"]}


def _row(call: Call) -> dict[str, Any]:
    """Return the tap, also a removed one that still has slot files. Raises: HttpRefused."""
    vhost, name = call.words["vhost"], call.words["tap"]
    rows = call.broker.taps.listing(vhost) if vhost in call.broker.administration.vhosts else []
    for row in rows:
        if row["name"] == name:
            return row
    raise not_found(f"no tap '{name}' in vhost '{vhost}'")
