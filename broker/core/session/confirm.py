"""The Confirm class on one channel: confirm.select. What it confirms is counted where it is published."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pamqp import commands

from broker.core.session.publisher import Publisher

if TYPE_CHECKING:
    from broker.amqp.channel import Channel

__all__ = ["ConfirmSession"]


class ConfirmSession:
    """Turns a channel's confirms on."""

    __slots__ = ("_channel", "_publisher")

    def __init__(self, channel: Channel, publisher: Publisher) -> None:
        self._channel = channel
        self._publisher = publisher

    def select(self, method: commands.Confirm.Select) -> None:
        """Has every publish from here on confirmed, numbered from 1; once more changes nothing."""
        self._publisher.confirming = True
        if not method.nowait:
            self._channel.send(commands.Confirm.SelectOk())
