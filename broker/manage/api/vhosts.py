"""Routes for vhosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from broker.core.queue.queue_arguments import check_default_type
from broker.manage.answers import Response, created, no_content
from broker.manage.call import ApiRoute, Call, Needs
from broker.manage.counts import LENGTHS, MESSAGE_STATS, Lengths, lengths_of, message_numbers, with_rates
from broker.manage.listing import Listing, listed, row_answer
from broker.manage.managed_broker import ManagedBroker
from broker.manage.refusal import HttpRefused, not_authorised, not_found
from broker.operations.request import Asker
from broker.operations.rows import Row
from broker.operations.users import Named
from broker.operations.vhosts import PROTECTED, VhostProtected, delete_vhost, put_vhost

VHOST: Final = "/api/vhosts/{vhost}"
OCTETS: Final = ("recv_oct", "send_oct")
COUNTERS: Final = len(MESSAGE_STATS)


async def list_vhosts(call: Call) -> Response:
    """Answer with the vhosts that the caller sees, including offline ones."""
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
    return row_answer(call, row)


@dataclass(frozen=True)
class VhostRows:
    """Build the rows of vhosts from lengths and octets that were read before."""

    broker: ManagedBroker
    lengths: Mapping[str, Lengths]
    octets: Mapping[str, tuple[int, int]]

    @classmethod
    async def of(cls, call: Call, names: list[str]) -> VhostRows:
        """Add up the queues and octets of vhosts. Cost: O(queues), in slices, and O(connections)."""
        vhosts = call.broker.administration.vhosts
        lengths = {name: await lengths_of([vhosts[name]]) for name in names if name in vhosts}
        octets: dict[str, tuple[int, int]] = {}
        for session in call.broker.listener.sessions():
            if session.vhost is not None:
                received, sent = octets.get(session.vhost.name, (0, 0))
                connection = session.connection
                octets[session.vhost.name] = (received + connection.received, sent + connection.sent)
        return cls(call.broker, lengths, octets)

    def whole(self, name: str) -> Row:
        """Return the row of a vhost, without statistics if the vhost is offline."""
        administration, node = self.broker.administration, self.broker.node_name
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
        lengths = self.lengths.get(name)
        if vhost is None or lengths is None:
            return row
        counts = message_numbers(self.broker.statistics.vhost(name))
        numbers = (*counts, *lengths.numbers, *self.octets.get(name, (0, 0)))
        rates = self.broker.samples.rates.of(("vhost", name), numbers, COUNTERS)
        counted, others = (None, None) if rates is None else (rates[:COUNTERS], rates[COUNTERS:])
        row["message_stats"] = with_rates(MESSAGE_STATS, counts, counted)
        return row | with_rates((*LENGTHS, *OCTETS), numbers[COUNTERS:], others)


def _tags_of(facts: Mapping[str, Any]) -> list[str]:
    """Return the tags of a vhost; in definitions, they may be one string."""
    tags = facts.get("tags") or []
    if isinstance(tags, str):
        return [tag.strip() for tag in tags.split(",") if tag.strip()]
    return [str(tag) for tag in tags]


async def put(call: Call) -> Response:
    """Add a vhost (201), or change an existing one (204)."""
    fields, name = await call.fields(), call.words["vhost"]
    facts: dict[str, Any] = {}
    if fields.has("description"):
        facts["description"] = fields.text("description")
    if fields.has("tags"):
        facts["tags"] = fields.texts("tags")
    default_type = check_default_type(fields.text("default_queue_type", "") or None)
    if default_type is not None:
        facts["default_queue_type"] = default_type
    tracing = fields.flag("tracing")
    is_new = await put_vhost(call.broker.administration, name, facts, call.user.name)
    if fields.has("tracing"):
        await call.operate("set_tracing", vhost=name, on=tracing)
    return created() if is_new else no_content()


async def delete(call: Call) -> None:
    """Delete a vhost with all its objects and permissions, unless it is protected."""
    if call.words["vhost"] not in call.broker.administration.vhost_names:
        raise not_found()
    try:
        await delete_vhost(call.broker, Named(name=call.words["vhost"]), Asker())
    except VhostProtected as protected:
        raise HttpRefused(412, str(protected), "precondition_failed") from None


async def protect(call: Call, *, on: bool) -> None:
    """Protect a vhost from deletion, or remove the protection."""
    await put_vhost(call.broker.administration, call.vhost().name, {PROTECTED: on}, call.user.name)


async def start(call: Call) -> None:
    """Accept the start of a running vhost. An offline vhost starts with the broker, after a repair of its files."""
    call.vhost()


ROUTES: Final = (
    ApiRoute("GET", "/api/vhosts", Needs.MANAGEMENT, list_vhosts),
    ApiRoute("GET", VHOST, Needs.MANAGEMENT, show_vhost),
    ApiRoute("PUT", VHOST, Needs.ADMINISTRATOR, put),
    ApiRoute("DELETE", VHOST, Needs.ADMINISTRATOR, delete),
    ApiRoute("POST", f"{VHOST}/start/{{node}}", Needs.ADMINISTRATOR, start),
    ApiRoute("POST", f"{VHOST}/deletion/protection", Needs.ADMINISTRATOR, partial(protect, on=True)),
    ApiRoute("DELETE", f"{VHOST}/deletion/protection", Needs.ADMINISTRATOR, partial(protect, on=False)),
)
