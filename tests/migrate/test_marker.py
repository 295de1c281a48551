"""Numbers of messages that return, and the headers with which messages arrive."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp.commands import Basic

from broker.amqp.client import Received
from broker.amqp.content_header import decode_properties
from broker.amqp.header_edit import encode_header
from broker.migrate.drain import DOUBTFUL, forwarded_header
from broker.migrate.link import MigrationFault
from broker.migrate.marker import Marker, Numbered, Numbering, fingerprint

NOW_S = 1_000_000.0


def delivery(body: bytes = b"x", *, redelivered: bool = True, key: str = "k", **properties: object) -> Received:
    """Return a message of the source."""
    return Received(1, Basic.Deliver("c", 1, redelivered, "e", key), encode_header(properties, len(body)), body)


def forwarded(message: Received, *, doubtful: bool = False) -> bytes:
    """Return the header of message 7."""
    return forwarded_header(Numbered(message, 7, fingerprint(message), doubtful), "p", NOW_S)


def test_a_marker_survives_its_encoding() -> None:
    """The source returns exactly the marker that was sent."""
    marker = Marker("migrate-1", 3, [(2, "abc")], ["def"])
    assert Marker.decode(marker.encode()) == marker
    with pytest.raises(MigrationFault, match="not one of this version"):
        Marker.decode(b'{"producer": 1}')


def test_only_a_message_that_was_delivered_before_takes_an_old_number() -> None:
    """An equal message that is new gets a number of its own."""
    numbering = Numbering(Marker("p", 10, [(8, fingerprint(delivery())), (9, fingerprint(delivery(b"y")))], []))
    assert numbering.number(delivery(redelivered=False)).number == 10
    assert numbering.number(delivery(b"y")).number == 9
    assert numbering.number(delivery(b"z")).number == 11
    assert numbering.absent == 1
    assert numbering.number(delivery()).number == 8
    assert numbering.number(delivery()).number == 12
    assert not numbering.absent


def test_a_message_whose_acknowledgement_the_source_lost_is_marked() -> None:
    """It returns although it was acknowledged: it is published again, and says so."""
    numbering = Numbering(Marker("p", 10, [], [fingerprint(delivery())]))
    assert not numbering.number(delivery(redelivered=False)).doubtful
    assert numbering.number(delivery()).doubtful
    headers = decode_properties(forwarded(delivery(), doubtful=True)).headers
    assert headers == {"x-producer": "p", "x-seq": 7, DOUBTFUL: True}


def test_the_counters_of_a_quorum_queue_change_no_fingerprint() -> None:
    """RabbitMQ adds them on redelivery, with a headers table if there was none; the target does not get them."""
    bare, counted = delivery(), delivery(headers={"x-delivery-count": 2, "x-acquired-count": 1})
    assert fingerprint(bare) == fingerprint(counted) == fingerprint(delivery(headers={}))
    assert fingerprint(bare) != fingerprint(delivery(headers={"n": 1})) != fingerprint(delivery(key="other"))
    assert fingerprint(bare) != fingerprint(delivery(priority=1))
    assert decode_properties(forwarded(counted)).headers == {"x-producer": "p", "x-seq": 7}
    own = decode_properties(forwarded(delivery(headers={}))).headers
    assert own == {"x-producer": "p", "x-seq": 7, "x-producer-table": True}


@pytest.mark.parametrize(
    ("properties", "left"),
    [
        ({"expiration": "60000"}, "60000"),
        ({"expiration": "60000", "timestamp": int(NOW_S) - 20}, "40000"),
        ({"expiration": "60000", "timestamp": int(NOW_S) - 70}, "60000"),
        ({"expiration": "60000", "timestamp": int(NOW_S) + 70}, "60000"),
        ({"expiration": "60000", "headers": {"timestamp_in_ms": int(NOW_S * 1000) - 1500}}, "58500"),
        ({"timestamp": int(NOW_S) - 20}, None),
    ],
)
def test_the_rest_of_the_expiration_is_what_the_message_has(properties: dict[str, Any], left: str | None) -> None:
    """A timestamp within the expiration says when the message was made; without one the time begins again."""
    assert decode_properties(forwarded(delivery(**properties))).expiration == left


def test_a_number_of_the_source_is_replaced() -> None:
    """Headers that mean something to SlotMQ alone were no number at the source."""
    headers = decode_properties(forwarded(delivery(headers={"x-producer": "other", "x-seq": 1, "n": 2}))).headers
    assert headers == {"n": 2, "x-producer": "p", "x-seq": 7}
