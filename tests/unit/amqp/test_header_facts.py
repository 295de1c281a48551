"""The facts that the broker reads from a content header, and the headers that RabbitMQ refuses."""

from __future__ import annotations

import re
import struct
from typing import Any

import pytest
from pamqp import commands, header

from broker.amqp.content_header import measure_header
from broker.amqp.header_facts import MISSING, HeaderFacts, parse_expiration

NAMES = ("reply_to", "user_id", "cc", "bcc", "delay", "fault")


def facts_of(**properties: Any) -> HeaderFacts:
    """Return the facts of these properties."""
    return measure_header(
        header.ContentHeader(body_size=1, properties=commands.Basic.Properties(**properties)).marshal()
    )


def with_header(name: bytes, value: bytes) -> HeaderFacts:
    """Return the facts of a headers table with one entry, of this type octet and octets."""
    entry = bytes([len(name)]) + name + value
    return measure_header(struct.pack(">HHQHI", 60, 0, 1, 1 << 13, len(entry)) + entry)


@pytest.mark.parametrize(
    ("properties", "plain"),
    [
        ({}, (False, -1, None)),
        ({"delivery_mode": 1}, (False, -1, None)),
        ({"delivery_mode": 2}, (True, -1, None)),
        ({"priority": 0}, (False, 0, None)),
        ({"priority": 255, "delivery_mode": 2}, (True, 255, None)),
        ({"expiration": "0"}, (False, -1, 0)),
        ({"expiration": "60000", "priority": 7}, (False, 7, 60000)),
        ({"reply_to": "amq.rabbitmq.reply-to.g1h2.3"}, (False, -1, None)),
        ({"headers": {"c": {"CC": ["a"], "x-delay": 5}, "cc": ["b"], "text": "\x02CC"}}, (False, -1, None)),
    ],
)
def test_plain_facts(properties: dict[str, Any], plain: tuple[bool, int, int | None]) -> None:
    """Ordinary properties are not special, and equal ones share their facts."""
    facts = facts_of(**properties)
    assert (facts.persistent, facts.priority, facts.expiration_ms) == plain
    assert not facts.special
    assert [getattr(facts, name) for name in NAMES] == [None, None, MISSING, MISSING, MISSING, None]
    assert facts_of(**properties, message_id="another") is facts


@pytest.mark.parametrize(
    ("properties", "name", "value"),
    [
        ({"user_id": "guest"}, "user_id", "guest"),
        ({"reply_to": "amq.rabbitmq.reply-to"}, "reply_to", "amq.rabbitmq.reply-to"),
        ({"headers": {"CC": ["a", "b"]}}, "cc", ["a", "b"]),
        ({"headers": {"CC": ["a", 5, None]}}, "cc", ["a", 5, None]),
        ({"headers": {"n": 1, "BCC": []}}, "bcc", []),
        ({"headers": {"x-delay": 5000}}, "delay", 5000),
        ({"headers": {"x-delay": "soon"}}, "delay", "soon"),
        ({"headers": {"x-delay": None}}, "delay", None),
    ],
)
def test_special_facts(properties: dict[str, Any], name: str, value: Any) -> None:
    """Special facts contain the decoded values that the publisher needs, and nothing else."""
    facts = facts_of(**properties, delivery_mode=2, priority=4)
    assert (facts.persistent, facts.priority, facts.special, facts.fault) == (True, 4, True, None)
    absent = {"cc": MISSING, "bcc": MISSING, "delay": MISSING}
    assert {one: getattr(facts, one) for one in NAMES} == {**dict.fromkeys(NAMES), **absent, name: value}


def test_first_of_two_headers_counts() -> None:
    """The first of two headers with one name counts, as in RabbitMQ's list lookup."""
    entries = b"\x02CCA\x00\x00\x00\x06S\x00\x00\x00\x01a" + b"\x02CCV"
    facts = measure_header(struct.pack(">HHQHI", 60, 0, 1, 1 << 13, len(entries)) + entries)
    assert (facts.cc, facts.fault) == (["a"], None)


def test_empty_texts() -> None:
    """An empty property is present."""
    assert measure_header(struct.pack(">HHQHB", 60, 0, 1, 1 << 4, 0)).user_id == ""
    assert measure_header(struct.pack(">HHQHB", 60, 0, 1, 1 << 8, 0)).fault == "invalid expiration '': no_integer"


