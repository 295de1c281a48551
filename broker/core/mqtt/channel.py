"""The one channel of an MQTT connection: its answers are those of MQTT, so those of AMQP only keep their places."""

from __future__ import annotations

from broker.amqp.channel import Channel
from broker.amqp.codec import Method
from broker.amqp.errors import ChannelError
from broker.amqp.output import UNDECIDED, Withheld

CHANNEL = 1


class MqttChannel(Channel):
    """Sends nothing. An answer that waits for the disk holds back those of MQTT that follow it."""

    __slots__ = ()

    def send(self, method: Method) -> None:
        """Send nothing."""

    def send_content(self, method: Method, header: bytes, body: bytes) -> None:
        """Send nothing."""

    def send_return(self, method: Method, header: bytes, body: bytes) -> None:
        """Send nothing."""

    def withhold(self, method: Method | None, number: int = UNDECIDED) -> Withheld:
        """Keep the place of an answer until the change of that number is on disk."""
        return super().withhold(None, number)

    def begin_closing(self, error: ChannelError) -> None:
        """Do nothing: an error ends the connection."""
