"""Forward messages from ØMQ publishers to an exchange; its bindings become subscriptions."""

from __future__ import annotations

from typing import Any, Final

import zmq
from pamqp import commands

from broker.amqp.codec import encode_method
from broker.amqp.content_header import facts_of
from broker.amqp.header_edit import encode_header
from broker.amqp.lenient_methods import PublishAny
from broker.client.link import ClientLink
from broker.core.definitions.json_text import read_json
from broker.core.vhost import Vhost
from broker.event_log import get_logger
from broker.settings.zmq import ZmqSubscribe
from broker.zeromq.bridge import DATA, SUBSCRIBE, UNLIMITED, UNSUBSCRIBE, Bridge, BridgeContext
from broker.zeromq.interest import DerivedInterest, ExchangeWatch

_log = get_logger()

PERSISTENT: Final = 2
LOCAL, REMOTE = "local", "remote"  # wanted by bindings of this broker, or by the overlay


class SubscribeBridge(Bridge):
    """Publish the messages of an XSUB socket, which subscribes only to the patterns that bindings want.

    Units: `published` counts messages that the broker accepted, `rejected` those that it rejected or did not confirm,
        `unreadable` those that do not have the documented form.
    Invariant: the messages of one ØMQ publisher are published in order.
    """

    kind = "subscribe"
    lingers = False

    def __init__(self, settings: ZmqSubscribe, context: BridgeContext) -> None:
        super().__init__(settings, context, zmq.XSUB)
        self._properties: dict[str, Any] = {"delivery_mode": PERSISTENT} if settings.persistent else {}
        self.interest: DerivedInterest[tuple[str, str], bytes] = DerivedInterest(
            lambda wanted: self.form.prefix(wanted[1]), b"", settings.subscriptions_max
        )
        self._watched: Vhost | None = None
        self._sent = self._settled = 0
        self.published = self.rejected = self.unreadable = 0
        self._logged = 0
        self._message_max_bytes = context.settings.amqp.max_message_size_bytes
        # Never drop a subscription for a publisher that does not read; limit the messages that wait in the socket.
        self.open(
            {
                zmq.SNDHWM: UNLIMITED,
                zmq.RCVHWM: settings.high_water_messages,
                zmq.MAXMSGSIZE: self._message_max_bytes,
            }
        )

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Follow the bindings of the exchange at this broker and, if it takes part in an overlay, at other brokers."""
        vhost, _exchange = self.find()
        if self._watched is vhost:
            return
        self._watched = vhost
        self.interest.clear()  # the patterns of a former vhost with this name
        exchange = self.settings.exchange
        ExchangeWatch(
            vhost,
            exchange,
            wanted=lambda pattern: self._set_wanted(vhost, LOCAL, pattern, wanted=True),
            unwanted=lambda pattern: self._set_wanted(vhost, LOCAL, pattern, wanted=False),
        )
        self.context.follow_overlay(
            self.vhost, exchange, lambda pattern, wanted: self._set_wanted(vhost, REMOTE, pattern, wanted=wanted)
        )

    def _set_wanted(self, vhost: Vhost, site: str, pattern: str, *, wanted: bool) -> None:
        if vhost is not self._watched:
            return
        if wanted:
            self.interest.add((site, pattern))
        else:
            self.interest.remove((site, pattern))
        self.changed.set()

    async def set_up(self, connection: ClientLink) -> None:
        """Enable confirms, and start receiving. Raises: CallRefused."""
        await connection.call(DATA, commands.Confirm.Select())
        self._sent = self._settled = 0
        self.watch()
        self.socket.resume()

    async def apply(self, connection: ClientLink) -> None:
        """Subscribe and unsubscribe; the socket itself repeats the subscriptions to each peer that connects later."""
        added, removed = self.interest.take()
        for prefix in added:
            self.socket.send([SUBSCRIBE + prefix])
        for prefix in removed:
            self.socket.send([UNSUBSCRIBE + prefix])

    # -- messages -----------------------------------------------------------------------------------------------------

    def received(self, frames: list[bytes]) -> None:
        connection = self.connection
        assert connection is not None
        try:
            key, header, body = self._content(frames)
        except ValueError as error:
            self.unreadable += 1
            _log.warning("zmq.message_refused", **self.facts_of_log, reason=str(error))
            return
        except Exception as error:  # noqa: BLE001 - a defect must not affect other messages
            self.unreadable += 1
            _log.error("zmq.message_refused", **self.facts_of_log, exc_info=error)
            return
        method = PublishAny(exchange=self.settings.exchange, routing_key=key)
        connection.client.publish(DATA, encode_method(DATA, method), header, body)
        self._sent += 1

    def _content(self, frames: list[bytes]) -> tuple[str, bytes, bytes]:
        """Return routing key, content header and body. Raises: ValueError."""
        frames_max = 3 if self.settings.properties else 2
        if not 2 <= len(frames) <= frames_max:
            expected = "2 or 3" if frames_max > 2 else "2"
            raise ValueError(f"{len(frames)} frames: it should have {expected}, topic and body first")
        key, body = self.form.key(frames[0]), frames[1]
        properties = self._properties
        if len(frames) > 2:
            given = read_json(frames[2])
            if not isinstance(given, dict) or "user_id" in given:
                raise ValueError("the properties should be a JSON object, without user_id")
            properties = {**properties, **given}
        if len(body) > self._message_max_bytes:
            raise ValueError(f"a body of {len(body)} bytes")
        header = encode_header(properties, len(body))
        fault = facts_of(header).fault
        if fault is not None:
            raise ValueError(fault)
        return key, header, body

    def received_all(self) -> None:
        """Send the publishes of a batch to the broker."""
        if self.connection is not None:
            self.connection.flush()

    def settled(self, tag: int, *, multiple: bool, accepted: bool) -> None:
        """Count confirmed and rejected messages."""
        count = tag - self._settled if multiple else 1
        self._settled += count
        if accepted:
            self.published += count
        else:
            self.rejected += count

    def writable(self, *, is_writable: bool) -> None:
        """Stop receiving while the broker does not read."""
        if not is_writable:
            self.socket.pause()
        elif self.connection is not None:
            self.socket.resume()

    def detached(self) -> None:
        """Stop receiving, and count the messages that were not confirmed."""
        self.socket.pause()
        self.rejected += self._sent - self._settled
        self._sent = self._settled = 0

    async def drain(self) -> None:
        """Publish the messages that have arrived."""
        self.socket.resume()
        self.socket.receive_all()
        self.socket.pause()

    # -- counts -------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Log how many messages were rejected since the last call."""
        if self.rejected > self._logged:
            _log.warning("zmq.messages_rejected", **self.facts_of_log, messages=self.rejected - self._logged)
        self._logged = self.rejected

    def facts(self) -> dict[str, Any]:
        return {
            **super().facts(),
            "messages": self.published,
            "full": 0,
            "rejected": self.rejected,
            "unreadable": self.unreadable,
            "lost": self.rejected + self.unreadable,
        }
