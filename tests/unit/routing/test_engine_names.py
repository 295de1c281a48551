"""The engines by name, and the names that a setting may have."""

from typing import get_args

import pytest

from broker.routing.exchange_types import ExchangeArgumentError, make_exchange
from broker.routing.index import AUTO, CHOICES, DEFAULT, ENGINES
from broker.routing.pattern import AMQP, MQTT, TopicDialect
from broker.settings import Routing


def test_every_engine_is_made_by_its_name() -> None:
    """The engine of an exchange is of the class of its name."""
    for name in CHOICES:
        exchange = make_exchange("x", "topic", topic_index=name)
        kind = ENGINES[DEFAULT if name == AUTO else name]
        assert type(exchange._index._engine) is kind  # type: ignore[attr-defined]


@pytest.mark.parametrize("dialect", [AMQP, MQTT])
def test_auto_is_the_default_of_the_dialect(dialect: TopicDialect) -> None:
    """auto selects the default engine, which uses the dialect."""
    exchange = make_exchange("x", "topic", arguments={"x-topic-dialect": dialect.name}, topic_index=AUTO)
    assert exchange.index_name == DEFAULT
    exchange.bind("q", "a/+" if dialect is MQTT else "a.*", {})
    assert exchange.route("a/b" if dialect is MQTT else "a.b").destinations == ("q",)


def test_the_setting_offers_what_an_exchange_may_ask_for() -> None:
    """The setting offers the same names as the exchange argument, in the same order."""
    assert get_args(Routing.model_fields["topic_index"].annotation) == CHOICES


@pytest.mark.parametrize("name", ["linear", "conventional", "", 1, None, True, b"trie"])
def test_other_indexes_are_refused(name: object) -> None:
    """A topic exchange refuses an unknown index; other exchanges ignore the argument."""
    arguments = {"x-topic-index": name}
    with pytest.raises(ExchangeArgumentError, match="'x-topic-index' must be one of auto, "):
        make_exchange("x", "topic", arguments=arguments)
    with pytest.raises(ExchangeArgumentError, match="'x-topic-index' must be one of auto, "):
        make_exchange("x", "x-delayed-message", arguments={**arguments, "x-delayed-type": "topic"})
    assert make_exchange("x", "direct", arguments=arguments).index_name is None


@pytest.mark.parametrize("name", [choice for choice in CHOICES if choice != AUTO])
def test_the_argument_goes_before_the_setting(name: str) -> None:
    """The exchange argument overrides the setting, which is the default."""
    other = next(choice for choice in CHOICES if choice not in (AUTO, name))
    assert make_exchange("x", "topic", topic_index=name).index_name == name
    assert make_exchange("x", "topic", topic_index=other, arguments={"x-topic-index": name}).index_name == name
    automatic = make_exchange("x", "topic", topic_index=other, arguments={"x-topic-index": AUTO})
    assert automatic.index_name == DEFAULT
