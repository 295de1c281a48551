"""The settings of the ØMQ bridges, which connect programs with PUB and SUB sockets to exchanges."""

from __future__ import annotations

import re
from typing import Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from broker.settings.fields import SettingsSection, number, text

ENDPOINT: Final = re.compile(r"tcp://\S+:(\d{1,5}|\*)|ipc://\S+")


class ZmqEndpoint(SettingsSection):
    """One ØMQ socket and its exchange."""

    endpoint: str
    """The ØMQ endpoint, such as tcp://127.0.0.1:5556 or ipc:///run/stocks."""
    connect: bool = False
    """Whether to connect to the endpoint instead of binding it."""
    exchange: str = Field(min_length=1, max_length=255)
    """The exchange that the socket is bridged to."""
    vhost: str = text(most=255)
    """The vhost of the exchange; empty means auth.default_vhost."""
    user: str = text(most=255)
    """The user whose permissions the bridge has; empty means auth.default_user."""
    trailing_dot: bool = True
    """Whether the topic frame is the routing key followed by a dot, so that the prefix a.b. means a.b.#. Without the
    dot, a subscription to a.b also matches a.bc."""
    properties: bool = False
    """Whether a third frame contains the properties of the message, as JSON."""
    high_water_messages: int = number(1000, 1, 10_000_000, "messages", "ZMQ_SNDHWM, ZMQ_RCVHWM")
    """How many messages ØMQ queues for a slow peer."""
    subscriptions_max: int = number(10_000, 1, 1_000_000, "subscriptions", "Design of PUB/SUB subsystem in ZeroMQ")
    """How many different subscriptions the bridge forwards; with more, it subscribes to everything."""

    @field_validator("endpoint")
    @classmethod
    def _is_endpoint(cls, endpoint: str) -> str:
        if ENDPOINT.fullmatch(endpoint) is None:
            raise ValueError("should be tcp://address:port or ipc://path")
        return endpoint


class ZmqPublish(ZmqEndpoint):
    """An XPUB socket: ØMQ subscribers get messages of the exchange."""

    slow: Literal["drop", "wait"] = "drop"
    """With drop, ØMQ drops the messages of a subscriber that does not read; with wait, all subscribers wait."""
    queue_max_messages: int = number(100_000, 1, 100_000_000, "messages")
    """How many messages can wait in the queue of the bridge; the oldest are dropped."""


class ZmqSubscribe(ZmqEndpoint):
    """An XSUB socket: the exchange gets messages of ØMQ publishers."""

    persistent: bool = False
    """Whether the messages survive a restart in durable queues."""


class Zmq(SettingsSection):
    """ØMQ programs that exchange messages with this broker; needs slotmq[zmq]."""

    publish: tuple[ZmqPublish, ...] = ()
    """Endpoints from which ØMQ subscribers (SUB, XSUB) get messages, each as a table [[zmq.publish]] with endpoint,
    exchange, and as needed connect, vhost, user, trailing_dot, properties, high_water_messages, subscriptions_max,
    slow, queue_max_messages."""
    subscribe: tuple[ZmqSubscribe, ...] = ()
    """Endpoints to which ØMQ publishers (PUB, XPUB) send messages, each as a table [[zmq.subscribe]] with endpoint,
    exchange, and as needed connect, vhost, user, trailing_dot, properties, high_water_messages, subscriptions_max,
    persistent."""

    @property
    def is_on(self) -> bool:
        return bool(self.publish or self.subscribe)

    @model_validator(mode="after")
    def _bind_once(self) -> Self:
        bound = [one.endpoint for one in (*self.publish, *self.subscribe) if not one.connect]
        for endpoint in bound:
            if bound.count(endpoint) > 1 and not endpoint.endswith(":*"):
                raise ValueError(f"two endpoints are bound to {endpoint}")
        return self
