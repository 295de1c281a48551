"""GET /api/vhosts: the vhosts, with what is in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from broker.manage.answers import json_answer
from broker.manage.api_route import ApiRoute
from broker.manage.columns import Columns, Row
from broker.manage.counts import message_numbers
from broker.manage.lengths import Lengths, lengths_of
from broker.manage.listing import Listing, listed
from broker.manage.message_stats import MESSAGE_STATS, with_rates
from broker.manage.needs import Needs
from broker.manage.refusal import not_authorised, not_found

if TYPE_CHECKING:
    from broker.manage.call import Call

__all__ = ["VhostRows", "vhost_routes"]

LENGTHS: Final = ("messages", "messages_ready", "messages_unacknowledged")
OCTETS: Final = ("recv_oct", "send_oct")
COUNTERS: Final = len(MESSAGE_STATS)


def vhost_routes() -> list[ApiRoute]:
    """Return the routes."""
    return [
        ApiRoute("GET", "/api/vhosts", Needs.MANAGEMENT, list_vhosts),
        ApiRoute("GET", "/api/vhosts/{vhost}", Needs.MANAGEMENT, show_vhost),
    ]


async def list_vhosts(call: Call) -> Response:
    """Answer with the vhosts that the caller sees, those that are down as well."""
    names = [name for name in call.broker.administration.vhost_names if call.sees_vhost(name)]
    rows = await VhostRows.of(call, names)
    return await listed(call.query, Listing(names, names=lambda name: (name,), whole=rows.whole, order=str))


async def show_vhost(call: Call) -> Response:
    """Answer with one vhost."""
    name = call.words["vhost"]
    if name not in call.broker.administration.vhost_names:
        raise not_found()
    if not call.sees_vhost(name):
        raise not_authorised("User not authorised to access virtual host")
    row = (await VhostRows.of(call, [name])).whole(name)
    columns = call.query.get("columns", "")
    return json_answer(Columns(columns).of(row) if columns else row)


class VhostRows:
    """Makes the rows of vhosts, from the lengths of all their queues at one moment."""

    __slots__ = ("_broker", "_lengths", "_octets")

    def __init__(self, call: Call, lengths: Mapping[str, Lengths], octets: Mapping[str, tuple[int, int]]) -> None:
        self._broker = call.broker
        self._lengths = lengths
        self._octets = octets

    @classmethod
    async def of(cls, call: Call, names: list[str]) -> VhostRows:
        """Add up the queues of these vhosts. Cost: O(queues), in pieces."""
        vhosts = call.broker.administration.vhosts
        lengths = {name: await lengths_of([vhosts[name]]) for name in names if name in vhosts}
        octets: dict[str, tuple[int, int]] = {}
        for session in call.broker.listener.sessions():
            if session.vhost is not None:
                received, sent = octets.get(session.vhost.name, (0, 0))
                connection = session.connection
                octets[session.vhost.name] = (received + connection.received, sent + connection.sent)
        return cls(call, lengths, octets)

    def whole(self, name: str) -> Row:
        """Return the row of a vhost; one that is down has no numbers."""
        administration, node = self._broker.administration, self._broker.node_name
        facts = administration.vhost_fields(name)
        description, tags = facts.get("description", ""), _tags_of(facts)
        default_type = facts.get("default_queue_type") or "undefined"
        metadata: dict[str, Any] = {"description": description, "tags": tags}
        if default_type != "undefined":
            metadata["default_queue_type"] = default_type
        vhost = administration.vhosts.get(name)
        row: Row = {
            "cluster_state": {node: "stopped" if vhost is None else "running"},
            "default_queue_type": default_type,
            "description": description,
            "metadata": metadata,
            "name": name,
            "protected_from_deletion": facts.get("protected_from_deletion") is True,
            "tags": tags,
            "tracing": vhost is not None and vhost.firehose.publishing,
        }
        lengths = self._lengths.get(name)
        if vhost is None or lengths is None:
            return row
        counts = message_numbers(self._broker.statistics.vhost(name))
        numbers = (*counts, *lengths.numbers, *self._octets.get(name, (0, 0)))
        rates = self._broker.samples.rates.of(("vhost", name), numbers, COUNTERS)
        counted, others = (None, None) if rates is None else (rates[:COUNTERS], rates[COUNTERS:])
        row["message_stats"] = with_rates(MESSAGE_STATS, counts, counted)
        return row | with_rates((*LENGTHS, *OCTETS), numbers[COUNTERS:], others)


def _tags_of(facts: Mapping[str, Any]) -> list[str]:
    """Return the tags of a vhost, which definitions may have as one text."""
    tags = facts.get("tags") or []
    if isinstance(tags, str):
        return [tag.strip() for tag in tags.split(",") if tag.strip()]
    return [str(tag) for tag in tags]
