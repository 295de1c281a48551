"""A workload: the statistics of a lake's traffic as one JSON file, from which messages alike can be made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from broker.pipeline.synth.anonymiser import Anonymiser
from broker.pipeline.synth.key_tree import KeyNode

__all__ = ["FORMAT", "BadWorkload", "Header", "Properties", "Rate", "Source", "Workload"]

FORMAT: Final = 1
KIND: Final = "slotmq-workload"

Value = str | int | float | bool
HeaderKind = Literal["text", "number", "fraction", "boolean"]


class BadWorkload(ValueError):
    """A workload file that cannot be used; the text is one line for the user."""


@dataclass(frozen=True, slots=True)
class Source:
    """The messages of one exchange."""

    vhost: str
    exchange: str
    messages: int
    keys: KeyNode


@dataclass(frozen=True, slots=True)
class Rate:
    """How many messages come in a minute.

    Shapes: `profile` are the relative rates of consecutive minutes, 1.0 in the mean: those of a day from midnight on
        where the history has a day or more, else those that there were.
    Units: `burst_factor` is the 99th percentile of the minutes over their mean.
    """

    first_ms: int
    minutes: int
    mean_per_minute: float
    p99_per_minute: float
    max_per_minute: int
    burst_factor: float
    profile: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Properties:
    """One combination of properties, and how many messages of the sample have it."""

    values: Mapping[str, str | int]
    messages: int


@dataclass(frozen=True, slots=True)
class Header:
    """A header: in how many messages of the sample, its frequent values, and how many others there were."""

    name: str
    kind: HeaderKind
    messages: int
    values: tuple[tuple[Value, int], ...]
    rare_values: int
    rare_messages: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Everything that generation looks at.

    Shapes: `sizes` are the body sizes at equal steps from the least to the greatest.
    """

    messages: int
    sources: tuple[Source, ...]
    sizes: tuple[int, ...]
    rate: Rate
    sampled: int
    properties: tuple[Properties, ...] = ()
    headers: tuple[Header, ...] = ()
    bindings: tuple[Mapping[str, Any], ...] = field(default=())
    anonymous: bool = False

    def anonymised(self, anonymiser: Anonymiser) -> Workload:
        """Return the workload with tokens for words, names and values; counts, sizes and times stay."""
        word, name = anonymiser.word, anonymiser.name
        texts = {"content_type", "content_encoding"}  # types of content tell nothing of whose it is
        return Workload(
            self.messages,
            tuple(Source(s.vhost, name(s.exchange), s.messages, s.keys.renamed(word)) for s in self.sources),
            self.sizes,
            self.rate,
            self.sampled,
            tuple(
                Properties(
                    {
                        key: word(value) if isinstance(value, str) and key not in texts else value
                        for key, value in found.values.items()
                    },
                    found.messages,
                )
                for found in self.properties
            ),
            tuple(
                Header(
                    name(header.name),
                    header.kind,
                    header.messages,
                    tuple((_other(value, anonymiser), messages) for value, messages in header.values),
                    header.rare_values,
                    header.rare_messages,
                )
                for header in self.headers
            ),
            tuple(
                {
                    **binding,
                    "exchange": name(binding["exchange"]),
                    "pattern": anonymiser.key(binding["pattern"]),
                    "queue": name(binding["queue"]),
                }
                for binding in self.bindings
            ),
            anonymous=True,
        )

    def to_json(self) -> str:
        """Return the file's text."""
        made = {
            "kind": KIND,
            "format": FORMAT,
            "messages": self.messages,
            "anonymous": self.anonymous,
            "rate": asdict(self.rate),
            "sizes": self.sizes,
            "sources": [
                {"vhost": s.vhost, "exchange": s.exchange, "messages": s.messages, "keys": s.keys.to_json()}
                for s in self.sources
            ],
            "sampled": self.sampled,
            "properties": [asdict(found) for found in self.properties],
            "headers": [asdict(header) for header in self.headers],
            "bindings": list(self.bindings),
        }
        return json.dumps(made, ensure_ascii=False, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Workload:
        """Return the workload of a file's text. Raises: BadWorkload."""
        try:
            found = json.loads(text)
            if found["kind"] != KIND:
                raise BadWorkload("is no workload")
            if found["format"] != FORMAT:
                raise BadWorkload(f"is of format {found['format']}, this version reads {FORMAT}")
            rate = found["rate"]
            made = cls(
                int(found["messages"]),
                tuple(
                    Source(str(s["vhost"]), str(s["exchange"]), int(s["messages"]), KeyNode.from_json(s["keys"]))
                    for s in found["sources"]
                ),
                tuple(int(size) for size in found["sizes"]),
                Rate(**{**rate, "profile": tuple(float(share) for share in rate["profile"])}),
                int(found["sampled"]),
                tuple(Properties(**properties) for properties in found.get("properties", ())),
                tuple(
                    Header(**{**header, "values": tuple((value, int(n)) for value, n in header["values"])})
                    for header in found.get("headers", ())
                ),
                tuple(found.get("bindings", ())),
                bool(found.get("anonymous", False)),
            )
        except BadWorkload:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadWorkload(f"is no workload: {error!r}") from None
        if not made.sources or not made.sizes or not made.rate.profile or made.rate.mean_per_minute <= 0:
            raise BadWorkload("has no messages")
        return made

    @classmethod
    def read(cls, path: Path) -> Workload:
        """Return the workload of a file. Raises: BadWorkload."""
        try:
            return cls.from_json(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise BadWorkload(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
        except BadWorkload as bad:
            raise BadWorkload(f"{path}: {bad}") from None


def _other(value: Value, anonymiser: Anonymiser) -> Value:
    """Return what stands for a header's value; a boolean and a fraction tell nothing."""
    if isinstance(value, str):
        return anonymiser.word(value)
    return value if isinstance(value, bool | float) else anonymiser.number(value)
