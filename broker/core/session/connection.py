"""The broker's side of one connection: its login, its vhost, and operations on all of its channels."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from broker.amqp.channel import Channel
from broker.amqp.connection import Connection
from broker.amqp.errors import ChannelError, ConnectionFault, Refused
from broker.core.auth.logins import AMQP, Logins, Verdict
from broker.core.auth.peer import Peer
from broker.core.auth.permissions import Permissions
from broker.core.auth.usage import Usage
from broker.core.auth.user_limits import CHANNELS, CONNECTIONS
from broker.core.publish_credit import CreditShare
from broker.core.queue.consumer import Consumer
from broker.core.session.basic import BasicSession
from broker.core.session.channel import SessionOfChannel
from broker.core.session.client import MethodBudget, SessionClient
from broker.core.vhost import Vhost
from broker.event_log import get_logger

_log = get_logger()


class SessionOfConnection(SessionClient):
    """The broker's side of one connection.

    Invariant: `vhost` is set when the vhost is opened, `mechanism` when the client starts to log in.
    Units: `connected_ms` is when the client connected.
    """

    __slots__ = ("_is_down", "_logins", "_opened", "_vhosts", "connected_ms", "mechanism", "peer", "vhost")

    def __init__(
        self,
        connection: Connection,
        *,
        logins: Logins,
        permissions: Permissions,
        usage: Usage,
        vhosts: Mapping[str, Vhost],
        peer: Peer,
        opened: Callable[[SessionOfChannel], None] | None = None,
        is_down: Callable[[str], bool] | None = None,
        connected_ms: int = 0,
    ) -> None:
        """Call `opened` with the session of each new channel; `is_down` returns whether a vhost is down."""
        super().__init__(connection, peer.name, permissions, usage)
        self.peer = peer
        self.patient = peer.inside != ""
        self.connected_ms = connected_ms
        self.mechanism = ""
        self.vhost: Vhost | None = None
        self._logins = logins
        self._opened = opened
        self._is_down = is_down
        self._vhosts = vhosts

    # -- called by the connection -------------------------------------------------------------------------------------

    def authenticate(self, mechanism: str, response: bytes) -> None:
        """Check the client's login, and then admit or refuse the client."""
        self.connection.hold()
        self.mechanism = sys.intern(mechanism)  # one string for all connections
        connection = self.connection
        decided = partial(self._decided, mechanism)
        self._logins.decide(mechanism, response, self.peer, decided, lambda: connection.finished, self.login_protocol)

    @property
    def login_protocol(self) -> str:
        """The protocol under which the client's logins are counted."""
        return AMQP

    def _decided(self, mechanism: str, verdict: Verdict) -> None:
        """Admit or refuse the client, unless it has disconnected."""
        if self.connection.finished:
            return
        if isinstance(verdict, Refused):
            _log.warning("connection.refused", **self.facts, reason=verdict.reason)
            self.connection.refuse(verdict, mechanism)
            return
        self.user = verdict
        self.connection.admit()

    @property
    def unwritten_bytes(self) -> int:
        """The number of octets of the vhost's records that are not committed yet."""
        return 0 if self.vhost is None else self.vhost.store.unwritten_bytes

    def open(self, vhost: str) -> None:
        """Open a vhost for this connection.

        Raises: 530 for a vhost that does not exist or that the user has no access to, and at a limit of the vhost or
            the user; 541 for a vhost that is down. The order of the checks is RabbitMQ's.
        """
        user = self.known_user
        found = self._vhosts.get(vhost)
        if found is None:
            if self._is_down is None or not self._is_down(vhost):
                raise ConnectionFault(530, f"vhost {vhost} not found")
            self.permissions.check_vhost(user, vhost)
            refused = f"access to vhost '{vhost}' refused for user '{user.name}': vhost '{vhost}' is down"
            raise ConnectionFault(541, refused)
        found.limits.check_connections(vhost, user.name, found.connections)
        self.usage.check(CONNECTIONS, user.name)
        self.permissions.check_vhost(user, vhost)
        self.vhost = found
        found.opened()
        self.usage.open(CONNECTIONS, user.name)
        self.method_budget = MethodBudget(self.connection, found.ports.deadlines)
        self.publish_share = CreditShare(self.connection, found.ports.credit)
        self._log_event("connection.opened")

    def open_channel(self, channel: Channel) -> SessionOfChannel:
        """Create the session of a channel that the client opens. Raises: 530 at the user's limit."""
        assert self.vhost is not None
        self.usage.check(CHANNELS, self.known_user.name)
        session = self.new_session(channel, self.vhost)
        if self._opened is not None:
            self._opened(session)
        self.usage.open(CHANNELS, self.known_user.name)
        return session

    def new_session(self, channel: Channel, vhost: Vhost) -> SessionOfChannel:
        return SessionOfChannel(channel, self, vhost)

    def update_secret(self, secret: bytes, reason: str) -> None:
        """Ignore a new secret, as RabbitMQ does: a password does not expire."""

    def close(self) -> None:
        """Delete the exclusive queues of the connection, and then answer the client's close."""
        if self.vhost is not None:
            self.vhost.closed()
            self.usage.close(CONNECTIONS, self.known_user.name)
            connection = self.connection
            self.vhost.queues.owner_gone(self, connection.answer_close)
            if connection.orderly and not connection.finished:
                connection.hold()
            if connection.orderly or connection.failure is not None:
                self._log_event("connection.closed")
            else:
                _log.warning("connection.lost", **self.facts, reason="the client disconnected without closing")

    def crashed(self, error: Exception) -> None:
        """Log an unexpected exception; the caller closes this connection with 541."""
        _log.error("connection.crashed", **self.facts, exc_info=error)

    def _log_event(self, event: str) -> None:
        """Log an event, at debug level for a client within the process, which may exist for a single HTTP request."""
        (_log.debug if self.peer.inside else _log.info)(event, **self.facts)

    @property
    def facts(self) -> dict[str, str]:
        """The fields that identify the connection in log lines."""
        facts = {"conn": self.name}
        if self.user is not None:
            facts["user"] = self.user.name
        if self.vhost is not None:
            facts["vhost"] = self.vhost.name
        client = self.connection.client_facts
        if client is not None:
            facts["client_id"] = client["client_id"]
        return facts

    def wake_consumers(self) -> None:
        """Wake the consumers, because the client is reading again; the channel that was served last is woken last."""
        numbers = list(self.connection.channels)
        last = self.output_window.last_served
        turn = numbers.index(last) + 1 if last in numbers else 0
        for number in numbers[turn:] + numbers[:turn]:
            channel = self.connection.channels.get(number)
            if channel is not None:
                cast("SessionOfChannel", channel.session).basic.wake()

    @property
    def blocked_max_s(self) -> int | None:
        """The maximum number of seconds for which an alarm may block the connection, or None if there is no limit."""
        return None if self.vhost is None or self.patient else self.vhost.limits.blocked_max_s

    def warn(self, event: str, **fields: object) -> None:
        """Log a warning about the connection."""
        _log.warning(event, **self.facts, **fields)

    def log_unread(self, unread_s: int, unsent_bytes: int) -> None:
        """Log that the client has not read the broker's output for `unread_s`, and name its first consumer, if any."""
        consumers = self._consumers()
        fields: dict[str, Any] = {**self.facts, "unread_s": unread_s, "unsent_bytes": unsent_bytes}
        if not consumers:
            _log.warning("connection.slow", **fields, advice="the client does not read answers: is its process stuck?")
            return
        first = consumers[0]
        fields |= {"queue": first.queue.name, "consumer_tag": first.tag, "consumers": len(consumers)}
        advice = "deliveries wait for the client to read: is its process stuck, or its prefetch too high?"
        _log.warning("consumer.slow", **fields, advice=advice)

    # -- called for operators and timeouts ----------------------------------------------------------------------------

    def force_close(self, text: str, code: int = 320) -> None:
        """Close the connection on the broker's initiative, for the reason `text`."""
        self.connection.fail(ConnectionFault(code, text))

    @property
    def unacked(self) -> int:
        """The number of unacked messages of the client, including those whose acks wait for a commit."""
        return sum([basic.unacked.count + basic.unacked.aside_count for basic in self._basics()])

    def _basics(self) -> list[BasicSession]:
        return [cast("SessionOfChannel", channel.session).basic for channel in self.connection.channels.values()]

    def _consumers(self) -> list[Consumer]:
        return [consumer for basic in self._basics() for consumer in basic.consumers.values()]

    def drain(self) -> None:
        """Stop deliveries to the client, except for replies to its requests, until `end_drain`, which must follow each
        call.
        """
        self.drains += 1
        for consumer in self._consumers():
            if not consumer.takes_replies:
                consumer.shut()

    def end_drain(self) -> None:
        """Resume deliveries, unless another drain is in progress."""
        self.drains -= 1
        for consumer in self._consumers():
            if not consumer.takes_replies:
                consumer.open()

    def cancel_consumers(self) -> int:
        """Cancel all consumers as `expel` does, and return their number."""
        consumers = self._consumers()
        for consumer in consumers:
            consumer.session.expel(consumer)
        return len(consumers)

    def cancel_unreadable(self) -> None:
        """Cancel the consumers whose queue the user may no longer read, as `expel` does."""
        assert self.vhost is not None
        for consumer in self._consumers():
            resource = self.vhost.queue_resource(consumer.queue.name)
            if not self.permissions.allows(self.known_user, resource, "read"):
                _log.warning("consumer.revoked", **self.facts, channel=consumer.session.number, queue=resource.name)
                consumer.session.expel(consumer)

    def forget_publishes(self) -> None:
        """Resolve all publishes of an MQTT client again, because rights have changed."""
        for channel in self.connection.channels.values() if self.client_key else ():
            cast("SessionOfChannel", channel.session).publisher.forget()

    def close_overdue(self, now_ms: int, timeout_ms: int) -> None:
        """Close each channel with a message that has been unacked for too long. A consumer that exceeds only its own
        timeout or that of its queue is cancelled instead if the client supports that.
        Units: `timeout_ms` is the limit for all messages, 0 for none.
        Source: RabbitMQ, consumer_timeout; RabbitMQ 4.3 for timeouts of consumers and queues.
        """
        for basic in self._basics():
            if basic.overdue(now_ms, timeout_ms):
                self._close_timed_out(basic.number, timeout_ms)
                continue
            if fetched_ms := basic.fetched_too_long(now_ms):
                self._close_timed_out(basic.number, fetched_ms)
                continue
            for consumer, upto in basic.timed_out(now_ms):
                own_ms = consumer.timeout_in_force_ms
                fields = {"channel": basic.number, "queue": consumer.queue.name, "consumer_tag": consumer.tag}
                _log.warning("consumer.timed_out", **self.facts, **fields, timeout_ms=own_ms)
                if not self.connection.has_capability("consumer_cancel_notify"):
                    self._close_timed_out(basic.number, own_ms)
                    break
                basic.time_out(consumer, upto)

    def _close_timed_out(self, channel: int, timeout_ms: int) -> None:
        text = (
            f"delivery acknowledgement on channel {channel} timed out. Timeout value used: {timeout_ms} ms. "
            "This timeout value can be configured, see consumers doc guide to learn more"
        )
        self.connection.fail(ChannelError(406, text), channel)
