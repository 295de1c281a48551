"""The interface through which the protocol machine calls the broker.

Core implements it. A ProtocolError that is raised becomes a close method, Fatal propagates, and any other error
ends this connection with 541.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from broker.amqp.channel import Channel
    from broker.amqp.codec import Method


class ChannelSession(Protocol):
    """Carries out the methods of a channel."""

    def method(self, method: Method) -> None:
        """Carry out any method except basic.publish and those that open and close."""

    def publish(self, payload: bytes, header: bytes, body: bytes) -> None:
        """Publish one message: the raw method, the raw content header, which was measured, and the body."""

    def publish_run(self, payloads: list[bytes], headers: list[bytes], bodies: list[bytes], start: int) -> int:
        """Publish messages from index `start` on, up to the first that needs a detailed check.

        Return the index of the first message that was not published; publish() takes that one. All have equal
        properties.
        """

    def leave(self) -> None:
        """Finish work before the client's channel.close; close() follows."""

    def close(self) -> None:
        """Release what the channel holds. Called exactly once, whatever ended the channel."""


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
        """Release what the connection holds. Called exactly once, after the sessions of all channels."""

    def crashed(self, error: Exception) -> None:
        """Log an unexpected error; the machine then closes this connection, and no other, with 541."""
