"""Random work of several clients, over disconnects, take-overs and restarts, against a reference of MQTT sessions."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.broker_process import BrokerProcess
from tests.mqtt.conftest import mqtt_port, mqtt_process
from tests.mqtt.raw_mqtt import (
    CONNACK,
    PINGRESP,
    PUBACK,
    PUBLISH,
    SUBACK,
    UNSUBACK,
    RawMqtt,
    connect,
    packet,
    text,
)
from tests.mqtt.session_reference import Copy, Reference, Session

PUBREC, PUBREL, PUBCOMP = 0x50, 0x62, 0x70
HOUR: Final = b"\x11\0\0\x0e\x10"
LEVELS: Final = ("a", "b", "")
FILTERS: Final = ("#", "a/#", "+/b", "a/+", "a/b", "b", "+", "/b")
WRITER: Final = "writer"
OPERATIONS: Final = {
    "publish": 40,
    "publish twice": 8,
    "acknowledge": 30,
    "connect": 12,
    "disconnect": 8,
    "subscribe": 12,
    "unsubscribe": 4,
    "restart": 1,
}


class Play:
    """One broker, its clients and the reference."""

    def __init__(self, process: BrokerProcess, seed: int) -> None:
        self.random = random = Random(seed)
        self.process = process
        sessions = {
            f"c{number}": Session(random.choice((0, 1, 2, 2)), random.choice((1, 3, 10))) for number in range(4)
        }
        self.reference = Reference(sessions)
        self.clients: dict[str, RawMqtt] = {}
        self.versions = {name: random.choice((4, 5)) for name in sessions}
        self.released: set[tuple[str, int]] = set()
        self.count: dict[str, int] = {}
        self.number = 0
        self._connect_writer()
        for name in sessions:
            self._enter(name, lasts=True, clean=False)
            self._subscribe_to(name, random.choice(FILTERS))

    def counted(self, what: str) -> None:
        """Count something that happened."""
        self.count[what] = self.count.get(what, 0) + 1

    def work(self, steps: int) -> None:
        """Make random steps, after each of which every client has received what is due."""
        for _ in range(steps):
            [operation] = self.random.choices(list(OPERATIONS), list(OPERATIONS.values()))
            self.counted(operation)
            getattr(self, f"_{operation.replace(' ', '_')}")()
            self._receive_due()

    def finish(self) -> None:
        """Connect and acknowledge until nothing is left, and compare the retained messages."""
        for name, session in self.reference.sessions.items():
            if name not in self.clients:
                self._enter(name, lasts=True, clean=False)
            self._receive_due()
            while session.unacknowledged:
                self._settle(name, session.unacknowledged[0])
                self._receive_due()
            self.clients[name].send(packet(0xC0))
            self._await(name, PINGRESP)
        self.reference.sessions["last"] = Session(2, 10)
        self.versions["last"] = 5
        self._enter("last", lasts=False, clean=True)
        self._subscribe_to("last", "#")
        while self.reference.sessions["last"].is_due:
            self._receive_due()
            for copy in self.reference.sessions["last"].unacknowledged:
                self._settle("last", copy)

    def close(self) -> None:
        """Close the connections of all clients."""
        for client in self.clients.values():
            client.close()

    # -- the operations -----------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        topic = "/".join(self.random.choice(LEVELS) for _ in range(self.random.randint(1, 2))) or "b"
        self.number += 1
        retain = self.random.random() < 0.3
        body = b"" if retain and self.random.random() < 0.3 else b"%d" % self.number
        qos = self.random.choice((0, 1, 1, 2))  # a retained message at QoS 0 need not survive a kill
        self._publish_message(topic, body, max(qos, retain), retain=retain, faulty=False)

    def _publish_twice(self) -> None:
        """Publish at QoS 2 over a connection, or a broker, that ends at some point: the message comes once."""
        self.number += 1
        self._publish_message("a/b", b"%d" % self.number, 2, retain=self.random.random() < 0.2, faulty=True)

    def _publish_message(self, topic: str, body: bytes, qos: int, *, retain: bool, faulty: bool) -> None:
        writer, packet_id = self.clients[WRITER], self.number % 65_535 + 1
        octets = text(topic) + (packet_id.to_bytes(2, "big") if qos else b"") + b"\0" + body
        first = 0x30 | qos << 1 | retain
        writer.send(packet(first, octets))
        if not qos:
            writer.round_trip()
        elif qos == 1:
            writer.expect(PUBACK)
        else:
            if faulty and self.random.random() < 0.5:
                writer = self._break_writer()
                writer.send(packet(first | 8, octets))
            assert writer.expect(PUBREC)[:2] == packet_id.to_bytes(2, "big")
            if faulty and self.random.random() < 0.5:
                writer = self._break_writer()
                if self.random.random() < 0.5:
                    writer.send(packet(first | 8, octets)).expect(PUBREC)
            writer.send(packet(PUBREL, packet_id.to_bytes(2, "big")))
            if faulty and self.random.random() < 0.5:
                writer = self._break_writer()
                writer.send(packet(PUBREL, packet_id.to_bytes(2, "big")))
            writer.expect(PUBCOMP & 0xF0)
        self.reference.publish(topic, body, qos, retain=retain)

    def _break_writer(self) -> RawMqtt:
        if self.random.random() < 0.1:
            self._restart()
        else:
            self.counted("writer")
            self.clients.pop(WRITER).close()
            self._connect_writer()
        return self.clients[WRITER]

    def _acknowledge(self) -> None:
        """Acknowledge some copies in any order, at QoS 2 in one or two steps."""
        name = self.random.choice(list(self.reference.sessions))
        waiting = self.reference.sessions[name].unacknowledged
        if name in self.clients and waiting:
            for copy in self.random.sample(waiting, self.random.randint(1, len(waiting))):
                if copy.qos == 2 and not copy.released and self.random.random() < 0.5:
                    self._release(name, copy)
                else:
                    self._settle(name, copy)
            self.clients[name].send(packet(0xC0))  # before another client's next publish
            self._await(name, PINGRESP)

    def _connect(self) -> None:
        name = self.random.choice(list(self.reference.sessions))
        self.counted("take over" if name in self.clients else "resume")
        self._enter(name, lasts=self.random.random() < 0.9, clean=self.random.random() < 0.1)

    def _disconnect(self) -> None:
        """End a connection, with or without a DISCONNECT."""
        name = self.random.choice(list(self.reference.sessions))
        if name in self.clients:
            client = self.clients.pop(name)
            if self.random.random() < 0.5:
                client.send(packet(0xE0))
            client.close()
            self.reference.sessions[name].disconnect()

    def _subscribe(self) -> None:
        name = self.random.choice(list(self.reference.sessions))
        if name in self.clients:
            self._subscribe_to(name, self.random.choice(FILTERS))

    def _unsubscribe(self) -> None:
        """Remove a subscription, whose messages that are on their way still arrive."""
        name = self.random.choice(list(self.reference.sessions))
        session = self.reference.sessions[name]
        if name in self.clients and session.filters:
            removed = self.random.choice(sorted(session.filters))
            extra = b"\0" if self.versions[name] == 5 else b""
            self.clients[name].send(packet(0xA2, b"\0\1", extra, text(removed)))
            self._await(name, UNSUBACK)
            session.filters.remove(removed)

    def _restart(self) -> None:
        """Stop or kill the broker, and start it again."""
        self.counted("restarts")
        for client in self.clients.values():
            client.close()
        self.clients.clear()
        if self.random.random() < 0.5:
            self.process.kill()
        else:
            assert self.process.terminate() == 0
        self.reference.restart()
        self.process.start()
        self._connect_writer()

    # -- one client ---------------------------------------------------------------------------------------------------

    def _connect_writer(self) -> None:
        self.clients[WRITER] = client = RawMqtt(mqtt_port(self.process))
        client.send(connect(WRITER, clean=False, properties=HOUR)).expect(CONNACK)
        client.send(packet(0x82, b"\0\1\0", text("never"), b"\0")).expect(SUBACK)

    def _enter(self, name: str, *, lasts: bool, clean: bool) -> None:
        """Connect, maybe over a connection that is open, and read the PUBREL packets that come again."""
        session, version = self.reference.sessions[name], self.versions[name]
        if version == 4:
            lasts = lasts and not clean
            clean = not lasts
        exists = session.exists and (session.lasts or not session.connected) and not clean
        session.connect(lasts=lasts, clean=clean)
        window = b"\x21" + session.window.to_bytes(2, "big")
        self.released = {one for one in self.released if one[0] != name}
        older, client = self.clients.pop(name, None), RawMqtt(mqtt_port(self.process))
        if version == 4:
            session.window = 10
        self.clients[name] = client
        properties = (HOUR if lasts else b"") + window if version == 5 else b""
        body = client.send(connect(name, version, clean=clean, properties=properties)).expect(CONNACK)
        assert body[1] == 0
        assert body[0] == exists or not (session.exists or exists), (
            f"{name}: a session is {'' if exists else 'not '}there"
        )
        if older is not None:
            older.close()
        for copy in [copy for copy in session.copies if copy.released]:
            self._await_release(name, copy.packet_id)

    def _subscribe_to(self, name: str, topic_filter: str) -> None:
        session = self.reference.sessions[name]
        extra = b"\0" if self.versions[name] == 5 else b""
        self.clients[name].send(packet(0x82, b"\0\1", extra, text(topic_filter), bytes([session.qos])))
        self.reference.subscribe(name, topic_filter)
        assert self._await(name, SUBACK)[-1] == session.qos

    def _release(self, name: str, copy: Copy) -> None:
        """Send a PUBREC, and wait for the PUBREL."""
        self.clients[name].send(packet(PUBREC, copy.packet_id.to_bytes(2, "big")))
        self._await_release(name, copy.packet_id)
        self.reference.sessions[name].release(copy)

    def _settle(self, name: str, copy: Copy) -> None:
        """Send the last acknowledgement of a copy."""
        if copy.qos == 2 and not copy.released:
            self._release(name, copy)
        kind = PUBCOMP if copy.qos == 2 else PUBACK
        self.clients[name].send(packet(kind, copy.packet_id.to_bytes(2, "big")))
        self.reference.sessions[name].settle(copy)
        self.released.discard((name, copy.packet_id))

    def _receive_due(self) -> None:
        for name, session in self.reference.sessions.items():
            while name in self.clients and session.is_due:
                self._take(name, *self.clients[name].read())

    def _await(self, name: str, kind: int) -> bytes:
        """Return the body of a packet of a kind, after the messages before it."""
        while True:
            first, body = self.clients[name].read()
            if first & 0xF0 == kind:
                return body
            self._take(name, first, body)

    def _await_release(self, name: str, packet_id: int) -> None:
        while (name, packet_id) not in self.released:
            self._take(name, *self.clients[name].read())

    def _take(self, name: str, first: int, body: bytes) -> None:
        """Take a PUBLISH or PUBREL."""
        session = self.reference.sessions[name]
        if first & 0xF0 == PUBREL & 0xF0:
            packet_id = int.from_bytes(body[:2], "big")
            self.released.add((name, packet_id))
            if packet_id in session.maybe_released:
                session.maybe_released.remove(packet_id)
                self.clients[name].send(packet(PUBCOMP, body[:2]))
            return
        assert first & 0xF0 == PUBLISH, f"{name} gets {first:#x} {body!r}"
        qos, end = first >> 1 & 3, 2 + int.from_bytes(body[:2], "big")
        topic, packet_id = body[2:end].decode(), 0
        if qos:
            packet_id, end = int.from_bytes(body[end : end + 2], "big"), end + 2
        if self.versions[name] == 5:
            end += 1 + body[end]
        again = bool(first & 8)
        self.counted("again" if again else "received")
        session.receive(topic, body[end:], qos, packet_id, retained=bool(first & 1), again=again)


def play(folder: Path, seed: int, steps: int) -> dict[str, int]:
    """Return what happened in one play."""
    process = mqtt_process(folder / f"seed-{seed}").start()
    try:
        one = Play(process, seed)
        try:
            one.work(steps)
            one.finish()
        except (AssertionError, EOFError, OSError) as error:
            raise AssertionError(f"seed {seed}, after {one.count}: {error!r}") from error
        finally:
            one.close()
        assert not process.errors(), process.errors()
        return one.count
    finally:
        process.kill()


@pytest.mark.slow
def test_random_sessions(tmp_path: Path) -> None:
    """Every client gets what the reference says, in its order, within its window, marked when it comes again."""
    total: dict[str, int] = {}
    for seed in range(5):
        for what, count in play(tmp_path, seed, 150).items():
            total[what] = total.get(what, 0) + count
    assert min(total[what] for what in (*OPERATIONS, "again", "take over", "resume", "writer")) > 2, total


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_many_random_sessions(tmp_path: Path) -> None:
    """A thousand plays, from a seed that can be given."""
    begin = int(os.environ.get("SLOTMQ_SEED", "1000"))
    for seed in range(begin, begin + 1000):
        play(tmp_path, seed, 300)
