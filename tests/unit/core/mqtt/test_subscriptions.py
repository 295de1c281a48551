"""The options of subscriptions, as arguments of bindings."""

from __future__ import annotations

from broker.core.mqtt.subscriptions import Subscriptions, match_of, options_of
from broker.mqtt.packets import Subscription
from broker.routing.pattern import AMQP

OPTIONS = "x-mqtt-subscription-opts"


def test_only_options_that_differ_are_arguments() -> None:
    """A plain subscription has no arguments, so its binding is one without options."""
    assert options_of(Subscription("a", 1), 1, 0) == {}
    table = {"id": 5, "no-local": True, "qos": 2, "retain-as-published": True}
    assert options_of(Subscription("a", 2 | 4 | 8), 2, 5) == {OPTIONS: table}


def test_arguments_of_others_mean_nothing() -> None:
    """A binding that an operator made with a strange argument is one without options."""
    for options in ("text", {"id": 0}, {"id": 1 << 28}, {"id": "5", "qos": "2", "no-local": 1}, None):
        match = match_of({OPTIONS: options})
        assert (match.qos, match.identifiers, match.no_local, match.retain_as_published) == (1, b"", False, False)


def test_filters_of_any_length_match() -> None:
    """The limits of binding keys are those of the exchange, which has checked them."""
    key = ".".join(["*"] * 200)
    subscriptions = Subscriptions()
    subscriptions.load([(key, {OPTIONS: {"id": 1}}), ("a", {})], AMQP)
    assert subscriptions.match(".".join("x" * 200)).identifiers == b"\x0b\x01"
    assert subscriptions.match("a").identifiers == b""


def test_the_known_keys_are_bounded() -> None:
    """Any number of routing keys leaves a bounded number of them in memory; other sessions have none of them."""
    subscriptions = Subscriptions()
    subscriptions.load([("#", {OPTIONS: {"id": 1}})], AMQP)
    for number in range(5_000):
        subscriptions.match(f"a.{number}")
    assert len(subscriptions._known) <= 1024
    assert not Subscriptions()._known
