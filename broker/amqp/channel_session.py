"""The interface through which a channel calls the broker.

Core implements it. A ProtocolError that is raised becomes a close method, Fatal propagates, and any other error
ends this connection with 541.
"""

from __future__ import annotations

from typing import Protocol

from broker.amqp.codec import Method


class ChannelSession(Protocol):
    """Carries out the methods of a channel."""

    def method(self, method: Method) -> None:
        """Carry out any method except basic.publish and those that open and close."""

    def publish(self, payload: bytes, header: bytes, body: bytes) -> None:
        """Publish one message: the raw method, the raw content header, which was measured, and the body."""

    def publish_run(self, payloads: list[bytes], headers: list[bytes], bodies: list[bytes], start: int) -> int:
        """Publish messages from index `start` on, up to the first that needs a detailed check.

        Return the index of the first message that was not published; publish() takes it. All have equal properties.
        """

    def leave(self) -> None:
        """Finish work before the client's channel.close; close() follows."""

    def close(self) -> None:
        """Release what the channel holds. Called exactly once, whatever ended the channel."""
