"""Imports that another node's change or PostgreSQL refuses after they began: nothing of them stays, and they end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from broker.cli.control_client import Unanswered, ask
from tests.cluster.conftest import LASTING_LEASE_MS
from tests.cluster.members import CALM_MS
from tests.cluster.proxy import Point, Proxy, Then
from tests.cluster.test_failing_database import CERTAIN, TABLES, raising
from tests.cluster.test_lost_during_changes import happened, stored
from tests.cluster.two_nodes import Nodes
from tests.deadline import DEADLINE_S, wait_until
from tools.postgres_server import PostgresServer

APPEND, WRITE = r"^SELECT \* FROM append\(", r"^SELECT \* FROM definitions_write\("
DOCUMENT = {"queues": [{"name": "i", "vhost": "/"}]}
RIGHT = {"user": "u", "vhost": "v", "configure": "", "write": "", "read": ""}


@pytest.fixture
def nodes(tmp_path: Path, shared_postgres: PostgresServer, schema: str) -> Iterator[tuple[Proxy, Nodes]]:
    """Provide a proxy, and two nodes behind it with a vhost, a user and a queue."""
    with Proxy(shared_postgres.url) as proxy, Nodes(tmp_path, proxy.url, schema, "a", "b", lease_ms=CALM_MS) as both:
        folder = both.by_name["b"].folder
        ask(folder, "add_vhost", name="v")
        ask(folder, "add_user", name="u", password="p")
        yield proxy, both


def queues(nodes: Nodes, vhost: str = "/") -> list[str]:
    """Return the queues of a vhost."""
    return [row["name"] for row in ask(nodes.by_name["b"].folder, "list_queues", vhost=vhost)]


@pytest.mark.parametrize("late", [False, True], ids=["while it declares", "before it ends"])
@pytest.mark.parametrize(("verb", "name"), [("delete_vhost", "v"), ("delete_user", "u")])
def test_another_node_deletes_what_the_document_names(
    nodes: tuple[Proxy, Nodes], shared_postgres: PostgresServer, verb: str, name: str, late: bool
) -> None:
    """The import is refused by name and undone, and what was deleted does not come back."""
    proxy, both = nodes
    folders = {key: node.folder for key, node in both.by_name.items()}
    document = {
        "vhosts": [{"name": "v"}, {"name": "made"}],
        "permissions": [RIGHT],
        "queues": [{"name": "i", "vhost": vhost} for vhost in ("/", "v", "made")],
    }
    followed = happened(both, "definitions.followed")
    with ThreadPoolExecutor(1) as thread:

        def delete() -> None:
            thread.submit(ask, folders["b"], verb, name=name)
            part = verb.removeprefix("delete_") + "s"
            wait_until(lambda: name not in [row["name"] for row in stored(both, shared_postgres)[part]], "it is stored")
            if not late:
                wait_until(lambda: happened(both, "definitions.followed") > followed, "the node follows")

        def declared() -> None:
            if late:
                proxy.trap(WRITE, Point.ASKED, Then.FORWARD, delete)
            else:
                delete()

        trap = proxy.trap(APPEND, Point.DONE, Then.FORWARD, declared)
        with pytest.raises(Unanswered, match=f"'{name}' does not exist"):
            ask(folders["a"], "import_definitions", definitions=document)
        assert trap.sprung.is_set()
    left = stored(both, shared_postgres)
    assert "importing" not in left
    assert [row["name"] for row in left["vhosts"]] == (["/"] if name == "v" else ["/", "v"])
    assert not [row for row in left["permissions"] if row["user"] == "u"]
    assert queues(both) == []


def test_postgresql_refuses_the_undo_too(nodes: tuple[Proxy, Nodes], shared_postgres: PostgresServer) -> None:
    """The log names once what is left, and the import has ended, so that no later start repeats it."""
    proxy, both = nodes
    for event in ("call.refused", "definitions.not_undone"):
        both.errors_expected("a", event)
    document = {"queues": [{"name": name, "vhost": "/"} for name in ("i", "j")], "permissions": [RIGHT]}
    with ExitStack() as stack:
        thread = stack.enter_context(ThreadPoolExecutor(1))

        def delete() -> None:
            stack.enter_context(raising(shared_postgres, both.schema, CERTAIN[0], *TABLES["append"]))
            thread.submit(ask, both.by_name["b"].folder, "delete_user", name="u")
            wait_until(lambda: len(stored(both, shared_postgres)["users"]) == 1, "it is stored")

        def declared() -> None:
            proxy.trap(WRITE, Point.ASKED, Then.FORWARD, delete)

        trap = proxy.trap(APPEND, Point.DONE, Then.FORWARD, declared)
        with pytest.raises(Unanswered, match="'u' does not exist"):
            ask(both.by_name["a"].folder, "import_definitions", definitions=document)
        assert trap.sprung.is_set()
    assert "importing" not in stored(both, shared_postgres)
    assert queues(both) == ["i", "j"]
    told = [event for event in both.by_name["a"].log_events() if event["event"] == "definitions.not_undone"]
    assert [event["count"] for event in told] == [2]


@pytest.mark.parametrize("stops", [False, True])
def test_a_member_that_is_lost(tmp_path: Path, shared_postgres: PostgresServer, schema: str, stops: bool) -> None:
    """The import ends once the member was counted out, also on a node that was told to stop meanwhile."""
    with (
        Proxy(shared_postgres.url) as proxy,
        Nodes(tmp_path, proxy.url, schema, "a", "b", lease_ms=LASTING_LEASE_MS) as both,
        ThreadPoolExecutor(2) as thread,
    ):
        a, b = both.by_name["a"], both.by_name["b"]
        trap = proxy.trap(APPEND, Point.ASKED, Then.FORWARD, lambda: b.running.send_signal(signal.SIGSTOP))
        answer = thread.submit(ask, a.folder, "import_definitions", definitions=DOCUMENT)
        assert trap.sprung.wait(DEADLINE_S)
        stop = thread.submit(a.terminate) if stops else None
        assert answer.result()["made"] == {"queues": 1}
        assert "importing" not in stored(both, shared_postgres)
        assert stop is None or stop.result() == 0
        assert happened(both, "node.counted_out") == 1


def test_a_stop_without_postgresql(nodes: tuple[Proxy, Nodes], shared_postgres: PostgresServer) -> None:
    """The node stops in time, and its next start finishes the import."""
    proxy, both = nodes
    a = both.by_name["a"]
    with ThreadPoolExecutor(1) as thread:
        trap = proxy.trap(APPEND, Point.ASKED, Then.CUT, proxy.hold)
        answer = thread.submit(ask, a.folder, "import_definitions", definitions=DOCUMENT)
        assert trap.sprung.wait(DEADLINE_S)
        assert a.terminate() == 0
        with pytest.raises(Unanswered):
            answer.result()
    assert happened(both, "definitions.change_cancelled") == 1
    assert "importing" in stored(both, shared_postgres)
    proxy.release()
    a.start()
    assert "importing" not in stored(both, shared_postgres)
    assert queues(both) == ["i"]
