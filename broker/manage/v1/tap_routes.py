"""Requests of a remote reader: seal the open slot, and move a cursor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.manage.answers import json_answer, no_content
from broker.manage.api_route import ApiRoute
from broker.manage.call import Call
from broker.manage.needs import Needs
from broker.manage.refusal import bad_request, not_found
from broker.manage.v1.rights import HttpRights, tap_queue

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.core.vhost import Vhost
    from broker.taps.taps import Taps

__all__ = ["tap_routes"]


def tap_routes(taps: Taps, vhosts: Mapping[str, Vhost], rights: HttpRights) -> list[ApiRoute]:
    """Return the routes."""
    answers = TapAnswers(taps, vhosts, rights)
    return [
        ApiRoute("GET", "/v1/taps", Needs.LOGIN, answers.listing, ("vhost",)),
        ApiRoute("POST", "/v1/seal", Needs.LOGIN, answers.seal, ()),
        ApiRoute("PUT", "/v1/cursors/{name}", Needs.LOGIN, answers.set_cursor, ()),
        ApiRoute("DELETE", "/v1/cursors/{name}", Needs.LOGIN, answers.remove_cursor, ("vhost", "tap")),
    ]


@dataclass(frozen=True, slots=True)
class TapAnswers:
    """Answers the requests of readers of taps."""

    taps: Taps
    vhosts: Mapping[str, Vhost]
    rights: HttpRights

    async def listing(self, call: Call) -> Response:
        """List the taps that the user may read."""
        vhost = call.query.get("vhost")
        rows = self.taps.listing(vhost) if vhost is None or vhost in self.vhosts else []
        visible = [row for row in rows if self.rights.may_read(call.user, row["vhost"], tap_queue(row["name"]))]
        return json_answer({"taps": visible})

    async def seal(self, call: Call) -> Response:
        """Seal the open slot, and answer with the last seal once it is in a file."""
        fields = await call.fields(("vhost", "tap"))
        vhost, tap = fields.optional("vhost"), fields.optional("tap")
        if tap is None:
            self.rights.check_looks_after(call.user, "all taps")
        else:
            vhost = "/" if vhost is None else vhost
            self._check(call, vhost, tap)
        return json_answer({"last_seal": await self.taps.seal(vhost, tap)})

    async def set_cursor(self, call: Call) -> Response:
        """Create or advance a cursor."""
        fields = await call.fields(("vhost", "tap", "seal", "incarnation", "reset"))
        vhost, tap = fields.text("vhost", "/"), fields.text("tap")
        if not fields.has("seal"):
            raise bad_request("'seal' is missing")
        seal, reset = fields.integer("seal", 0), fields.flag("reset")
        self._check(call, vhost, tap)
        incarnation = fields.optional("incarnation")
        name, owner = call.words["name"], call.user.name
        await self.taps.cursors.set(name, vhost, tap, seal, incarnation=incarnation, reset=reset, owner=owner)
        return no_content()

    async def remove_cursor(self, call: Call) -> Response:
        """Remove a cursor, for which nothing is kept any more."""
        query = call.query
        if "tap" not in query:
            raise bad_request("the parameter 'tap' is missing")
        vhost, tap, name = query.get("vhost", "/"), query["tap"], call.words["name"]
        self.rights.check_read(call.user, vhost, tap_queue(tap))
        if self.taps.view.cursor(name, vhost, tap) is None:
            raise not_found(f"no cursor '{name}' of tap '{tap}' in vhost '{vhost}'")
        await self.taps.cursors.remove(name, vhost, tap)
        return no_content()

    def _check(self, call: Call, vhost: str, tap: str) -> None:
        """Check that the user may use an existing tap. Raises: HttpRefused (403 before 404, so that it hides names)."""
        self.rights.check_read(call.user, vhost, tap_queue(tap))
        held = self.vhosts.get(vhost)
        if held is not None and tap_queue(tap) in held.queues.taps:
            return
        # A removed tap counts as one as long as it has slots.
        if held is None or not any(row["name"] == tap for row in self.taps.listing(vhost)):
            raise not_found(f"no tap '{tap}' in vhost '{vhost}'")
