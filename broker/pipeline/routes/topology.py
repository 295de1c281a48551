"""Exchanges, queues and bindings as plain values that can be sent to workers, and the files that describe them.

A file is a definitions file of RabbitMQ or SlotMQ, or a list of bindings: a JSON list, JSON lines or CSV. In a list, an
exchange without a type is a topic exchange, unless brokers predeclare it with another type.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from broker.cli.parser import DEFAULT_VHOST
from broker.pipeline.faults import restated
from broker.pipeline.options import text_file
from broker.routing.exchange_types import PREDECLARED

DEFAULT_TYPE: Final = "topic"
CSV_COLUMNS: Final = ("exchange", "pattern", "queue", "type", "vhost")
NAMES: Final = {  # other names of a field -> its name here
    "source": "exchange",
    "routing_key": "pattern",
    "key": "pattern",
    "binding_key": "pattern",
    "destination": "queue",
}
FOR_EXCHANGES: Final = ("all", "exchanges")
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RoutedExchange:
    """An exchange. `alternate` is the name of its alternate exchange, from its arguments or a policy."""

    vhost: str
    name: str
    type: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    alternate: str | None = None


@dataclass(frozen=True, slots=True)
class RoutedBinding:
    """A binding to a queue, or to another exchange."""

    vhost: str
    exchange: str
    key: str
    destination: str
    to_exchange: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def identity(self) -> tuple[str, str, str, str, bool, str]:
        """A value that equal bindings of two topologies share."""
        arguments = repr(sorted(self.arguments.items())) if self.arguments else ""
        return self.vhost, self.exchange, self.key, self.destination, self.to_exchange, arguments

    def __str__(self) -> str:
        kind = "exchange " if self.to_exchange else ""
        return f"{self.exchange or '(default)'} --{self.key}--> {kind}{self.destination}"


@dataclass(frozen=True, slots=True)
class Topology:
    """The exchanges, queues and bindings that decide routes.

    Shapes: `queues` are (vhost, name); the default exchange routes only to these.
    Invariant: each binding occurs once; its exchange and its destination exchange are among `exchanges`.
    """

    exchanges: tuple[RoutedExchange, ...]
    queues: tuple[tuple[str, str], ...]
    bindings: tuple[RoutedBinding, ...]


class BadBindings(ValueError):
    """Invalid bindings; the text is one line for the user."""


def read_bindings(path: Path, vhost: str = DEFAULT_VHOST) -> Topology:
    """Return the topology in a file; entries without a vhost are in `vhost`. Raises: BadBindings."""
    with restated(ValueError, BadBindings):
        text = text_file(path)
    with restated(BadBindings, BadBindings, f"{path}: "):
        return read_text(text, vhost)


def read_text(text: str, vhost: str = DEFAULT_VHOST) -> Topology:
    """Return the topology that a file's text describes. Raises: BadBindings."""
    if not text.lstrip().startswith(("{", "[")):
        return read_rows(csv_rows(text), vhost)
    try:
        whole = json.loads(text)
    except RecursionError:
        raise BadBindings("not valid JSON: it is nested too deeply") from None
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            raise BadBindings(f"not valid JSON: {error}") from None
        whole = []
        for number, line in enumerate(text.splitlines(), 1):
            with restated(ValueError, BadBindings, f"line {number}: not valid JSON: "):
                whole += [json.loads(line)] if line.strip() else []
    if isinstance(whole, dict) and "bindings" in whole:
        return read_definitions(whole, vhost)
    return read_rows([whole] if isinstance(whole, dict) else whole, vhost)


def csv_rows(text: str) -> list[Row]:
    """Return the lines of a CSV text; a first line with `exchange` or `source` is the header. Raises: BadBindings."""
    with restated(csv.Error, BadBindings, "not valid CSV: "):
        lines = [(number, line) for number, line in enumerate(csv.reader(text.splitlines()), 1) if line]
    columns: Sequence[str] = CSV_COLUMNS
    if lines and {"exchange", "source"} & {word.strip().lower() for word in lines[0][1]}:
        columns = [word.strip().lower() for word in lines[0][1]]
        del lines[0]
    for number, line in lines:
        if not min(3, len(columns)) <= len(line) <= len(columns):
            raise BadBindings(f"line {number}: should be exchange,pattern,queue[,type[,vhost]]")
    return [{name: word.strip() for name, word in zip(columns, line, strict=False) if word} for _, line in lines]


