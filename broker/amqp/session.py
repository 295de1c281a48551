"""What the protocol machine asks of the broker behind it.

The machine calls these; core implements them. A ProtocolError that they raise becomes a close method, StoreFailed goes
through, and everything else ends this one connection with 541.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from broker.amqp.channel import Channel
    from broker.amqp.codec import Method


class ChannelSession(Protocol):
    """Does what a channel's methods ask."""

    def method(self, method: Method) -> None:
        """Do any method but basic.publish and those of opening and closing."""

    def publish(self, payload: bytes, header: bytes, body: bytes) -> None:
        """Take a whole publish: the raw method, the raw content header, which is measured, and the body."""

    def publish_run(self, payloads: list[bytes], headers: list[bytes], bodies: list[bytes], start: int) -> int:
        """Take whole publishes from place `start` on, as many as there is nothing special about.

        Returns the place of the first that it did not take: publish() takes that one. All have the same properties.
        """

    def leave(self) -> None:
        """Do what has to be done before the client's channel.close; close() follows."""

    def close(self) -> None:
        """Give back what the channel holds. Called exactly once, whatever ended the channel."""


class ConnectionSession(Protocol):
    """Does what a connection's methods ask."""

    def authenticate(self, mechanism: str, response: bytes) -> None:
        """Let the user in, or raise Refused, also for a mechanism that was not offered.

        After connection.hold() the verdict comes later, by connection.admit() or connection.refuse().
        """

    def open(self, vhost: str) -> None:
        """Enter the virtual host, or raise ConnectionFault 530."""

    def open_channel(self, channel: Channel) -> ChannelSession:
        """Return the session of a new channel."""

    def update_secret(self, secret: bytes, reason: str) -> None:
        """Take a new secret for the user of this connection, or raise Refused."""

    def close(self) -> None:
        """Give back what the connection holds. Called exactly once, after the sessions of all channels."""

    def crashed(self, error: Exception) -> None:
        """Log an unexpected error; the machine then closes this connection, and no other, with 541."""
