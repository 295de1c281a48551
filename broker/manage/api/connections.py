"""Connections of this node's clients: listed, and closed by an administrator or their own user."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

from broker.core.auth.peer import TlsFacts
from broker.core.session.connection import SessionOfConnection
from broker.event_log import get_logger
from broker.manage.answers import Response
from broker.manage.call import ApiRoute, Call, Needs, visible_sessions
from broker.manage.counts import NO_PROCESS, with_rates
from broker.manage.listing import Listing, listed, row_answer
from broker.manage.managed_broker import ManagedBroker
from broker.manage.refusal import not_authorised, not_found
from broker.manage.samples import Sampled
from broker.operations.rows import Row, connection_name, connection_row, user_name

CONNECTION: Final = "/api/connections/{connection}"
OCTETS: Final = ("recv_oct", "send_oct")
REASON: Final = "Closed via management plugin"  # RabbitMQ's text
REASON_MAX: Final = 200

_log = get_logger()


async def list_connections(call: Call) -> Response:
    """Answer with the visible connections."""
    found, blocked = visible_sessions(call), frozenset(call.broker.listener.blocked_sessions())
    row_of = partial(whole, call.broker, blocked)
    return await listed(call.query, Listing(found, names=_names_of, whole=row_of, order=lambda one: one.name))


async def show_connection(call: Call) -> Response:
    """Answer with one connection."""
    (session,), broker = visible_sessions(call), call.broker
    row = whole(broker, broker.listener.blocked_sessions(), session)
    sampled = Sampled(("connection", session.name), OCTETS, len(OCTETS), partial(_octets_of, session))
    sampled.add_to(row, "data_rates", OCTETS, call.query, broker.samples)
    return row_answer(call, row)


def _names_of(session: SessionOfConnection) -> tuple[str, ...]:
    """Return the names that a filter checks: the connection's, the one that the client gave it, and the user's."""
    return session.name, connection_name(session) or "", user_name(session)


def whole(broker: ManagedBroker, blocked: Collection[SessionOfConnection], session: SessionOfConnection) -> Row:
    """Return the row of a connection."""
    connection = session.connection
    octets = (connection.received, connection.sent)
    rates = broker.samples.rates.of(("connection", session.name), octets, len(octets))
    row = connection_row(broker.node_name, session, blocked=session in blocked)
    if row["user_provided_name"] is None:
        del row["user_provided_name"]
    row |= with_rates(OCTETS, octets, rates)
    row |= NO_PROCESS
    return row | _tls_fields(session.peer.tls)


def _tls_fields(tls: TlsFacts | None) -> dict[str, Any]:
    """Return the columns about TLS and the client's certificate."""
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


async def close(call: Call) -> None:
    """Close a connection, or all connections of a user. The header X-Reason may contain the reason.

    Users may close their own connections, and administrators all. Raises: HttpRefused before any is closed.
    """
    words, sessions = call.words, call.broker.listener.sessions()
    if "user" in words:
        found = [session for session in sessions if session.user is not None and session.user.name == words["user"]]
    else:
        found = [session for session in sessions if session.name == words["connection"]]
        if not found:
            raise not_found()
    own = all(session.user is not None and session.user.name == call.user.name for session in found)
    if not own and not call.may(Needs.ADMINISTRATOR):
        raise not_authorised("User not authorised to access object")
    reason = call.request.headers.get("x-reason", REASON)[:REASON_MAX]
    for session in found:
        user = None if session.user is None else session.user.name
        session.force_close(reason)
        _log.info("connection.force_closed", conn=session.name, user=user, reason=reason, by=call.user.name)


ROUTES: Final = (
    ApiRoute("GET", "/api/connections", Needs.MANAGEMENT, list_connections),
    ApiRoute("GET", "/api/vhosts/{vhost}/connections", Needs.MANAGEMENT, list_connections),
    ApiRoute("GET", CONNECTION, Needs.MANAGEMENT, show_connection),
    ApiRoute("GET", "/api/connections/username/{user}", Needs.MANAGEMENT, list_connections),
    ApiRoute("DELETE", CONNECTION, Needs.MANAGEMENT, close),
    ApiRoute("DELETE", "/api/connections/username/{user}", Needs.MANAGEMENT, close),
)
