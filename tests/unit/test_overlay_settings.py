"""Settings of an overlay that depend on each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from broker.cli.broker_folder import SettingsError
from broker.cli.settings_layers import load
from broker.settings import Settings

FILE = """
[overlay]
exchanges = ["orders.*"]

[[overlay.node]]
broker = "hub-1"
node = "hub"
neighbours = [
    { node = "paris", broker = "paris" },
    { node = "rome", broker = "rome", url = "amqps://hub:secret@rome.example" },
]

[[overlay.node]]
broker = "paris"
node = "paris"
leaf = true
neighbours = [{ node = "hub", broker = "hub-1" }]
"""


def broker(name: str, node: str, *neighbours: str, leaf: bool = False) -> dict[str, Any]:
    """Return a broker; a neighbour is written as node/broker, or node/broker/url."""
    parts = [neighbour.split("/", 2) for neighbour in neighbours]
    return {
        "broker": name,
        "node": node,
        "leaf": leaf,
        "neighbours": [dict(zip(("node", "broker", "url"), part, strict=False)) for part in parts],
    }


def test_a_process_holds_an_inner_broker_and_a_leaf_beside_it(tmp_path: Path) -> None:
    """Tables of a list are read from the file as every other key is."""
    file = tmp_path / "slotmq.toml"
    file.write_text(FILE)
    overlay = load(file, environment=False).overlay
    assert [(held.broker, held.node, held.leaf) for held in overlay.node] == [
        ("hub-1", "hub", False),
        ("paris", "paris", True),
    ]
    assert overlay.node[0].neighbours[1].broker == "rome"
    assert "secret" not in f"{overlay} {overlay.model_dump_json()}"


def test_brokers_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container has no file: the list is JSON in a variable."""
    neighbours = '[{"node": "hub", "broker": "hub-1", "url": "amqp://hub"}]'
    text = f'[{{"broker": "rome", "node": "rome", "neighbours": {neighbours}}}]'
    monkeypatch.setenv("SLOTMQ_OVERLAY__NODE", text)
    assert load().overlay.node[0].neighbours[0].url.get_secret_value() == "amqp://hub"


def test_a_fault_in_a_list_names_file_and_place(tmp_path: Path) -> None:
    """An operator finds the neighbour that is wrong."""
    file = tmp_path / "slotmq.toml"
    file.write_text(FILE.replace("amqps://hub:secret@rome.example", "https://hub:secret@rome.example"))
    with pytest.raises(SettingsError) as refused:
        load(file, environment=False)
    (line, *_) = refused.value.problems
    assert line.startswith(f"{file}: overlay.node[#1].neighbours[#2].url: should be amqp://")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("overlay", "reason"),
    [
        ([broker("a", "n")], "at least 1 item"),
        ([broker("a", "n", "n/b")], "a is in the tree node n and so cannot have it as a neighbour"),
        ([broker("a", "n", "m/a")], "a cannot be its own neighbour"),
        ([broker("a", "n", "m/b", "m/b")], "a has the neighbour b twice"),
        ([broker("a", "n", "m/b", "o/c", leaf=True)], "the leaf a can have one neighbouring tree node, not 2"),
        ([broker("a", "n", "m/b"), broker("a", "n", "m/b")], "two brokers of node have the same name"),
        ([broker("a", "n", "m/b"), broker("c", "n", "o/b")], "the broker b is in two tree nodes"),
        ([broker("a", "n", "m/b", leaf=True), broker("c", "o", "m/b", leaf=True)], "a process can have one leaf"),
        ([broker("a", "n", "m/b", leaf=True), broker("c", "n", "m/b")], "the leaf a is not alone in its tree node n"),
        ([broker("a", "n", "m/b"), broker("b", "m", "n/c")], "a has the neighbour b, which does not have a"),
        ([broker("a", "n", "m/b/amqp://h"), broker("b", "m", "n/a")], "b is a broker of this process"),
        ([broker("a", "n", "m/b/http://h")], "should be amqp://"),
        ([broker("a", "n", "m/b/amqp://h:99999")], "should be amqp://"),
        ([broker("a", "n", f"m/b/amqp://{'h' * 64}")], "should be amqp://"),
        ([broker("a b", "n", "m/b")], "should be 1 to 64 letters"),
    ],
)
def test_brokers_that_could_not_be_linked_are_refused(overlay: list[dict[str, Any]], reason: str) -> None:
    """A mistake that would show only as a link that never opens is an error at the start."""
    with pytest.raises(ValidationError, match=reason):
        Settings(overlay={"exchanges": ["x"], "node": overlay})


def test_both_ends_of_a_link_in_one_process_agree_on_subscriptions() -> None:
    """A link that one end takes for one-way alone would never open."""
    one, other = broker("a", "n", "m/b"), broker("b", "m", "n/a")
    one["neighbours"][0]["subscriptions"] = "none"
    with pytest.raises(ValidationError, match="a and b differ in subscriptions"):
        Settings(overlay={"node": [one, other]})
    other["neighbours"][0]["subscriptions"] = "none"
    assert Settings(overlay={"node": [one, other]}).overlay.is_on


def test_all_brokers_of_a_tree_node_have_one_kind_of_link() -> None:
    """They replace each other, so each of them has to be told the same."""
    held = broker("a", "n", "m/b", "m/c")
    held["neighbours"][0]["subscriptions"] = "none"
    with pytest.raises(ValidationError, match="a has more than one value of subscriptions for m"):
        Settings(overlay={"node": [held]})
    with pytest.raises(ValidationError, match="Input should be 'all' or 'none'"):
        Settings(overlay={"node": [{**held, "neighbours": [{"node": "m", "broker": "b", "subscriptions": "some"}]}]})


def test_a_leaf_without_exchanges_is_refused() -> None:
    """None take part by default, so forgetting the list would forward nothing in silence."""
    with pytest.raises(ValidationError, match="exchanges is missing"):
        Settings(overlay={"node": [broker("a", "n", "m/b", leaf=True)]})
    assert Settings(overlay={"node": [broker("a", "n", "m/b")]}).overlay.is_on


def test_a_password_is_given_once() -> None:
    """A file for the password needs a URL without one."""
    for url in ("", "amqp://user:secret@host"):
        neighbour = {"node": "m", "broker": "b", "url": url, "password_file": "secret"}
        with pytest.raises(ValidationError, match=r"password_file is set and url is not|only one of password_file"):
            Settings(overlay={"node": [{"broker": "a", "node": "n", "neighbours": [neighbour]}]})


def test_a_node_of_a_cluster_is_in_no_overlay() -> None:
    """Its messages are in no log of its own, from which a stream could be read."""
    with pytest.raises(ValidationError, match="cannot take part in an overlay"):
        Settings(
            cluster={"url": "postgresql://db/mq", "node": "a"},
            overlay={"exchanges": ["x"], "node": [broker("a", "n", "m/b", leaf=True)]},
        )
