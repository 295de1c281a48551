"""The base class of the objects to which a channel's session passes methods and publishes."""

from __future__ import annotations

from typing import Any

from broker.amqp.channel import Channel
from broker.amqp.codec import Method
from broker.core.answers import Mark
from broker.core.session.client import SessionClient
from broker.core.topology.changes import Subject
from broker.core.vhost import Vhost


class ClassSession:
    """Run methods on one channel. In a cluster, each of them may also raise Postponed."""

    __slots__ = ("_channel", "_session", "_vhost")

    def __init__(self, channel: Channel, session: SessionClient, vhost: Vhost) -> None:
        self._channel = channel
        self._session = session
        self._vhost = vhost

    def _answer(self, method: Any, answer: Method, subject: Subject, mark: Mark | None = None) -> None:
        """Answer a method once the changes of its subject are on disk, unless the client requested no answer."""
        if not method.nowait:
            self._vhost.answers.send(self._channel, answer, subject, mark)
