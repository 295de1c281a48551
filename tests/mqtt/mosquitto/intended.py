"""Intended differences between SlotMQ and Mosquitto 2.0.11, each with its reason."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from tests.mqtt.mosquitto.play import Transcript

__all__ = ["INTENDED", "expected_of"]


@dataclass(frozen=True, slots=True)
class Difference:
    """Substitutions that turn Mosquitto's lines in some conversations into SlotMQ's."""

    conversations: str
    reason: str
    lines: tuple[tuple[str, str], ...]

    def applied(self, said: list[str]) -> list[str]:
        """Return SlotMQ's lines."""
        found = "\n".join(said)
        for pattern, instead in self.lines:
            found = re.sub(pattern, instead, found, flags=re.MULTILINE)
        return [line for line in found.split("\n") if line]


_DISCONNECTED: Final = (r"(?<!malformed\n)^(\w+) closed$", r"\1 DISCONNECT malformed\n\1 closed")

INTENDED: Final[tuple[Difference, ...]] = (
    Difference(
        "connect_cut_short-5 connect_properties_that_cannot_be-5 connect_with_wrong_flags-5",
        "Mosquitto only closes; SlotMQ sends a CONNACK with the reason first.",
        ((r"^(\w+) closed$", r"\1 CONNACK malformed\n\1 closed"),),
    ),
    Difference(
        "connect_twice-5 publish_properties_that_cannot_be-5 packets_that_cannot_be-5 "
        "subscription_identifiers_that_cannot_be-5 topic_aliases_that_cannot_be-5",
        "Mosquitto only closes; SlotMQ sends a DISCONNECT with the reason first.",
        (_DISCONNECTED,),
    ),
    Difference(
        "connect_properties_that_cannot_be-5",
        "Mosquitto accepts authentication data without a method, a protocol error in MQTT 5.",
        ((r"^G CONNACK 0x00$", "G CONNACK malformed\nG closed"),),
    ),
    Difference(
        "connect_with_another_protocol-*",
        "Mosquitto only closes; SlotMQ sends a CONNACK with the code for an unknown version first.",
        ((r"^A closed$", r"A CONNACK 0x01\nA closed"),),
    ),
    Difference(
        "connect_with_an_unknown_version-6 connect_with_an_unknown_version-255 connect_with_another_protocol-5",
        "A client with a version of 5 or higher is answered as in MQTT 5.",
        (("CONNACK 0x01", "CONNACK 0x84"),),
    ),
    Difference(
        "connect_with_a_wrong_password-* connect_without_a_login-*",
        "Mosquitto answers not authorized; RabbitMQ and SlotMQ answer bad user name or password.",
        (("CONNACK 0x05", "CONNACK 0x04"), ("CONNACK 0x87", "CONNACK 0x86")),
    ),
    Difference(
        "a_client_id_is_taken_over-5 a_will_at_take_over-5",
        "Mosquitto only closes; SlotMQ sends a DISCONNECT with the code for a session taken over first.",
        ((r"^A closed$", r"A DISCONNECT 0x8e\nA closed"),),
    ),
    Difference(
        "overlapping_filters-5 subscribe_lists-5",
        "In MQTT 5, Mosquitto sends a copy for each subscription; SlotMQ sends one, as in 3.1.1.",
        ((r"^(A PUBLISH ~/a(?: qos=1)? ?)(#1 )?(.*)(?:\n\1(?:#\d )?\3)+$", r"\1\2\3"),),
    ),
    Difference(
        "overlapping_filters_at_several_qos-4",
        "SlotMQ sends a message once for each QoS of matching subscriptions, which MQTT allows.",
        ((r"^A PUBLISH (~/a) qos=1 #1 (.*)$", r"A PUBLISH \1 \2\n\g<0>"),),
    ),
    Difference(
        "retained-4",
        "SlotMQ sends a message once for each QoS of matching subscriptions, which MQTT allows.",
        ((r"^B PUBLISH ~/a b''$", r"\g<0>\nB PUBLISH ~/a qos=1 #2 b''"),),
    ),
    Difference(
        "packets_that_cannot_be-4",
        "Mosquitto answers a PINGREQ that has a body or wrong flags.",
        ((r"^([EJ]) PINGRESP$", r"\1 closed"),),
    ),
    Difference(
        "packets_that_cannot_be-5",
        "Mosquitto answers a PINGREQ that has a body or wrong flags.",
        ((r"^([EJ]) PINGRESP$", r"\1 DISCONNECT malformed\n\1 closed"),),
    ),
    Difference(
        "properties_pass_through-5",
        "SlotMQ does not send a payload format of 0, the default.",
        (("PayloadFormatIndicator=0 ", ""),),
    ),
    Difference(
        "publishes_that_cannot_be-5",
        "The reason code for an invalid topic is 0x90.",
        ((r"^([ABC]) DISCONNECT malformed", r"\1 DISCONNECT 0x90"),),
    ),
    Difference(
        "topic_aliases_that_cannot_be-5",
        "Mosquitto sends two DISCONNECT packets.",
        ((r"^B DISCONNECT malformed\n", ""),),
    ),
    Difference(
        "topic_aliases_that_cannot_be-5",
        "The reason code for an alias of 0 is 0x94.",
        ((r"^A DISCONNECT malformed", r"A DISCONNECT 0x94"),),
    ),
    Difference(
        "subscribe_filters_that_cannot_be-4",
        "Mosquitto closes the connection; SlotMQ refuses the filter and accepts the others.",
        ((r"^([A-DF]) closed$", r"\1 SUBACK 1 01 80"),),
    ),
    Difference(
        "subscribe_filters_that_cannot_be-5",
        "Mosquitto closes the connection; SlotMQ refuses the filter and accepts the others.",
        ((r"^([A-DF]) DISCONNECT malformed\n\1 closed$", r"\1 SUBACK 1 01 8f"),),
    ),
    Difference(
        "acks_of_unknown_packet_ids-5",
        "Mosquitto sends no reason code for an unknown packet id.",
        ((r"^(B PUBREL #1|C PUBCOMP 77)$", r"\1 0x92"),),
    ),
    Difference(
        "shared_subscription-5",
        "A shared subscription gets no retained messages (MQTT 5, 4.8.2), so packet ids start one lower.",
        ((r"\nA PUBLISH ~/a qos=1 retain #1 b'kept'", ""), ("#2 b'one'", "#1 b'one'"), ("#3 b'two'", "#2 b'two'")),
    ),
    Difference(
        "shared_subscriptions_that_cannot_be-5",
        "A shared subscription without a name or a filter is invalid (MQTT 5, 4.8.2).",
        ((r"^([ABD]) SUBACK 1 00$", r"\1 SUBACK 1 8f"), (r"^C DISCONNECT malformed\nC closed$", "C SUBACK 1 8f")),
    ),
)


def expected_of(name: str, said: Transcript) -> tuple[Transcript, set[Difference]]:
    """Return SlotMQ's expected answers, and the differences that changed any."""
    used = set()
    for difference in INTENDED:
        if any(fnmatchcase(name, pattern) for pattern in difference.conversations.split()):
            instead = [difference.applied(lines) for lines in said]
            if instead != said:
                used.add(difference)
                said = instead
    return said, used
