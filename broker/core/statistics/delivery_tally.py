"""Count deliveries, fetches and acknowledgements, per queue, per channel and per vhost."""

from __future__ import annotations

from mypy_extensions import mypyc_attr


@mypyc_attr(acyclic=True)  # when compiled, the garbage collector does not visit its instances
class DeliveryTally:
    """Count deliveries and acknowledgements under RabbitMQ's names.

    Units: messages, except `get_empty`, which counts basic.gets that found none. `redeliver` counts redeliveries, which
        the other counts include.
    Invariant: no count decreases.
    """

    __slots__ = ("ack", "deliver", "deliver_no_ack", "get", "get_empty", "get_no_ack", "redeliver")

    def __init__(self) -> None:
        self.deliver = 0
        self.deliver_no_ack = 0
        self.get = 0
        self.get_no_ack = 0
        self.get_empty = 0
        self.redeliver = 0
        self.ack = 0

    def count_get(self, *, again: bool, no_ack: bool) -> None:
        """Count a message fetched by basic.get; `again` if it was redelivered."""
        if no_ack:
            self.get_no_ack += 1
        else:
            self.get += 1
        self.redeliver += again

    def count_empty(self) -> None:
        self.get_empty += 1

    def add(self, other: DeliveryTally) -> None:
        self.deliver += other.deliver
        self.deliver_no_ack += other.deliver_no_ack
        self.get += other.get
        self.get_no_ack += other.get_no_ack
        self.get_empty += other.get_empty
        self.redeliver += other.redeliver
        self.ack += other.ack


@mypyc_attr(acyclic=True)
class ChannelDeliveries(DeliveryTally):
    """Count deliveries and acknowledgements for one channel, for its vhost, and for the level of each message.

    Cost: one call for each batch of deliveries and for each slot of acknowledged messages.
    """

    __slots__ = ("_vhost",)

    def __init__(self, vhost: DeliveryTally) -> None:
        super().__init__()
        self._vhost = vhost

    def delivered(self, level: DeliveryTally, count: int, again: int, no_ack: bool) -> None:
        """Count deliveries to a consumer, of which `again` are redeliveries. HOT."""
        vhost = self._vhost
        if no_ack:
            self.deliver_no_ack += count
            vhost.deliver_no_ack += count  # hot: set directly
            level.deliver_no_ack += count  # hot: set directly
        else:
            self.deliver += count
            vhost.deliver += count  # hot: set directly
            level.deliver += count  # hot: set directly
        if again:
            self.redeliver += again
            vhost.redeliver += again  # hot: set directly
            level.redeliver += again  # hot: set directly

    def acked(self, level: DeliveryTally, count: int) -> None:
        """Count messages that the client acknowledged. HOT."""
        self.ack += count
        self._vhost.ack += count  # hot: set directly
        level.ack += count  # hot: set directly

    def fetched(self, level: DeliveryTally, *, again: bool, no_ack: bool) -> None:
        """Count a message fetched by basic.get; `again` if it was redelivered."""
        for tally in (self, self._vhost, level):
            tally.count_get(again=again, no_ack=no_ack)

    def found_empty(self, level: DeliveryTally) -> None:
        for tally in (self, self._vhost, level):
            tally.count_empty()
