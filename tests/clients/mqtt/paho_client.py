"""paho: `paho_client.py subscribe|publish|read PORT NAME [COUNT]`; `publish` prints acknowledged numbers."""

import sys
from itertools import count
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

command, port, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]
wanted = set(range(1, int(sys.argv[4]) + 1)) if command == "read" else set()
client = paho.Client(CallbackAPIVersion.VERSION2, f"{name}-{command == 'publish'}", protocol=paho.MQTTv5)
client.username_pw_set("guest", "guest")


def received(_client: Any, _data: Any, message: paho.MQTTMessage) -> None:
    """Record a message; end the program after the last one."""
    wanted.discard(int(message.payload))
    if not wanted:
        client.disconnect()


def granted(_client: paho.Client, *_: Any) -> None:
    """End after the answer to a SUBSCRIBE."""
    client.disconnect()


client.on_message = received
client.on_subscribe = granted
lasting = Properties(PacketTypes.CONNECT)
lasting.SessionExpiryInterval = 3600
client.connect("127.0.0.1", port, clean_start=False, properties=lasting)
if command == "publish":
    client.loop_start()
    for number in count(1):
        client.publish(name, str(number), 1).wait_for_publish()
        print(number, flush=True)
elif command == "subscribe":
    client.subscribe(name, 1)
client.loop_forever(retry_first_connection=False)
