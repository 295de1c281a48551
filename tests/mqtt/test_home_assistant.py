"""Home Assistant's start, as its MQTT client does it: paho, MQTT 5, all subscriptions in one packet, discovery."""

from __future__ import annotations

import queue
import socket
from pathlib import Path
from typing import Any, Final

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from tests.deadline import DEADLINE_S
from tests.mqtt.conftest import mqtt_port, mqtt_process
from tests.mqtt.raw_mqtt import PUBACK, PUBLISH, SUBACK, RawMqtt, publish, subscribe

DEVICES: Final = 2000
TOPICS: Final = (
    [("homeassistant/status", 0), ("homeassistant/+/+/config", 0), ("homeassistant/+/+/+/config", 0)]
    + [(f"zigbee2mqtt/device-{number}", 0) for number in range(200)]
    + [(f"zigbee2mqtt/device-{number}/availability", 1) for number in range(200)]
)


class HomeAssistant:
    """paho as Home Assistant uses it: a birth and a will with RETAIN, and a large receive buffer."""

    def __init__(self, port: int) -> None:
        self.client = client = paho.Client(
            CallbackAPIVersion.VERSION2, "home-assistant", protocol=MQTTProtocolVersion.MQTTv5
        )
        self.received: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self._granted: queue.Queue[list[int]] = queue.Queue()
        client.username_pw_set("guest", "guest")
        client.will_set("homeassistant/status", "offline", 0, retain=True)
        client.on_message = self._receive
        client.on_subscribe = self._grant
        client.on_socket_open = self._enlarge
        client.connect("127.0.0.1", port, 60, clean_start=True)
        client.loop_start()

    def _receive(self, _client: paho.Client, _data: Any, message: paho.MQTTMessage) -> None:
        self.received.put(message)

    def _grant(self, _client: Any, _data: Any, _mid: int, codes: list[Any], _properties: Any) -> None:
        self._granted.put([code.value for code in codes])

    def _enlarge(self, _client: Any, _data: Any, opened: Any) -> None:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2 << 20)

    def subscribe(self, *filters: tuple[str, int]) -> list[int]:
        """Subscribe to a list in one packet, and return the codes."""
        self.client.subscribe(list(filters))
        return self._granted.get(timeout=DEADLINE_S)

    def take(self, count: int) -> dict[str, bool]:
        """Return the topics of the next messages with their RETAIN."""
        messages = [self.received.get(timeout=DEADLINE_S) for _ in range(count)]
        return {message.topic: message.retain for message in messages}

    def vanish(self) -> None:
        """Close the socket without a DISCONNECT, so that the will is published."""
        opened = self.client.socket()
        assert isinstance(opened, socket.socket)
        opened.shutdown(socket.SHUT_RDWR)
        self.client.loop_stop()


@pytest.mark.slow
def test_home_assistant_starts(tmp_path: Path) -> None:
    """All subscriptions are granted, each start gets every device's discovery message, and the will says its end."""
    process = mqtt_process(tmp_path / "folder").start()
    try:
        expected = {f"homeassistant/sensor/device-{number}/config": True for number in range(DEVICES)}
        with RawMqtt(mqtt_port(process)) as devices:
            devices.enter("zigbee2mqtt")
            packets = [publish(topic, b"{}" * 200, n, flags=1) for n, topic in enumerate(expected, 1)]
            devices.send(*packets)
            for _ in packets:
                devices.expect(PUBACK)
        for start in range(2):
            assistant = HomeAssistant(mqtt_port(process))
            assert assistant.subscribe(*TOPICS) == [qos for _, qos in TOPICS]
            status = {"homeassistant/status": True} if start else {}
            assert assistant.take(DEVICES + len(status)) == expected | status
            assert assistant.subscribe(("homeassistant/+/+/config", 0)) == [0]
            assert assistant.take(DEVICES) == expected, "a subscription again gets the retained messages again"
            assistant.client.publish("homeassistant/status", "online", 0, retain=True)
            birth = assistant.received.get(timeout=DEADLINE_S)
            assert (birth.payload, birth.retain) == (b"online", False)
            with RawMqtt(mqtt_port(process)) as device:
                device.enter("tasmota", 4)
                device.send(subscribe(1, ("homeassistant/status", 0), properties=None)).expect(SUBACK)
                assert device.expect(PUBLISH).endswith(b"online")
                assistant.vanish()
                assert device.expect(PUBLISH).endswith(b"offline")
            process.restart(kill=False)
    finally:
        process.kill()
