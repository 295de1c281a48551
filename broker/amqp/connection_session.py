"""The interface through which a connection calls the broker; its channels call their own sessions."""

from __future__ import annotations

from typing import Protocol

from broker.amqp.channel import Channel
from broker.amqp.channel_session import ChannelSession

__all__ = ["ConnectionSession"]


class ConnectionSession(Protocol):
    """Carries out the methods of a connection."""

    def authenticate(self, mechanism: str, response: bytes) -> None:
        """Admit the user, or raise Refused, also for a mechanism that was not offered.

        After connection.hold() the decision comes later, by connection.admit() or connection.refuse().
        """

    def open(self, vhost: str) -> None:
        """Open the virtual host, or raise ConnectionFault 530."""

    def open_channel(self, channel: Channel) -> ChannelSession:
        """Return the session of a new channel."""

    def update_secret(self, secret: bytes, reason: str) -> None:
        """Accept a new secret for the user of this connection, or raise Refused."""

    def close(self) -> None:
        """Release what the connection holds. Called exactly once, after the sessions of all channels.

        After connection.hold() close-ok is sent later, by connection.answer_close().
        """

    def crashed(self, error: Exception) -> None:
        """Log an unexpected error; the machine then closes this connection, and no other, with 541."""
