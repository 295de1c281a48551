"""Requests of a remote reader: seal the open slot, and move a cursor."""

from __future__ import annotations

from typing import Final

from broker.manage.answers import Response, json_answer, no_content
from broker.manage.call import ApiRoute, Call, Needs
from broker.manage.refusal import bad_request, not_found
from broker.operations.rights import check_cursor, check_seal, may_read_tap
from broker.slot_files.seal_log import TAP_PREFIX

__all__ = ["ROUTES"]


async def listing(call: Call) -> Response:
    """List the taps that the user may read."""
    vhost = call.query.get("vhost")
    rows = call.broker.taps.listing(vhost) if vhost is None or vhost in call.broker.administration.vhosts else []
    visible = [row for row in rows if may_read_tap(call.broker, call.user, row["vhost"], row["name"])]
    return json_answer({"taps": visible})


async def seal(call: Call) -> Response:
    """Seal the open slot, and answer with the last seal once it is in a file."""
    fields = await call.fields(("vhost", "tap"))
    vhost, tap = fields.optional("vhost"), fields.optional("tap")
    if tap is not None and vhost is None:
        vhost = "/"
    check_seal(call.broker, call.user, vhost, tap)
    if tap is not None and vhost is not None:
        _check_exists(call, vhost, tap)
    return json_answer({"last_seal": await call.broker.taps.seal(vhost, tap)})


async def set_cursor(call: Call) -> Response:
    """Create or advance a cursor."""
    fields = await call.fields(("vhost", "tap", "seal", "incarnation", "reset"))
    vhost, tap = fields.text("vhost", "/"), fields.text("tap")
    if not fields.has("seal"):
        raise bad_request("'seal' is missing")
    seal, reset = fields.integer("seal", 0), fields.flag("reset")
    name, incarnation = call.words["name"], fields.optional("incarnation")
    check_cursor(call.broker, call.user, name, vhost, tap)
    _check_exists(call, vhost, tap)
    await call.broker.taps.cursors.set(
        name, vhost, tap, seal, incarnation=incarnation, reset=reset, maker=call.user.name
    )
    return no_content()


async def remove_cursor(call: Call) -> Response:
    """Remove a cursor, for which nothing is kept any more."""
    query = call.query
    if "tap" not in query:
        raise bad_request("the parameter 'tap' is missing")
    vhost, tap, name = query.get("vhost", "/"), query["tap"], call.words["name"]
    check_cursor(call.broker, call.user, name, vhost, tap)
    if call.broker.taps.view.cursor(name, vhost, tap) is None:
        raise not_found(f"no cursor '{name}' of tap '{tap}' in vhost '{vhost}'")
    await call.broker.taps.cursors.remove(name, vhost, tap)
    return no_content()


def _check_exists(call: Call, vhost: str, tap: str) -> None:
    """Check that there is a tap; rights come first, so that 404 tells no names. Raises: HttpRefused."""
    held = call.broker.administration.vhosts.get(vhost)
    if held is not None and TAP_PREFIX + tap in held.queues.taps:
        return
    # A removed tap counts as one as long as it has slots.
    if held is None or not any(row["name"] == tap for row in call.broker.taps.listing(vhost)):
        raise not_found(f"no tap '{tap}' in vhost '{vhost}'")


ROUTES: Final = (
    ApiRoute("GET", "/v1/taps", Needs.LOGIN, listing, ("vhost",)),
    ApiRoute("POST", "/v1/seal", Needs.LOGIN, seal, ()),
    ApiRoute("PUT", "/v1/cursors/{name}", Needs.LOGIN, set_cursor, ()),
    ApiRoute("DELETE", "/v1/cursors/{name}", Needs.LOGIN, remove_cursor, ("vhost", "tap")),
)
