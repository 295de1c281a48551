"""Health checks: each answers 200, or 503 with a reason. Source: RabbitMQ's /api/health/checks."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from broker.amqp.header_edit import encode_header
from broker.amqp.lenient_methods import DeclareAny
from broker.manage.acting import acting
from broker.manage.answers import Response, json_answer
from broker.manage.api.nodes import listeners_of
from broker.manage.call import ApiRoute, Call, Needs
from broker.manage.refusal import HttpRefused, bad_request
from broker.net.tls import expiries

CHECKS: Final = "/api/health/checks"
OK: Final = {"status": "ok"}
DAYS: Final = {"days": 1, "weeks": 7, "months": 30, "years": 365}
PORT_MAX: Final = 65_535
PROBE_QUEUE: Final = "aliveness-test"  # named as in RabbitMQ, which does not delete the queue either
PROBE: Final = b"test_message"
SECURE: Final = ("amqp/ssl", "https")
PROTOCOLS: Final = {"amqp091": "amqp", "amqps": "amqp/ssl", "amqp091/ssl": "amqp/ssl"}


def _failed(reason: str, **facts: Any) -> Response:
    return json_answer({"status": "failed", "reason": reason, **facts}, 503)


async def alarms(call: Call) -> Response:
    """Check that no alarm is raised."""
    call.check_node()
    raised = call.broker.facts()["alarms"]
    if not raised:
        return json_answer(OK)
    return _failed(
        "There are alarms in effect in the cluster",
        alarms=[{"node": call.broker.node_name, "resource": alarm["kind"]} for alarm in raised],
    )


async def certificate_expiration(call: Call) -> Response:
    """Check that no certificate of a listener expires within the time in the path."""
    within, unit = call.words["within"], call.words["unit"]
    if unit not in DAYS:
        raise bad_request("Time unit not recognised. Supported units: days, weeks, months, years.")
    if not (within.isascii() and within.isdigit() and len(within) <= len("10000")):
        raise bad_request("Invalid expiration value.")
    until = datetime.now(UTC) + timedelta(days=int(within) * DAYS[unit])
    tls = call.broker.settings().tls
    if not tls.is_on:
        return json_answer(OK)
    try:
        ends = await asyncio.to_thread(expiries, tls.certfile)
    except (OSError, ValueError) as error:
        raise HttpRefused(503, f"tls.certfile: {error}") from None
    expired = [end.isoformat() for end in ends if end <= until]
    if not expired:
        return json_answer(OK)
    listeners = [row for row in listeners_of(call.broker) if row["protocol"].startswith(SECURE)]
    named = ("node", "protocol", "ip_address", "port")
    return _failed(
        "Certificates expiring",
        expired=[{**{name: row[name] for name in named}, "certfile_expires_on": expired} for row in listeners],
    )


def _protocols(call: Call) -> list[str]:
    found = [row["protocol"] for row in listeners_of(call.broker)]
    return [*found, "clustering"] if call.broker.cluster is not None else found


async def port_listener(call: Call) -> Response:
    """Check that the broker listens on a port."""
    text = call.words["port"]
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(PORT_MAX)) and int(text) <= PORT_MAX):
        raise bad_request("Invalid port")
    ports = [row["port"] for row in listeners_of(call.broker)]
    if int(text) in ports:
        return json_answer({**OK, "port": int(text)})
    return _failed("No active listener", missing=int(text), ports=ports)


async def protocol_listener(call: Call) -> Response:
    """Check that the broker listens for a protocol."""
    wanted = PROTOCOLS.get(call.words["protocol"], call.words["protocol"])
    protocols = _protocols(call)
    if wanted in protocols:
        return json_answer({**OK, "protocol": wanted})
    return _failed("No active listener", missing=wanted, protocols=protocols)


async def virtual_hosts(call: Call) -> Response:
    """Check that all vhosts are running."""
    down = list(call.broker.down())
    if not down:
        return json_answer(OK)
    return _failed("Some virtual hosts are down", **{"virtual-hosts": down})


async def never_critical(call: Call) -> Response:
    """Answer that this node can be stopped, because other nodes do not need it for a majority."""
    return json_answer(OK if call.broker.cluster is not None else {**OK, "reason": "single node cluster"})


async def always_ok(_call: Call) -> Response:
    """Answer that all is well, because what RabbitMQ checks here cannot fail in this broker."""
    return json_answer(OK)


async def below_connection_limit(call: Call) -> Response:
    """Check that another client could connect."""
    current, limit = len(call.broker.listener.transports), call.broker.settings().server.connections_max
    if current < limit:
        return json_answer({**OK, "connections": current, "limit": limit})
    return _failed("node connection limit is reached", connections=current, limit=limit)


async def ready(call: Call) -> Response:
    """Check that the broker is ready, as /readyz does."""
    reasons = list(call.broker.unready())
    return json_answer(OK) if not reasons else _failed(", ".join(reasons))


async def aliveness(call: Call) -> Response:
    """Check that the caller can declare a queue, publish a message to it and get the message."""
    vhost = call.vhost()
    async with acting(call, vhost.name) as client:
        await client.call(DeclareAny(queue=PROBE_QUEUE))
        await client.publish("", PROBE_QUEUE, encode_header({}, len(PROBE)), PROBE)
        got = await client.get(PROBE_QUEUE, no_ack=True)
    if got is None:
        return _failed("the message was not there", vhost=vhost.name)
    return json_answer(OK)


CHECKED: Final = {
    "alarms": alarms,
    "local-alarms": alarms,
    "certificate-expiration/{within}/{unit}": certificate_expiration,
    "port-listener/{port}": port_listener,
    "protocol-listener/{protocol}": protocol_listener,
    "virtual-hosts": virtual_hosts,
    "node-is-mirror-sync-critical": never_critical,
    "node-is-quorum-critical": never_critical,
    "quorum-queues-without-elected-leaders/all-vhosts": always_ok,
    "quorum-queues-without-elected-leaders/all-vhosts/pattern/{pattern}": always_ok,
    "quorum-queues-without-elected-leaders/vhost/{vhost}": always_ok,
    "quorum-queues-without-elected-leaders/vhost/{vhost}/pattern/{pattern}": always_ok,
    "metadata-store/initialized": always_ok,
    "metadata-store/initialized/with-data": always_ok,
    "below-node-connection-limit": below_connection_limit,
    "ready-to-serve-clients": ready,
    "is-in-service": ready,
}
"""The checks by path."""

ROUTES: Final = (
    *(ApiRoute("GET", f"{CHECKS}/{path}", Needs.MANAGEMENT, check) for path, check in CHECKED.items()),
    ApiRoute("GET", "/api/healthchecks/node", Needs.MANAGEMENT, alarms),
    ApiRoute("GET", "/api/healthchecks/node/{node}", Needs.MANAGEMENT, alarms),
    ApiRoute("GET", "/api/aliveness-test/{vhost}", Needs.MANAGEMENT, aliveness),
)
