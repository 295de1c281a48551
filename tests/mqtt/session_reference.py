"""A reference MQTT broker: sessions with their messages at each QoS, and retained messages."""

from __future__ import annotations

from collections.abc import Iterator

from tests.property.mqtt_reference import mqtt_matches

__all__ = ["Copy", "Reference", "Session"]


class Copy:
    """One message for one session.

    Shapes: ``sent`` is True once the client has received the message on the open connection, ``released`` once it has
    received the PUBREL. An optional copy may be lost.
    """

    def __init__(
        self, topic: str, body: bytes, qos: int, published_qos: int, *, retained: bool, optional: bool
    ) -> None:
        self.topic = topic
        self.body = body
        self.qos = qos
        self.published_qos = published_qos
        self.retained = retained
        self.optional = optional
        self.sent = False
        self.released = False
        self.packet_id = 0
        self.marked = False  # whether the next PUBLISH must have the DUP flag

    def __repr__(self) -> str:
        words = [word for word in ("retained", "optional", "sent", "released") if getattr(self, word)]
        return f"{self.topic} {self.body!r} qos={self.qos} {' '.join(words)}"


class Session:
    """One client's subscriptions, all at one QoS, and its unacknowledged copies in order."""

    def __init__(self, qos: int, window: int) -> None:
        self.qos = qos
        self.window = window
        self.lasts = False
        self.exists = False  # whether the session has had a subscription, so that the broker must store it
        self.connected = False
        self.filters: set[str] = set()
        self.copies: list[Copy] = []
        self._settled: list[Copy] = []  # copies whose last acknowledgement may not be on disk yet
        self.maybe_released: set[int] = set()  # packet ids of PUBRELs that may be sent again

    def connect(self, *, lasts: bool, clean: bool) -> None:
        """Start a connection, which ends the earlier one."""
        self.disconnect()
        if clean:
            self._end()
        self.lasts, self.connected = lasts, True

    def disconnect(self) -> None:
        """End the connection: unacknowledged copies are sent again, and copies at QoS 0 may be lost."""
        if not self.connected:
            return
        self.connected = False
        if not self.lasts:
            self._end()
        for copy in self.copies:
            if copy.sent:
                copy.sent, copy.marked = False, True
            elif not copy.released and not copy.packet_id and (copy.retained or not copy.qos):
                copy.optional = True

    def restart(self) -> None:
        """End the connection with the broker.

        Acknowledgements not yet on disk, messages at QoS 0 and copies of retained messages may be lost.
        """
        settled, self._settled = self._settled, []
        self.disconnect()
        if self.exists:
            self.copies[:0] = [copy for copy in settled if not copy.released]
            self.maybe_released |= {copy.packet_id for copy in settled if copy.released}
        for copy in self.copies:
            copy.optional = copy.optional or not copy.qos or copy.retained or copy in settled
            copy.marked = copy.sent = False

    def _end(self) -> None:
        self.exists = False
        self.filters.clear()
        self.copies.clear()
        self._settled.clear()
        self.maybe_released.clear()

    def offer(self, topic: str, body: bytes, qos: int) -> None:
        """Add a published message if a filter matches."""
        if self._matches(topic):
            lower = min(qos, self.qos)
            if lower:
                self._settled.clear()  # the message is on disk, and so are earlier acknowledgements
            self.copies.append(Copy(topic, body, lower, qos, retained=False, optional=not (lower or self.connected)))

    def offer_retained(self, topic: str, body: bytes, qos: int) -> None:
        """Add a retained message for a subscription."""
        self.copies.append(Copy(topic, body, min(qos, self.qos), qos, retained=True, optional=False))

    @property
    def unacknowledged(self) -> list[Copy]:
        """The copies that count for the receive maximum."""
        return [copy for copy in self.copies if copy.sent or copy.released]

    @property
    def is_due(self) -> bool:
        """Whether a PUBLISH must arrive now."""
        waits = any(not (copy.sent or copy.released or copy.optional) for copy in self.copies)
        return self.connected and waits and len(self.unacknowledged) < self.window

    def receive(self, topic: str, body: bytes, qos: int, packet_id: int, *, retained: bool, again: bool) -> Copy:
        """Return the copy of a received PUBLISH. Raises: AssertionError when none may be sent now."""
        said = f"{topic} {body!r} qos={qos} #{packet_id} retained={retained} again={again}"
        found: list[Copy] = []
        for copy in self._possible(qos, retained=retained):
            if (copy.topic, copy.body) == (topic, body) and copy.packet_id in (0, packet_id):
                assert again or not copy.marked, f"{said} lacks the DUP flag"
                found.append(copy)
                if copy.packet_id or not copy.optional:
                    break
            elif qos == 1 and self._may_be_at_qos2(copy):
                copy.qos = 2  # it waits for its sync, so a message at QoS 1 may overtake it
            elif not (copy.optional or retained):
                assert found, f"{said} instead of {copy}"
                break
        assert found, f"{said} is none of {self.copies}"
        # Of equal copies it is the one that has the packet id or must arrive now; if all are optional, the first.
        copy = found[-1] if found[-1].packet_id or not found[-1].optional else found[0]
        if not qos:
            self.copies.remove(copy)
            if copy.published_qos:
                self._settled.append(copy)  # it was logged, and its end may not be
            return copy
        used = [one for one in self.copies if one is not copy and (one.sent or one.released)]
        assert packet_id not in [one.packet_id for one in used], f"{said}: the packet id is in use"
        copy.sent, copy.packet_id, copy.optional = True, packet_id, False
        assert len(self.unacknowledged) <= self.window, f"{said} exceeds the receive maximum"
        return copy

    def _possible(self, qos: int, *, retained: bool) -> Iterator[Copy]:
        for copy in self.copies:
            if copy.retained == retained and not (copy.sent or copy.released):
                if qos == 2 and self._may_be_at_qos2(copy):
                    copy.qos = 2
                if copy.qos == qos:
                    yield copy

    def _may_be_at_qos2(self, copy: Copy) -> bool:
        """Return whether a copy may be sent at QoS 2, because the QoS of the former subscription is unknown."""
        return self.qos == 1 and copy.published_qos == 2 and not self._matches(copy.topic)

    def _matches(self, topic: str) -> bool:
        return any(mqtt_matches(one, topic) for one in self.filters)

    def release(self, copy: Copy) -> None:
        """Record the PUBREL of a copy, whose PUBLISH must not be sent again."""
        copy.released, copy.sent, copy.optional = True, False, False

    def settle(self, copy: Copy) -> None:
        """Record that the client has sent the last acknowledgement of a copy."""
        self.copies.remove(copy)
        copy.sent = False
        self._settled.append(copy)


class Reference:
    """The reference broker."""

    def __init__(self, sessions: dict[str, Session]) -> None:
        self.sessions = sessions
        self.retained: dict[str, tuple[bytes, int]] = {}

    def publish(self, topic: str, body: bytes, qos: int, *, retain: bool) -> None:
        """Publish a message that the tested broker has acknowledged."""
        if retain:
            self.retained.pop(topic, None)
            if body:
                self.retained[topic] = body, qos
        for session in self.sessions.values():
            session.offer(topic, body, qos)

    def subscribe(self, name: str, topic_filter: str) -> None:
        """Add or replace a subscription, and offer it the retained messages."""
        session = self.sessions[name]
        session.filters.add(topic_filter)
        session.exists = True
        for topic, (body, qos) in self.retained.items():
            if mqtt_matches(topic_filter, topic):
                session.offer_retained(topic, body, qos)

    def restart(self) -> None:
        """Restart the broker, which ends every connection."""
        for session in self.sessions.values():
            session.restart()
