"""`slotmq cluster` and its line in `slotmq status`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.cli.cluster import cluster_text
from broker.cli.main import main
from tests.unit.cli.conftest import Asked

ROW = {"state": "alive", "held": 7, "slots": 2, "clients": 1, "version": "1.0", "url": "amqp://h:5672/"}
FACTS: dict[str, Any] = {
    "node": "a",
    "epoch": 3,
    "state": "joined",
    "reason": "",
    "schema": "slotmq",
    "database": "PostgreSQL 18.6",
    "database_ms": 0.8,
    "beat_age_ms": 120,
    "lease_ms": 3000,
    "topology": 41,
    "nodes": [
        {**ROW, "node": "a", "epoch": 3, "beat_age_ms": 0, "topology": 41, "database_ms": 0.8},
        {**ROW, "node": "b", "epoch": 9, "beat_age_ms": 1700, "topology": 39, "state": "silent"},
    ],
}


@pytest.fixture
def asked(asked: Asked) -> Asked:
    """Provide a broker that is node a."""
    asked.answer = FACTS
    return asked


def test_status_says_where_the_node_stands(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    """Each fact has a line, and an empty one has none."""
    assert main(["cluster", "status"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "node      a, joined, epoch 3",
        "database  PostgreSQL 18.6, schema slotmq, answers in 0.8 ms",
        "beat      120 ms ago, lease 3000 ms",
        "topology  version 41",
        "nodes     a alive, b silent",
        "held      14 messages by all nodes",
    ]


def test_a_database_that_is_away_is_told(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    """The reason has a line, and no one is called silent whom this node cannot see."""
    rows = [{**ROW, "node": "a", "state": "paused"}, {**ROW, "node": "b", "state": "unknown"}]
    asked.answer = {**FACTS, "state": "paused", "reason": "Connection refused", "database_ms": None, "nodes": rows}
    assert main(["cluster", "status"]) == 0
    assert capsys.readouterr().out.splitlines()[:3] == [
        "node      a, paused, epoch 3",
        "reason    Connection refused",
        "database  PostgreSQL 18.6, schema slotmq, does not answer",
    ]
    assert cluster_text(asked.answer) == "node a paused, 2 nodes, database away"


def test_nodes_are_rows(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    """A row has what a node holds, and how many changes of the topology it has not applied."""
    assert main(["cluster", "nodes"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "a\talive\t3\t7\t2\t1\t0\t0\t0.8\t1.0\tamqp://h:5672/",
        "b\tsilent\t9\t7\t2\t1\t1700\t2\t\t1.0\tamqp://h:5672/",
    ]


@pytest.mark.parametrize("words", [["cluster", "status"], ["cluster", "nodes"]])
def test_json_has_every_key(asked: Asked, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    """--json prints what the broker answered."""
    assert main([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    rows = answer["nodes"] if words[1] == "status" else answer
    assert [row["node"] for row in rows] == ["a", "b"]


def test_leave_names_the_dead_node(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    """`leave NODE` lets the others take over."""
    asked.answer = {"node": "b"}
    assert main(["cluster", "leave", "b"]) == 0
    assert (asked.verb, asked.arguments) == ("cluster_leave", {"node": "b"})
    assert capsys.readouterr().out == "node b is declared dead: the other nodes have its messages\n"


def test_status_of_the_broker_has_one_line(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    """`slotmq status` names the node, its state, the number of nodes and of silent ones."""
    asked.answer = {"version": "1", "cluster": FACTS}
    assert main(["status"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "cluster  node a joined, 2 nodes (1 silent), database 0.8 ms"
    assert cluster_text({**FACTS, "nodes": [], "database_ms": None}) == "node a joined, 0 nodes, database away"
