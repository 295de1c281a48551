"""Fuzzes the MQTT conversation: the pieces in which octets arrive change neither the packets nor the error.

python -m fuzz.mqtt --inputs 1000000 --seed 7
"""

from __future__ import annotations

import sys
from random import Random
from typing import Any

from broker.mqtt.conversation import CONNECT_MAX_BYTES, EXPECTS_CONNECT, LOGIN, Conversation
from broker.mqtt.errors import PacketError
from broker.mqtt.packet_cutter import PublishRun
from broker.mqtt.packets import Acks, read_publish_properties
from broker.mqtt.topics import binding_key, routing_key, topic_of
from fuzz.campaign import main
from fuzz.mqtt_grammar import conversation
from fuzz.mutation import flip_bit, pieces, set_number, set_octet
from tests.mqtt.mosquitto.conversations import CONVERSATIONS

LIMIT_BYTES = 30_000
LEVELS_MAX = 64
HEADER_MAX_BYTES = 5
MUTATORS = [flip_bit, set_number, set_octet]


def flat(value: Any) -> Any:
    """Return a packet as comparable values."""
    if isinstance(value, list):
        return [flat(one) for one in value]
    if not type(value).__module__.startswith("broker."):
        return value
    names = [name for name in dir(value) if not name.startswith("_")]  # compiled classes have no __slots__
    fields = {name: getattr(value, name) for name in names}
    return type(value).__name__, {name: flat(one) for name, one in fields.items() if not callable(one)}


def publishes(run: PublishRun) -> list[Any]:
    """Return a run as single publishes."""
    return [
        ("publish", run.qos, run.retain, run.properties, topic, packet_id, body)
        for topic, packet_id, body in zip(run.topics, run.packet_ids, run.bodies, strict=True)
    ]


def talk(chunks: list[bytes]) -> tuple[list[Any], int]:
    """Return the packets that a conversation cuts out of chunks, and the code of the error that ends it, or 0."""
    talk = Conversation(LIMIT_BYTES)
    found: list[Any] = []
    try:
        for chunk in chunks:
            talk.feed(chunk)
            while (cut := talk.next_packet()) is not None:
                if isinstance(cut, PublishRun):
                    found += publishes(cut)
                elif isinstance(cut, Acks):
                    found += [("ack", cut.octet, packet_id, cut.reason_code) for packet_id in cut.packet_ids]
                else:
                    found.append(flat(cut))
                if talk.state == LOGIN:
                    talk.accept()
            if talk.state == EXPECTS_CONNECT:
                assert talk.buffered_bytes < HEADER_MAX_BYTES + CONNECT_MAX_BYTES, "too much is kept before the login"
    except PacketError as fault:
        error = fault
    else:
        return found, 0
    assert talk.refusal(error.reason_code, error.text)[:1] in (b"", b"\x20", b"\xe0")
    return found, error.reason_code


def examine(found: list[Any]) -> None:
    """Translate the topics, filters and properties of packets, none of which may raise anything but a PacketError."""
    for one in found:
        try:
            if one[0] == "publish":
                key = routing_key(one[4], LEVELS_MAX)
                assert topic_of(key) == one[4]
                read_publish_properties(one[3])
            elif one[0] == "Subscribe":
                for _kind, subscription in one[1]["subscriptions"]:
                    binding_key(subscription["topic_filter"], LEVELS_MAX)
        except PacketError:
            continue


def recorded(rng: Random) -> list[bytes]:
    """Return what one connection sends in a conversation that was recorded from Mosquitto."""
    steps = CONVERSATIONS[rng.choice(list(CONVERSATIONS))]
    name = rng.choice(steps)[0]
    return [octets for one, octets in steps if one == name and isinstance(octets, bytes)] or [b""]


def check(rng: Random) -> str:
    """Cut one mutated conversation, and return its outcome."""
    packets = recorded(rng) if rng.random() < 0.3 else conversation(rng, rng.choice([4, 5]))
    if rng.random() < 0.02:
        packets[0] = b"\x10\xa0\x9c\x01" + rng.randbytes(20_000)  # more than a login may have
    for _ in range(rng.choice([0, 0, 1, 1, 2])):
        rng.choice(MUTATORS)(rng, packets)
    octets = b"".join(packets)
    expected, code = talk([octets[at : at + 1] for at in range(len(octets))] if len(octets) < 2000 else [octets])
    found, found_code = talk(pieces(rng, octets))
    assert (found, found_code) == (expected, code)
    examine(found)
    if not code:
        return "open" if found else "waits"
    return f"0x{code:02x}"


if __name__ == "__main__":
    sys.exit(main("mqtt", check))
