"""Routes for exchanges, and for publishing to them."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as BinasciiError
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, Final

from broker.amqp.content_header import KINDS
from broker.amqp.header_edit import encode_header
from broker.amqp.lenient_methods import DeclareExchangeAny, DeleteExchangeAny
from broker.core.vhost import Vhost
from broker.event_log import get_logger
from broker.manage.acting import acting
from broker.manage.answers import Response, created, json_answer, no_content
from broker.manage.api.bindings import DEFAULT_EXCHANGE, exchange_named
from broker.manage.call import ApiRoute, Call, Needs, visible_vhosts
from broker.manage.counts import EXCHANGE_STATS, with_rates
from broker.manage.listing import Listing, listed, row_answer
from broker.manage.managed_broker import ManagedBroker
from broker.manage.refusal import bad_request
from broker.manage.samples import Sampled
from broker.operations.rows import Row, exchange_row
from broker.routing.exchange import Exchange

BRIEF = frozenset({"arguments", "auto_delete", "durable", "internal", "name", "type", "vhost"})
EXCHANGE: Final = "/api/exchanges/{vhost}/{exchange}"
ENCODINGS: Final = ("string", "base64")
PROPERTIES: Final = {"type" if name == "message_type" else name: name for _flag, name, _kind in KINDS}
"""The names of message properties in pamqp, by their names in the API."""

_log = get_logger()

Listed = tuple["Vhost", "Exchange"]


async def list_exchanges(call: Call) -> Response:
    """Answer with the exchanges of the visible vhosts."""
    broker = call.broker
    vhosts = visible_vhosts(call)
    found = ((vhost, exchange) for vhost in vhosts for exchange in list(vhost.exchanges.values()))
    without_stats = call.asks("disable_stats")
    return await listed(
        call.query,
        Listing(
            found,
            names=lambda one: (one[1].name,),
            whole=_brief if without_stats else lambda one: whole(broker, one),
            order=lambda one: f"{one[0].name}\0{one[1].name}",
            brief=_brief,
            brief_columns=BRIEF,
        ),
    )


async def show_exchange(call: Call) -> Response:
    """Answer with one exchange."""
    broker, vhost = call.broker, call.vhost()
    exchange = exchange_named(vhost, call.words["exchange"])
    row = whole(broker, (vhost, exchange)) | {"incoming": [], "outgoing": []}
    key = _key(vhost, exchange)
    sampled = Sampled(key, EXCHANGE_STATS, len(EXCHANGE_STATS), partial(_numbers_of, broker, exchange))
    sampled.add_to(row["message_stats"], "msg_rates", EXCHANGE_STATS, call.query, broker.samples)
    return row_answer(call, row)


def _brief(listed: Listed) -> Row:
    return exchange_row(*listed)


def whole(broker: ManagedBroker, listed: Listed) -> Row:
    """Return the row of an exchange."""
    vhost, exchange = listed
    tally = broker.statistics.exchange(exchange)
    numbers = (tally.publish_in, tally.publish_out)
    rates = broker.samples.rates.of(_key(vhost, exchange), numbers, len(numbers))
    policy = vhost.policies.of(exchange.name)
    row = exchange_row(vhost, exchange)
    row["message_stats"] = with_rates(EXCHANGE_STATS, numbers, rates)
    row["policy"] = None if policy is None else policy.name
    if exchange.index_name is not None:
        row["topic_index"] = exchange.index_name
    return row


def _key(vhost: Vhost, exchange: Exchange) -> Hashable:
    return "exchange", vhost.name, exchange.name


def _numbers_of(broker: ManagedBroker, exchange: Exchange) -> Sequence[int] | None:
    tally = broker.statistics.exchange(exchange)
    return None if exchange.deleted else (tally.publish_in, tally.publish_out)


def _name(call: Call) -> str:
    name = call.words["exchange"]
    return "" if name == DEFAULT_EXCHANGE else name


async def declare(call: Call) -> Response:
    """Declare an exchange; answer 201 for a new one, 204 if it exists."""
    vhost, name, fields = call.vhost(), _name(call), await call.fields()
    method = DeclareExchangeAny(
        exchange=name,
        exchange_type=fields.text("type", "direct"),
        durable=fields.flag("durable"),
        auto_delete=fields.flag("auto_delete"),
        internal=fields.flag("internal"),
        arguments=fields.arguments("arguments"),
    )
    is_new = name not in vhost.exchanges
    async with acting(call, vhost.name) as client:
        await client.call(method)
    if is_new:
        facts = {"type": method.exchange_type, "durable": method.durable, "by": call.user.name}
        _log.info("exchange.declared", vhost=vhost.name, exchange=name, **facts)
    return created() if is_new else no_content()


async def delete(call: Call) -> None:
    """Delete an exchange; with if-unused, only if it is not the source of a binding."""
    vhost = call.vhost()
    exchange = exchange_named(vhost, call.words["exchange"])
    async with acting(call, vhost.name) as client:
        await client.call(DeleteExchangeAny(exchange=exchange.name, if_unused=call.asks("if-unused")))
    _log.info("exchange.deleted", vhost=vhost.name, exchange=exchange.name, by=call.user.name)


async def publish(call: Call) -> Response:
    """Publish one message, and answer whether it was routed to a queue."""
    vhost = call.vhost()
    fields = await call.fields(required=("properties", "routing_key", "payload", "payload_encoding"))
    body = payload_of(fields.text("payload"), fields.text("payload_encoding"))
    header = header_of(fields.arguments("properties"), len(body))
    async with acting(call, vhost.name) as client:
        routed = await client.publish(_name(call), fields.text("routing_key"), header, body)
    if routed is None:
        raise bad_request("Unable to publish message. Check queue limits.")
    return json_answer({"routed": routed})


def payload_of(text: str, encoding: str) -> bytes:
    """Return the body of a message. Raises: HttpRefused."""
    if encoding not in ENCODINGS:
        raise bad_request(f"payload_encoding should be one of {', '.join(ENCODINGS)}")
    if encoding == "string":
        return text.encode()
    try:
        return b64decode(text, validate=True)
    except BinasciiError:
        raise bad_request("the payload is not base64") from None


def header_of(properties: dict[str, Any], body_bytes: int) -> bytes:
    """Return the content header of a message. Raises: HttpRefused for an unknown property or an invalid value."""
    given = {name: value for name, value in properties.items() if value is not None}
    if unknown := [name for name in given if name not in PROPERTIES]:
        raise bad_request(f"no property '{unknown[0]}': there are {', '.join(PROPERTIES)}")
    try:
        return encode_header({PROPERTIES[name]: value for name, value in given.items()}, body_bytes)
    except ValueError as error:
        raise bad_request(str(error)) from None


ROUTES: Final = (
    ApiRoute("GET", "/api/exchanges", Needs.MANAGEMENT, list_exchanges),
    ApiRoute("GET", "/api/exchanges/{vhost}", Needs.MANAGEMENT, list_exchanges),
    ApiRoute("GET", EXCHANGE, Needs.MANAGEMENT, show_exchange),
    ApiRoute("PUT", EXCHANGE, Needs.MANAGEMENT, declare),
    ApiRoute("DELETE", EXCHANGE, Needs.MANAGEMENT, delete),
    ApiRoute("POST", f"{EXCHANGE}/publish", Needs.MANAGEMENT, publish),
)