# RabbitMQ's texts.
FAULTS = [
    ({"expiration": "soon"}, "invalid expiration 'soon': no_integer"),
    ({"expiration": " 5"}, "invalid expiration ' 5': no_integer"),
    ({"expiration": "5 s"}, "invalid expiration '5 s': {leftover_string,\" s\"}"),
    ({"expiration": "1.5"}, "invalid expiration '1.5': {leftover_string,\".5\"}"),
    ({"expiration": "-1"}, "invalid expiration '-1': {value_negative,-1}"),
    ({"expiration": "315360000001"}, "invalid expiration '315360000001': {value_too_large,315360000001}"),
    ({"headers": {"CC": "a"}}, 'invalid message: {unacceptable_type_in_header,"CC",longstr}'),
    ({"headers": {"BCC": None}}, 'invalid message: {unacceptable_type_in_header,"BCC",void}'),
    ({"headers": {"CC": ["k" * 256]}}, "invalid message: a routing key in header CC is longer than 255 bytes"),
    (
        {"headers": {"BCC": ["k", "\u00e9" * 128]}},
        "invalid message: a routing key in header BCC is longer than 255 bytes",
    ),
    ({"headers": {"BCC": 5, "CC": True}}, 'invalid message: {unacceptable_type_in_header,"CC",bool}'),
]


@pytest.mark.parametrize(("properties", "fault"), FAULTS)
def test_faults(properties: dict[str, Any], fault: str) -> None:
    """Headers that RabbitMQ refuses are special and have the text of its 406, of the first fault."""
    facts = facts_of(**properties)
    assert (facts.special, facts.expiration_ms) == (True, None)
    assert facts.fault == fault


@pytest.mark.parametrize("mode", [0, 3, 255])
def test_delivery_modes_that_do_not_exist(mode: int) -> None:
    """A delivery mode other than 1 and 2 is transient and not special."""
    facts = measure_header(struct.pack(">HHQHB", 60, 0, 1, 1 << 12, mode))
    assert (facts.fault, facts.special, facts.persistent) == (None, False, False)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (b"b\x01", "byte"),
        (b"u\x00\x01", "unsignedshort"),
        (b"I\x00\x00\x00\x01", "signedint"),
        (b"L" + bytes(8), "long"),
        (b"x\x00\x00\x00\x00", "binary"),
        (b"F\x00\x00\x00\x00", "table"),
        (b"D" + bytes(5), "decimal"),
    ],
)
def test_type_names(value: bytes, name: str) -> None:
    """A CC of another type is refused with RabbitMQ's name of the type."""
    assert with_header(b"CC", value).fault == f'invalid message: {{unacceptable_type_in_header,"CC",{name}}}'


@pytest.mark.parametrize(
    ("octets", "expiration_ms"),
    [(b"0", 0), (b"5", 5), (b"+5", 5), (b"-0", 0), (b"007", 7), (b"315360000000", 315_360_000_000)],
)
def test_expirations(octets: bytes, expiration_ms: int) -> None:
    """A valid expiration is a whole number of milliseconds up to ten years; a sign and leading zeros are allowed."""
    assert parse_expiration(octets) == expiration_ms


@pytest.mark.parametrize(
    ("octets", "reason"),
    [
        (b"", "no_integer"),
        (b"+", "no_integer"),
        (b"--5", "no_integer"),
        (b" 5", "no_integer"),
        (b"\xd9\xa3", "no_integer"),
        (b"5a", '{leftover_string,"a"}'),
        (b"5_0", '{leftover_string,"_0"}'),
        (b'5"\\\n', '{leftover_string,"\\"\\\\\\n"}'),
        (b"5\x01\t", "{leftover_string,[1,9]}"),
        (b"5\x7f", "{leftover_string,[127]}"),
        (b"-1", "{value_negative,-1}"),
        (b"315360000001", "{value_too_large,315360000001}"),
        (b"9" * 255, "{value_too_large," + "9" * 255 + "}"),
    ],
)
def test_expirations_that_are_none(octets: bytes, reason: str) -> None:
    """An invalid expiration is refused with the Erlang term of RabbitMQ's text."""
    with pytest.raises(ValueError, match=f"^{re.escape(reason)}$"):
        parse_expiration(octets)
