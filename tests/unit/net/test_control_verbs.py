"""What the control socket's verbs answer."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.core.vhost import Vhost
from broker.net import control_verbs as verbs
from broker.net.control import ControlRefused
from broker.slots.manager import SlotManager
from broker.slots.slot import Owner


def vhosts_with(manager: SlotManager) -> dict[str, Vhost]:
    """A vhost / with a queue q; the verbs look at a queue's slot manager only."""
    vhost = SimpleNamespace(queues={"q": SimpleNamespace(manager=manager)})
    return {"/": cast("Vhost", vhost)}


def ask(manager: SlotManager, verb: str, **arguments: Any) -> Any:
    """The answer, as it comes out of JSON."""
    known = verbs.control_verbs(vhosts_with(manager), lambda: {"version": "1"})
    return json.loads(json.dumps(known[verb]({"verb": verb, **arguments})))


@pytest.fixture
def manager() -> SlotManager:
    """Five messages in slots of two; one of them leased, and its first message settled."""
    manager = SlotManager(2, 1 << 20)
    for number in range(5):
        manager.publish(f"m{number}", 10)
    slot = manager.get(Owner("local", "w1"))
    assert slot is not None
    manager.settle(slot, manager.take(slot, 1))
    return manager


def test_slots_tells_range_state_owner_settled_bytes_and_where(manager: SlotManager) -> None:
    """Each slot is a row; the ids of neighbouring rows meet."""
    answer = ask(manager, "slots", queue="q")
    assert answer["slot_count"] == 3
    assert [(row["first"], row["end"], row["state"]) for row in answer["slots"]] == [
        (1, 3, "sealed"),
        (3, 5, "sealed"),
        (5, 6, "open"),
    ]
    assert [row["owner"] for row in answer["slots"]] == ["local/w1", None, None]
    assert [row["settled"] for row in answer["slots"]] == [1, 0, 0]
    assert [row["bytes"] for row in answer["slots"]] == [20, 20, 10]
    assert [row["resident"] for row in answer["slots"]] == [True] * 3


def test_slots_of_what_is_not_there_is_refused(manager: SlotManager) -> None:
    """An unknown queue or vhost is named in the refusal."""
    with pytest.raises(ControlRefused, match="no queue 'other' in vhost '/'"):
        ask(manager, "slots", queue="other")
    with pytest.raises(ControlRefused, match="no vhost 'v'"):
        ask(manager, "slots", queue="q", vhost="v")
    with pytest.raises(ControlRefused, match="no queue ''"):
        ask(manager, "slots")


def test_answer_is_bounded(manager: SlotManager, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue with more slots than one answer holds says how many there are."""
    monkeypatch.setattr(verbs, "ROWS_MAX", 2)
    answer = ask(manager, "slots", queue="q")
    assert (len(answer["slots"]), answer["slot_count"]) == (2, 3)


def test_status_sums_up_all_queues(manager: SlotManager) -> None:
    """Status has what the server knows beside the sums over every queue."""
    expected = {
        "version": "1",
        "vhosts": 1,
        "queues": 1,
        "ready": manager.ready,
        "unacked": manager.unacked,
        "slots": 3,
    }
    assert ask(manager, "status") == expected
