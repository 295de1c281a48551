"""Files with bindings to test, in every supported format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.pipeline.routes.topology import (
    BadBindings,
    RoutedBinding,
    RoutedExchange,
    Topology,
    read_bindings,
    read_definitions,
    read_text,
)

WANTED = (
    RoutedBinding("/", "ex", "a.*", "q1"),
    RoutedBinding("/", "amq.direct", "b", "q2"),
)

RULED = '{"bindings": [], "exchanges": [{"name": "e", "type": "topic"}], "policies": [{"pattern": "e", ?}]}'
ARGUED = '{"bindings": [], "exchanges": [{"name": "e", "type": "fanout", "arguments": {"alternate-exchange": 5}}]}'


@pytest.mark.parametrize(
    "text",
    [
        "ex,a.*,q1\namq.direct,b,q2\n",
        "exchange,queue,pattern\nex,q1,a.*\namq.direct,q2,b\n",
        (
            '{"exchange": "ex", "pattern": "a.*", "queue": "q1"}\n'
            '{"exchange": "amq.direct", "pattern": "b", "queue": "q2"}'
        ),
        json.dumps(
            [
                {"source": "ex", "routing_key": "a.*", "destination": "q1", "vhost": "/", "arguments": {}},
                {"source": "amq.direct", "routing_key": "b", "destination": "q2", "destination_type": "queue"},
            ]
        ),
        json.dumps(
            {
                "exchanges": [{"name": "ex", "type": "topic"}],
                "bindings": [
                    {"source": "ex", "routing_key": "a.*", "destination": "q1"},
                    {"source": "amq.direct", "routing_key": "b", "destination": "q2", "arguments": []},
                    {"source": "amq.direct", "routing_key": "b", "destination": "q2"},
                ],
            }
        ),
    ],
    ids=["csv", "csv with a head", "json lines", "json list", "definitions"],
)
def test_every_form_says_the_same(tmp_path: Path, text: str) -> None:
    """Exchanges without a type in the file are topic exchanges; predeclared ones have their own type."""
    path = tmp_path / "bindings"
    path.write_text(text)
    topology = read_bindings(path)
    assert topology.bindings == WANTED
    assert {entry.name: entry.type for entry in topology.exchanges} == {"ex": "topic", "amq.direct": "direct"}
    assert topology.queues == (("/", "q1"), ("/", "q2"))


def test_a_line_may_say_type_and_vhost() -> None:
    """The columns after the third one are optional."""
    topology = read_text("ex,,q,fanout,other\n")
    assert topology == Topology(
        (RoutedExchange("other", "ex", "fanout"),), (("other", "q"),), (RoutedBinding("other", "ex", "", "q"),)
    )


def test_an_alternate_comes_from_the_arguments_or_the_first_policy() -> None:
    """The alternate comes from the arguments, else from the matching policy of highest priority, as in the broker."""
    document = {
        "exchanges": [
            {"name": "own", "type": "topic", "arguments": {"alternate-exchange": "mine"}},
            {"name": "ruled", "type": "topic"},
            {"name": "hidden", "type": "topic"},
        ],
        "policies": [
            {"name": "low", "pattern": ".*", "priority": 1, "definition": {"alternate-exchange": "low"}},
            {"name": "high", "pattern": "^hid", "priority": 2, "apply-to": "all", "definition": {"max-length": 1}},
            {
                "name": "q",
                "pattern": ".*",
                "priority": 9,
                "apply-to": "queues",
                "definition": {"alternate-exchange": "q"},
            },
            {"name": "v", "vhost": "v", "pattern": ".*", "priority": 9, "definition": {"alternate-exchange": "v"}},
        ],
    }
    alternates = {entry.name: entry.alternate for entry in read_definitions(document).exchanges}
    assert alternates == {"own": "mine", "ruled": "low", "hidden": None}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ex,a\n", "line 1: should be exchange,pattern,queue"),
        ("ex,a,q,topic\nex,b,q,direct\n", "was of type topic before"),
        ('{"exchange": "ex"}', "binding 1: queue is missing"),
        ('{"exchange": 3, "queue": "q"}', "exchange should be a text"),
        ('{"exchange": "ex", "queue": "q"}\n{"exchange', "line 2: not valid JSON"),
        ("{", "not valid JSON"),
        ("[3]", "binding 1: should be an object"),
        ('{"bindings": [{"source": "ex", "destination": "q"}]}', "which is not among exchanges"),
        ('{"bindings": {"source": "ex"}}', "bindings should be a list"),
        ('{"bindings": [], "exchanges": [{"name": "e", "type": "topic", "arguments": 3}]}', "arguments should be"),
        (
            '{"bindings": [{"source": "amq.topic", "destination": "q", "destination_type": "x"}]}',
            "should be queue or exchange",
        ),
        (
            '{"bindings": [], "exchanges": [{"name": "e", "type": "topic"}], "policies": [{"pattern": "("}]}',
            "not a regular expression",
        ),
        (f"ex,{'a' * 140_000},q", "not valid CSV: field larger than field limit"),
        ("[" * 100_000, "nested too deeply"),
        *(
            (RULED.replace("?", one), "priority should be a number, and definition an object")
            for one in ('"priority": "high"', '"priority": null', '"definition": ["x"]')
        ),
        (ARGUED, "alternate-exchange should be a text"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    """A wrong file is reported with one line that starts with its name."""
    path = tmp_path / "bindings"
    path.write_text(text)
    with pytest.raises(BadBindings, match=r"^[^\n]*$") as caught:
        read_bindings(path)
    assert str(caught.value).startswith(str(path))
    assert said in str(caught.value)
