"""Publishes that wait until this broker has their producer, which another broker of a cluster may have."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from broker.amqp.errors import ProtocolError
from broker.amqp.header_facts import ProducerMark
from broker.core.postponed import Postponed
from broker.core.publishing.producers import Producers
from broker.core.session.client import SessionClient

__all__ = ["publish_later", "republish"]

BASIC_PUBLISH: Final = (60, 40)


def publish_later(
    session: SessionClient, channel: int, producers: Producers, mark: ProducerMark | None, publish: Callable[[], None]
) -> bool:
    """Return False if a publish may use its producer now; otherwise hold the connection, and call `publish` later."""
    assert session.user is not None
    try:
        if mark is not None:
            producers.require(mark.producer, session.user.name)
    except Postponed as postponed:
        session.connection.hold()
        postponed.begin(partial(republish, session, channel, publish, postponed))
        return True
    return False


def republish(
    session: SessionClient, channel: int, publish: Callable[[], None], postponed: Postponed | None = None
) -> None:
    """Publish what waited while the connection was held; no frame is being processed."""
    connection = session.connection
    connection.release()
    try:
        if postponed is not None:
            postponed.check()
        publish()
    except ProtocolError as error:
        error.blame(*BASIC_PUBLISH)
        connection.fail(error, channel)
