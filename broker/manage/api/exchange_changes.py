"""Exchanges declared, deleted, published to, and asked for the route of a message."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as BinasciiError
from typing import TYPE_CHECKING, Any, Final

from broker.amqp.content_header import KINDS
from broker.amqp.header_writer import encode_header
from broker.amqp.lenient_methods import DeclareExchangeAny, DeleteExchangeAny
from broker.event_log import get_logger
from broker.manage.acting import acting
from broker.manage.answers import created, json_answer, no_content
from broker.manage.api.bindings import DEFAULT_EXCHANGE, exchange_named
from broker.manage.api_route import ApiRoute
from broker.manage.body_fields import flag, required, table
from broker.manage.needs import Needs
from broker.manage.refusal import bad_request

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.manage.call import Call

__all__ = ["exchange_change_routes", "header_of"]

EXCHANGE: Final = "/api/exchanges/{vhost}/{exchange}"
TRUE: Final = "true"
ENCODINGS: Final = ("string", "base64")
PROPERTIES: Final = {"type" if name == "message_type" else name: name for _flag, name, _kind in KINDS}
"""The properties of a message: their names in the API, and what pamqp calls them."""

_log = get_logger()


def exchange_change_routes() -> list[ApiRoute]:
    """Return the routes."""
    return [
        ApiRoute("PUT", EXCHANGE, Needs.MANAGEMENT, declare),
        ApiRoute("DELETE", EXCHANGE, Needs.MANAGEMENT, delete),
        ApiRoute("POST", f"{EXCHANGE}/publish", Needs.MANAGEMENT, publish),
    ]


def _name(call: Call) -> str:
    """Return the name of the exchange that the path names."""
    name = call.words["exchange"]
    return "" if name == DEFAULT_EXCHANGE else name


async def declare(call: Call) -> Response:
    """Declare an exchange: 201 for a new one, 204 for one that exists with these arguments."""
    vhost, name, fields = call.vhost(), _name(call), await call.fields()
    method = DeclareExchangeAny(
        exchange=name,
        exchange_type=fields.text("type", "direct"),
        durable=flag(fields, "durable"),
        auto_delete=flag(fields, "auto_delete"),
        internal=flag(fields, "internal"),
        arguments=table(fields, "arguments"),
    )
    is_new = name not in vhost.exchanges
    async with acting(call, vhost.name) as client:
        await client.call(method)
    if is_new:
        facts = {"type": method.exchange_type, "durable": method.durable, "by": call.user.name}
        _log.info("exchange.declared", vhost=vhost.name, exchange=name, **facts)
    return created() if is_new else no_content()


async def delete(call: Call) -> Response:
    """Delete an exchange, on the condition if-unused."""
    vhost = call.vhost()
    exchange = exchange_named(vhost, call.words["exchange"])
    async with acting(call, vhost.name) as client:
        await client.call(DeleteExchangeAny(exchange=exchange.name, if_unused=call.query.get("if-unused") == TRUE))
    _log.info("exchange.deleted", vhost=vhost.name, exchange=exchange.name, by=call.user.name)
    return no_content()


async def publish(call: Call) -> Response:
    """Publish one message, and answer whether a queue took it."""
    vhost, fields = call.vhost(), await call.fields()
    required(fields, "properties", "routing_key", "payload", "payload_encoding")
    body = payload_of(fields.text("payload"), fields.text("payload_encoding"))
    header = header_of(table(fields, "properties"), len(body))
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
    """Return the content header of a message. Raises: HttpRefused for a value that its property cannot hold."""
    given = {name: value for name, value in properties.items() if value is not None}
    if unknown := [name for name in given if name not in PROPERTIES]:
        raise bad_request(f"no property '{unknown[0]}': there are {', '.join(PROPERTIES)}")
    try:
        return encode_header({PROPERTIES[name]: value for name, value in given.items()}, body_bytes)
    except ValueError as error:
        raise bad_request(str(error)) from None
