"""The Confirm class on one channel: confirm.select."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pamqp import commands

from broker.amqp.errors import ChannelError

if TYPE_CHECKING:
    from broker.amqp.channel import Channel
    from broker.core.session.channel_confirms import ChannelConfirms
    from broker.core.session.tx import TxSession

__all__ = ["ConfirmSession"]


class ConfirmSession:
    """Turns a channel's confirms on."""

    __slots__ = ("_channel", "_confirms", "_transactions")

    def __init__(self, channel: Channel, confirms: ChannelConfirms, transactions: TxSession) -> None:
        self._channel = channel
        self._confirms = confirms
        self._transactions = transactions

    def select(self, method: commands.Confirm.Select) -> None:
        """Confirm every publish from now on, numbered from 1; a second call changes nothing.

        Raises: ChannelError 406 on a channel with transactions.
        """
        if self._transactions.selected:
            raise ChannelError(406, "cannot switch from tx to confirm mode")
        self._confirms.start()
        if not method.nowait:
            self._channel.send(commands.Confirm.SelectOk())
