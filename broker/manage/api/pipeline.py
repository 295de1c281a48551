"""Routes for the taps of the pipeline and their cursors."""

from __future__ import annotations

from typing import Any, Final

from broker.manage.answers import Response, created, json_answer
from broker.manage.call import ApiRoute, Call, Needs
from broker.manage.refusal import bad_request, not_found
from broker.manage.slot_routes import tap_row
from broker.operations.rights import may_read_tap

PIPELINE: Final = "/api/slotmq/pipeline"
TAP: Final = f"{PIPELINE}/taps/{{vhost}}/{{tap}}"
TAP_FIELDS: Final = ("exchange", "pattern", "cursors", "max_bytes", "max_age_ms")
FLAGS: Final = {"": False, "false": False, "true": True}


async def pipeline(call: Call) -> Response:
    """Answer with the taps and their cursors. Users without the tag monitoring get the taps that they may read."""
    monitoring = call.may(Needs.MONITORING)
    rows = call.broker.taps.listing()
    return json_answer(
        {"taps": [row for row in rows if monitoring or may_read_tap(call.broker, call.user, row["vhost"], row["name"])]}
    )


async def add_tap(call: Call) -> Response:
    """Add a tap for the messages of an exchange that match a pattern."""
    fields = await call.fields(TAP_FIELDS)
    arguments: dict[str, Any] = {name: fields.text(name) for name in ("exchange", "pattern")}
    arguments |= {name: fields.integer(name, 1, 1) for name in ("max_bytes", "max_age_ms") if fields.has(name)}
    arguments["cursors"] = fields.texts("cursors")
    await call.operate("tap_add", **_tap(call), **arguments)
    return created()


async def remove_tap(call: Call) -> Response:
    """Remove a tap; `drop` deletes its slot files and cursors, too."""
    _row(call)
    drop = FLAGS.get(call.query.get("drop", ""))
    if drop is None:
        raise bad_request("the parameter 'drop' should be true or false")
    return json_answer(await call.operate("tap_remove", **_tap(call), drop=drop))


async def seal(call: Call) -> Response:
    """Write a tap's messages into a slot file now, and answer with the last seal."""
    _row(call)
    vhost, tap = call.words["vhost"], call.words["tap"]
    return json_answer(await call.operate("seal", vhost=vhost, tap=tap))


async def set_cursor(call: Call) -> None:
    """Create a cursor, or move it to a later seal; `reset` also moves it back."""
    _row(call)
    fields = await call.fields(("seal", "reset"))
    if not fields.has("seal"):
        raise bad_request("'seal' is missing")
    moved = {"seal": fields.integer("seal", 0), "reset": fields.flag("reset")}
    await call.operate("cursor_set", **_cursor(call), **moved)


async def remove_cursor(call: Call) -> None:
    """Remove a cursor; slot files are no longer kept for it."""
    row, named = _row(call), _cursor(call)
    request = call.allowed("cursor_remove", **named)
    if named["name"] not in [cursor["name"] for cursor in row["cursors"]]:
        raise not_found(f"no cursor '{named['name']}' of tap '{named['tap']}' in vhost '{named['vhost']}'")
    await call.broker.verbs["cursor_remove"](request)


def _tap(call: Call) -> dict[str, str]:
    """Return the vhost and the name of the tap in the path. Raises: HttpRefused as `Call.vhost`."""
    return {"vhost": call.vhost().name, "name": call.words["tap"]}


def _cursor(call: Call) -> dict[str, str]:
    """Return the names of the cursor in the path, of its vhost and of its tap."""
    return {"name": call.words["cursor"], "vhost": call.words["vhost"], "tap": call.words["tap"]}


def _row(call: Call) -> dict[str, Any]:
    """Return the row of the tap in the path. Raises: HttpRefused."""
    return tap_row(call, call.words["vhost"], call.words["tap"])


ROUTES: Final = (
    ApiRoute("GET", PIPELINE, Needs.MANAGEMENT, pipeline, ()),
    ApiRoute("PUT", TAP, Needs.ADMINISTRATOR, add_tap, ()),
    ApiRoute("DELETE", TAP, Needs.ADMINISTRATOR, remove_tap, ("drop",)),
    ApiRoute("POST", f"{TAP}/seal", Needs.ADMINISTRATOR, seal, ()),
    ApiRoute("PUT", f"{TAP}/cursors/{{cursor}}", Needs.ADMINISTRATOR, set_cursor, ()),
    ApiRoute("DELETE", f"{TAP}/cursors/{{cursor}}", Needs.ADMINISTRATOR, remove_cursor, ()),
)
