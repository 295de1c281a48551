"""The same conversations with Mosquitto and with SlotMQ: answers, codes, deliveries, redeliveries, ends."""

from __future__ import annotations

import pytest

from tests.broker_process import BrokerProcess
from tests.mqtt.conftest import mqtt_port
from tests.mqtt.mosquitto.conversations import CONVERSATIONS
from tests.mqtt.mosquitto.intended import INTENDED, expected_of
from tests.mqtt.mosquitto.play import Transcript, play, read_recording, step_texts

QUIET_S = 0.01
BY_MOSQUITTO = read_recording()
EXPECTED = {name: expected_of(name, said) for name, said in BY_MOSQUITTO.items()}


@pytest.fixture(scope="module")
def said(request: pytest.FixtureRequest, shared_mqtt: BrokerProcess) -> dict[str, Transcript | str]:
    """Provide SlotMQ's answers in the conversations of the selected tests, played concurrently."""
    names = [
        str(item.callspec.params["name"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path and "said" in item.fixturenames
    ]
    return play(mqtt_port(shared_mqtt), names, QUIET_S, expected={name: EXPECTED[name][0] for name in names})


def test_every_conversation_is_recorded() -> None:
    """Each conversation as it is now has Mosquitto's answers; `python -m tests.mqtt.mosquitto.record` records them."""
    assert sorted(set(CONVERSATIONS) - set(BY_MOSQUITTO)) == []


def test_each_intended_difference_occurs() -> None:
    """Each difference changes at least one line of Mosquitto's."""
    used = {difference for _, differences in EXPECTED.values() for difference in differences}
    assert [one for one in INTENDED if one not in used] == []


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_slotmq_says_what_mosquitto_says(name: str, said: dict[str, Transcript | str]) -> None:
    """SlotMQ's transcript is Mosquitto's, except for the intended differences."""
    heard, expected = said[name], EXPECTED[name][0]
    assert not isinstance(heard, str), f"{name}: {heard}"
    for step, wanted, got in zip(step_texts(name), expected, heard, strict=True):
        lines = [*(f"  - {line}" for line in wanted), *(f"  + {line}" for line in got)]
        assert wanted == got, "\n".join([f"{name}, at {step}", "- Mosquitto, + SlotMQ", *lines])
