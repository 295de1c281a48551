"""GET /api/connections: the clients of this node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from broker.amqp.control import ConnectionState
from broker.core.definitions.export import json_table
from broker.manage.answers import json_answer
from broker.manage.api.channels import channel_names, channel_order, channel_row, channels_of
from broker.manage.api.visible import visible_sessions
from broker.manage.api_route import ApiRoute
from broker.manage.columns import Columns, Row
from broker.manage.listing import Listing, listed
from broker.manage.message_stats import NO_PROCESS, with_rates
from broker.manage.needs import Needs
from broker.manage.refusal import not_found
from broker.manage.sampled import Sampled

if TYPE_CHECKING:
    from broker.core.auth.peer import TlsFacts
    from broker.core.session.connection import SessionOfConnection
    from broker.manage.call import Call

__all__ = ["connection_of", "connection_routes"]

OCTETS: Final = ("recv_oct", "send_oct")


def connection_routes() -> list[ApiRoute]:
    """Return the routes."""
    one = "/api/connections/{connection}"
    return [
        ApiRoute("GET", "/api/connections", Needs.MANAGEMENT, list_connections),
        ApiRoute("GET", "/api/vhosts/{vhost}/connections", Needs.MANAGEMENT, list_connections),
        ApiRoute("GET", one, Needs.MANAGEMENT, show_connection),
        ApiRoute("GET", "/api/connections/username/{user}", Needs.MANAGEMENT, list_connections),
        ApiRoute("GET", f"{one}/channels", Needs.MANAGEMENT, list_channels),
    ]


def connection_of(call: Call) -> SessionOfConnection:
    """Return the connection that the path names, if the caller sees it. Raises: HttpRefused 404."""
    name = call.words["connection"]
    for session in visible_sessions(call):
        if session.name == name:
            return session
    raise not_found()


async def list_connections(call: Call) -> Response:
    """Answer with a list of connections."""
    rows = ConnectionRows(call)
    return await listed(
        call.query, Listing(visible_sessions(call), names=_names_of, whole=rows.whole, order=lambda one: one.name)
    )


async def show_connection(call: Call) -> Response:
    """Answer with one connection."""
    session, samples = connection_of(call), call.broker.samples
    row = ConnectionRows(call).whole(session)
    sampled = Sampled(("connection", session.name), OCTETS, len(OCTETS), partial(_octets_of, session))
    sampled.add_to(row, "data_rates", OCTETS, call.query, samples)
    columns = call.query.get("columns", "")
    return json_answer(Columns(columns).of(row) if columns else row)


async def list_channels(call: Call) -> Response:
    """Answer with the channels of one connection."""
    broker = call.broker
    found = list(channels_of([connection_of(call)]))
    return await listed(
        call.query,
        Listing(found, names=channel_names, whole=lambda one: channel_row(broker, one), order=channel_order),
    )


def _names_of(session: SessionOfConnection) -> tuple[str, ...]:
    """Return the names by which a connection is found: its own, that of the client, and the user."""
    return session.name, _given_name(session) or "", "" if session.user is None else session.user.name


def _given_name(session: SessionOfConnection) -> str | None:
    name = session.connection.client_properties.get("connection_name")
    return name if isinstance(name, str) else None


class ConnectionRows:
    """Makes the rows of connections, for one request."""

    __slots__ = ("_blocked", "_broker")

    def __init__(self, call: Call) -> None:
        self._broker = call.broker
        self._blocked = frozenset(call.broker.listener.blocked_sessions())

    def whole(self, session: SessionOfConnection) -> Row:
        """Return the row of a connection."""
        connection, peer, broker = session.connection, session.peer, self._broker
        octets = (connection.received, connection.sent)
        user = "" if session.user is None else session.user.name
        given = _given_name(session)
        row: Row = {
            "auth_mechanism": session.mechanism,
            "channel_max": connection.channel_max,
            "channels": len(connection.channels),
            "client_properties": json_table(connection.client_properties),
            "connected_at": session.connected_ms,
            "frame_max": connection.frame_max,
            "host": peer.server_address,
            "name": session.name,
            "node": broker.node_name,
            "peer_host": peer.address,
            "peer_port": peer.port,
            "port": peer.server_port,
            "protocol": "AMQP 0-9-1",
            "recv_cnt": 0,
            "send_cnt": 0,
            "send_pend": connection.out_bytes,
            "state": self._state(session),
            "timeout": connection.heartbeat_s,
            "type": "direct" if peer.inside else "network",
            "user": user,
            "user_provided_name": given,
            "user_who_performed_action": user,
            "vhost": "" if session.vhost is None else session.vhost.name,
            **with_rates(OCTETS, octets, broker.samples.rates.of(("connection", session.name), octets, len(octets))),
            **NO_PROCESS,
            **_tls_fields(peer.tls),
        }
        if given is None:
            del row["user_provided_name"]
        return row

    def _state(self, session: SessionOfConnection) -> str:
        state = session.connection.state
        if state is ConnectionState.RUNNING:
            if session in self._blocked:
                return "blocked"
            return "running" if session.output_window.writable else "flow"
        return state.name.lower()


def _tls_fields(tls: TlsFacts | None) -> dict[str, Any]:
    """Return what a TLS handshake agreed on, and the client's certificate."""
    certificate: Mapping[str, Any] = {} if tls is None else tls.certificate
    validity = f"{certificate['notBefore']} - {certificate['notAfter']}" if "notAfter" in certificate else None
    return {
        "peer_cert_issuer": _name_in(certificate, "issuer"),
        "peer_cert_subject": _name_in(certificate, "subject"),
        "peer_cert_validity": validity,
        "ssl": tls is not None,
        "ssl_cipher": None if tls is None else tls.cipher,
        "ssl_hash": None,
        "ssl_key_exchange": None,
        "ssl_protocol": None if tls is None else tls.protocol,
    }


def _name_in(certificate: Mapping[str, Any], part: str) -> str | None:
    """Return a distinguished name of a certificate as text, such as CN=client,O=Example."""
    fields = [f"{name}={value}" for group in certificate.get(part, ()) for name, value in group]
    return ",".join(reversed(fields)) or None


def _octets_of(session: SessionOfConnection) -> Sequence[int] | None:
    connection = session.connection
    return None if connection.finished else (connection.received, connection.sent)
