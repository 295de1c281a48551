"""A connection of pika to two nodes: it publishes on one and does everything else on the other."""

from __future__ import annotations

from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.broker_process import BrokerAddress
from tests.integration.pika.conversation import parameters


class SplitConnection(pika.BlockingConnection):  # type: ignore[misc]  # pika has no types
    """A connection to one node, whose channels publish through a connection to another.

    Every publish waits for its confirm, so that what follows it on the first node finds the message. A transaction
    stays on the first node as a whole. Exclusive queues belong to one node: they become shared ones here, which `close`
    deletes.
    """

    def __init__(self, address: BrokerAddress, publishing: BrokerAddress, **options: Any) -> None:
        super().__init__(parameters(address, **options))
        self.publishing = pika.BlockingConnection(parameters(publishing, **options))
        self.own: list[str] = []

    def channel(self, channel_number: int | None = None) -> BlockingChannel:
        """Open a channel on each node."""
        channel = super().channel(channel_number)
        partner = self.publishing.channel()
        partner.confirm_delivery()
        publish, select, declare = channel.basic_publish, channel.tx_select, channel.queue_declare

        def select_here() -> Any:
            channel.basic_publish = publish
            return select()

        def declare_shared(queue: str, passive: bool = False, **options: Any) -> Any:
            is_own = options.pop("exclusive", False)
            answer = declare(queue, passive=passive, **options)
            if is_own:
                self.own.append(answer.method.queue)
            return answer

        channel.basic_publish = partner.basic_publish
        channel.tx_select = select_here
        channel.queue_declare = declare_shared
        return channel

    def close(self, reply_code: int = 200, reply_text: str = "Normal shutdown") -> None:
        """Delete the queues, and close both connections."""
        if self.is_open:
            channel = super().channel()
            for queue in self.own:
                channel.queue_delete(queue)
            super().close(reply_code, reply_text)
        if self.publishing.is_open:
            self.publishing.close()
