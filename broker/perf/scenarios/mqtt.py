"""The scenario `mqtt`: publishers and subscribers at QoS 0, 1 or 2, on any MQTT 3.1.1 or 5 broker."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from selectors import EVENT_READ, EVENT_WRITE
from typing import Any, Final

from broker.perf import flags
from broker.perf.conductor import Conductor
from broker.perf.faults import BadOptions
from broker.perf.mqtt_wire import MQTT_PORTS, VERSIONS, MqttPeer, PacketScanner, publish
from broker.perf.outcome import time_figures
from broker.perf.parts import Consumers, Load, Publishers
from broker.perf.peer import BUFFER_BYTES, send_some
from broker.perf.process_group import Interruption
from broker.perf.progress import RunProgress
from broker.perf.receiver import Receiver, ReceiverPace
from broker.perf.result import Figure, Result
from broker.perf.scenarios import SCENARIOS
from broker.perf.sender import Sender
from broker.perf.spool import STAMP_BYTES, Material, Spool
from broker.perf.topology import own_name

_PACKET_IDS: Final = 0xFFFF


def add_mqtt(commands: Any) -> None:
    """Add the parser of mqtt."""
    parser = flags.add_scenario(commands, "mqtt", SCENARIOS["mqtt"], "mqtt://guest:guest@127.0.0.1:1883", MQTT_PORTS)
    load = parser.add_argument_group("load")
    ids = flags.at_most(flags.count, _PACKET_IDS, "MQTT has packet ids")
    flags.add(load, "-x --publishers --producers", "N", flags.count_or_none, "publishers", 1)
    flags.add(load, "-y --subscribers --consumers", "N", flags.count_or_none, "subscribers, each gets all messages", 1)
    load.add_argument("-Q", "--qos", type=int, choices=(0, 1, 2), default=0, help="of publishes and subscriptions")
    load.add_argument("-V", "--protocol", choices=tuple(VERSIONS), default="5", help="version of MQTT, default 5")
    sizes = flags.at_most(flags.size, BUFFER_BYTES // 4, "this client accepts")
    flags.add(load, "-s --size", "SIZE", sizes, "size of a payload in bytes", STAMP_BYTES)
    flags.add(load, "-t --topic", "NAME", str, "the topic, default one of the run's own")
    flags.add(load, "--topics", "N", ids, "N topics below it, subscribed to by NAME/#")
    flags.add(load, "-c --confirm", "N", ids, "unacknowledged messages of a publisher", 1000)
    flags.add(load, "-P --prefetch", "N", ids, "the receive maximum of a subscriber (MQTT 5)", 0)
    flags.add_flow(load, "subscriber")
    flags.add_switch(load, "--retain", "publish retained messages, which stay in the broker")
    flags.add_switch(load, "--shared", "one shared subscription: each message reaches one subscriber")
    flags.add_switch(load, "--lasting", "subscribe with sessions that last, and delete them at the end")
    flags.add_time(load)


@dataclass(frozen=True, slots=True)
class MqttMaterial(Material):
    """The parameters from which PUBLISH packets are encoded."""

    level: int = 5
    qos: int = 0
    retain: bool = False
    client_id: str = ""  # the prefix of each client's id
    lasting: bool = False

    def encoded(self, key: str, number: int, body: bytes) -> bytes:
        """Return a message as it is sent, with packet id `number`."""
        return publish(self.level, key, body, self.qos, number, retain=self.retain)


def run_mqtt(options: argparse.Namespace, progress: RunProgress) -> Result:
    """Publish to the subscribers. Raises: BadOptions, Fault, RunFailed, OSError."""
    if not options.producers and (options.topic is None or not options.consumers):
        raise BadOptions("-x 0 receives what others publish: name the topic with -t, and subscribers with -y")
    level, own = VERSIONS[options.protocol], own_name()
    first = MqttPeer(options.uri, own, level)
    first.close()
    if options.qos > first.qos_max:
        raise BadOptions(f"--qos {options.qos}: the broker has QoS {first.qos_max} at most")
    with Interruption() as interruption:
        outcome = Conductor(_load(options, own, level), progress, interruption, options.pid).run()
    figures = time_figures("from_send", outcome.sent_times) if options.rate else {}
    expected = outcome.tally.published * (1 if options.shared else options.consumers)
    lost = expected - outcome.tally.delivered
    if options.producers and not options.cmessages and not options.qos and lost > 0:
        figures["lost"] = Figure(lost, "messages")  # at QoS 0 a loss is not a failure
    return outcome.result(options, f"MQTT {options.protocol}", figures, None)


def _load(options: argparse.Namespace, own: str, level: int) -> Load:
    base = options.topic or own
    topics = [f"{base}/{number:05d}" for number in range(options.topics)] if options.topics else [base]
    topic_filter = f"{'$share/perf/' if options.shared else ''}{base}{'/#' if options.topics else ''}"
    window = options.confirm if options.qos else 0
    keys = tuple(topics * -(-max(1, window) // len(topics)))
    material = MqttMaterial("", keys, options.size, level=level, qos=options.qos, retain=options.retain,
                            client_id=own, lasting=options.lasting)  # fmt: skip
    copies = 1 if options.shared else options.consumers
    copies = copies if options.qos and options.producers else None
    demand = ReceiverPace(1 if options.qos else 0, options.size, options.consumer_rate)
    load = flags.load_of(options, material, [topic_filter], copies=copies, demand=demand)
    return replace(load, window=window, publishing=MqttPublishers, consuming=MqttSubscribers)


class MqttSender(Sender):
    """Publish, and answer PUBRECs between two slices of messages."""

    scanner: PacketScanner
    _answers = b""

    def interest(self, now_ns: int) -> int:
        return EVENT_READ | EVENT_WRITE if self._answers else super().interest(now_ns)

    def push(self, now_ns: int) -> None:
        """Send the pending bytes, then the answers, and only then the next slice. Raises: OSError."""
        if not self._pending:
            self._answers = send_some(self._socket, self._answers + self.scanner.take_answers())
        if not self._answers:
            super().push(now_ns)


class MqttPublishers(Publishers):
    """The publishing clients of one process."""

    def _member(self, number: int, room_bytes: int) -> Sender:
        load = self._share.load
        material = load.material
        assert isinstance(material, MqttMaterial)
        client_id = f"{material.client_id}-x{number}"
        peer = MqttPeer(load.address, client_id, material.level, unsent_bytes=load.unsent_bytes)
        spool = Spool(material, load.first_key(number), room_bytes)
        messages = spool.length // spool.stride
        pace = replace(load.pace(number), window=min(load.window, peer.receive_maximum, messages))
        sender = MqttSender(peer, spool, pace, self._confirm_times, load.unsent_bytes)
        sender.scanner.packet_ids = messages
        return sender


class MqttReceiver(Receiver):
    """Receive messages, and acknowledge those of QoS 1 and 2."""

    scanner: PacketScanner

    def _scan(self, buffer: bytearray, end: int) -> int:
        done = super()._scan(buffer, end)
        self._out = send_some(self._socket, self._out + self.scanner.take_answers())
        return done

    def _ack(self, upto: int) -> None:
        self.acked = upto  # `_scan` sends the acknowledgements


class MqttSubscribers(Consumers):
    """The subscribing clients of one process."""

    def _connect(self, load: Load, consumer: int) -> Iterator[Receiver]:
        material = load.material
        assert isinstance(material, MqttMaterial)
        client_id = f"{material.client_id}-y{consumer}"
        peer = MqttPeer(
            load.address, client_id, material.level, lasting=material.lasting, receive_maximum=load.prefetch
        )
        for topic_filter in load.queues[consumer]:
            peer.subscribe(topic_filter, material.qos)
        yield MqttReceiver(peer, load.demand, self._latencies, self._quota)