def read_rows(rows: Iterable[Any], vhost: str = DEFAULT_VHOST) -> Topology:
    """Return the topology of rows; each row is one binding. Raises: BadBindings."""
    bindings: list[Any] = []
    types: dict[tuple[str, str], str] = {}
    for number, raw in enumerate(rows, 1):
        with restated(BadBindings, BadBindings, f"binding {number}: "):
            if not isinstance(raw, dict):
                raise BadBindings("should be an object")
            row = {NAMES.get(str(name), str(name)): value for name, value in raw.items()}
            binding: dict[str, Any] = {
                "vhost": text_of(row, "vhost", vhost),
                "source": text_of(row, "exchange"),
                "destination": text_of(row, "queue"),
                "destination_type": text_of(row, "destination_type", "queue"),
                "routing_key": text_of(row, "pattern", ""),
                "arguments": row.get("arguments"),
            }
            name = (binding["vhost"], binding["source"])
            default = PREDECLARED.get(binding["source"], DEFAULT_TYPE)
            type_ = text_of(row, "type", types.get(name, default))
            if types.setdefault(name, type_) != type_:
                raise BadBindings(f"exchange '{name[1]}' was of type {types[name]} before, and is {type_} here")
        bindings.append(binding)
        if binding["destination_type"] == "exchange":
            onward = binding["destination"]
            types.setdefault((binding["vhost"], onward), PREDECLARED.get(onward, DEFAULT_TYPE))
    exchanges = [{"vhost": where, "name": name, "type": type_} for (where, name), type_ in types.items() if name]
    return read_definitions({"exchanges": exchanges, "bindings": bindings}, vhost)


def read_definitions(document: Mapping[str, Any], vhost: str = DEFAULT_VHOST) -> Topology:
    """Return the topology that a definitions document or a broker's listing describes. Raises: BadBindings."""
    exchanges: dict[tuple[str, str], RoutedExchange] = {}
    queues: dict[tuple[str, str], None] = {}
    for row in entries(document, "queues"):
        queues[text_of(row, "vhost", vhost), text_of(row, "name")] = None
    for row in entries(document, "exchanges"):
        where, name = text_of(row, "vhost", vhost), text_of(row, "name")
        arguments = table_of(row)
        given = arguments.get("alternate-exchange")
        if given is not None and not isinstance(given, str):
            raise BadBindings(f"exchange '{name}': alternate-exchange should be a text")
        alternate = given or policy_alternate(document, where, name, vhost)
        exchanges[where, name] = RoutedExchange(where, name, text_of(row, "type"), arguments, alternate)
    bindings: dict[Any, RoutedBinding] = {}
    for row in entries(document, "bindings"):
        where, source = text_of(row, "vhost", vhost), text_of(row, "source")
        kind = text_of(row, "destination_type", "queue")
        if kind not in ("queue", "exchange"):
            raise BadBindings(f"a binding of exchange '{source}': destination_type should be queue or exchange")
        to_exchange = kind == "exchange"
        destination, key = text_of(row, "destination"), text_of(row, "routing_key", "")
        if source:  # the default exchange routes to queues by name
            binding = RoutedBinding(where, source, key, destination, to_exchange, table_of(row))
            bindings[binding.identity] = binding
        for name in (source, destination) if to_exchange else (source,):
            if name in PREDECLARED:
                alternate = policy_alternate(document, where, name, vhost)
                exchanges.setdefault((where, name), RoutedExchange(where, name, PREDECLARED[name], {}, alternate))
            elif name and (where, name) not in exchanges:
                raise BadBindings(f"a binding names exchange '{name}' of vhost '{where}', which is not among exchanges")
        if not to_exchange:
            queues[where, destination] = None
    return Topology(tuple(exchanges.values()), tuple(queues), tuple(bindings.values()))


def policy_alternate(document: Mapping[str, Any], vhost: str, name: str, default: str) -> str | None:
    """Return the alternate exchange that a policy defines for an exchange, or None. Raises: BadBindings."""
    best_rank: tuple[float, str] | None = None
    definition: Mapping[str, Any] = {}
    for row in entries(document, "policies"):
        if (
            text_of(row, "vhost", default) != vhost
            or row.get("apply-to", row.get("apply_to", "all")) not in FOR_EXCHANGES
        ):
            continue
        with restated(re.error, BadBindings, f"policy '{row.get('name')}': pattern is not a regular expression: "):
            found = re.search(text_of(row, "pattern"), name)
        priority, given_definition = row.get("priority", 0), row.get("definition") or {}
        if not isinstance(priority, int | float) or not isinstance(given_definition, dict):
            raise BadBindings(f"policy '{row.get('name')}': priority should be a number, and definition an object")
        rank = (-float(priority), str(row.get("name")))
        if found and (best_rank is None or rank < best_rank):
            best_rank, definition = rank, given_definition
    alternate = definition.get("alternate-exchange")
    return alternate if isinstance(alternate, str) else None


def entries(document: Mapping[str, Any], part: str) -> list[Row]:
    """Return the list `part` of a document, or [] if it is missing. Raises: BadBindings."""
    found = document.get(part) or []
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise BadBindings(f"{part} should be a list of objects")
    return found


def text_of(row: Row, name: str, default: str | None = None) -> str:
    """Return a text field, or `default` if it is missing. Raises: BadBindings."""
    value = row.get(name)
    if value is None:
        value = default
    if not isinstance(value, str):
        raise BadBindings(f"{name} is missing" if value is None else f"{name} should be a text")
    return value


def table_of(row: Row) -> dict[str, Any]:
    """Return the arguments of an entry. Some exporters write an empty table as []. Raises: BadBindings."""
    found = row.get("arguments") or {}
    if not isinstance(found, dict):
        raise BadBindings("arguments should be an object")
    return found
