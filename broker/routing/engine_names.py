"""The names of the engines that match topic patterns, and which of them a broker may be told to use."""

from __future__ import annotations

from typing import Any, Final

from broker.routing.dialect import AMQP, TopicDialect
from broker.routing.engines.bitmap import ConstituentBitmap
from broker.routing.engines.conventional import Conventional
from broker.routing.engines.dfa import LazyDfa
from broker.routing.engines.pattern_words import PatternWords
from broker.routing.engines.plain_bitmap import PlainBitmap
from broker.routing.engines.split_once import SplitOnce
from broker.routing.engines.tiered import Tiered
from broker.routing.engines.topic_words import TopicWords
from broker.routing.engines.trie import Trie
from broker.routing.index import TopicEngine

AUTO: Final = "auto"
"""The choice that selects `default_engine`."""

ENGINES: Final[dict[str, type[Any]]] = {
    "conventional": Conventional,
    "split-once": SplitOnce,
    "topic-words": TopicWords,
    "pattern-words": PatternWords,
    "plain-bitmap": PlainBitmap,
    "bitmap": ConstituentBitmap,
    "trie": Trie,
    "dfa": LazyDfa,
    "tiered": Tiered,
}
"""Every engine, by name; each takes a dialect."""

CHOICES: Final = (AUTO, "bitmap", "trie", "dfa")  # the others serve comparison
"""The values of a setting or an exchange argument."""


class UnknownEngine(ValueError):
    """No engine has this name."""


def make_engine(name: str, dialect: TopicDialect = AMQP) -> TopicEngine[Any]:
    """Return a new, empty engine of that name. Raises: UnknownEngine, a ValueError that lists the names."""
    if name == AUTO:
        return default_engine(dialect)
    kind = ENGINES.get(name)
    if kind is None:
        raise UnknownEngine(f"{name!r} is not a topic engine; known are {', '.join((AUTO, *ENGINES))}")
    engine: TopicEngine[Any] = kind(dialect)
    return engine


def default_engine(dialect: TopicDialect = AMQP) -> TopicEngine[Any]:
    """Return a new, empty engine of the default kind."""
    return Tiered(dialect)


def engine_name(engine: TopicEngine[Any]) -> str:
    """Return the name of an engine's kind. Raises: UnknownEngine."""
    for name, kind in ENGINES.items():
        if type(engine) is kind:
            return name
    raise UnknownEngine(f"{type(engine).__name__} is not a topic engine that has a name")
