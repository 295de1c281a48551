"""A cluster is backed up while it works, and restored: as it was at one moment, as the beginning of another history."""

from __future__ import annotations

import asyncio
import io
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pika
import pytest

from broker.cli.control_client import Unanswered, ask
from broker.cli.main import main
from broker.cluster.backup import back_up
from broker.cluster.restore import restore
from broker.cluster.server_address import ServerAddress
from tests.cluster.invariants import violations
from tests.cluster.sql_session import Session, Sessions, Share
from tests.cluster.test_operator_messages import counts, fill, numbered, peeked
from tests.cluster.two_nodes import Nodes
from tests.deadline import wait_until

Copy = Callable[..., str]
END = 1 << 60


@pytest.fixture
def copy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], postgres_url: str, schema: str, tmp_path: Path
) -> Copy:
    """Provide a function that runs `cluster backup` or `restore`, and returns what it says."""
    secret = tmp_path / "cluster-url"
    secret.write_text(postgres_url)
    monkeypatch.setenv("SLOTMQ_CLUSTER__SCHEMA_NAME", schema)

    def run(verb: str, file: Path, code: int = 0) -> str:
        assert main(["cluster", verb, str(file), "--cluster-file", str(secret)]) == code
        read = capsys.readouterr()
        return read.err if code else read.out

    return run


@pytest.fixture
def cluster(tmp_path: Path, postgres_url: str, schema: str) -> Iterator[Nodes]:
    """Provide two nodes, which a test may stop and start."""
    with Nodes(tmp_path, postgres_url, schema, "a", "b") as both:
        yield both


async def members_and_violations(url: str, schema: str) -> tuple[int, list[str]]:
    """Return how many members a schema has, and what is wrong in its tables."""
    connection = await asyncpg.connect(url, server_settings={"search_path": schema})
    try:
        return await connection.fetchval("SELECT count(*) FROM member"), await violations(connection)
    finally:
        await connection.close()


def stop(nodes: Nodes) -> None:
    """Stop all nodes in order."""
    for node in nodes.by_name.values():
        assert node.terminate() == 0


def start(nodes: Nodes) -> None:
    """Start all nodes."""
    for node in nodes.by_name.values():
        node.start()


def test_a_cluster_is_as_it_was_when_it_was_backed_up(
    cluster: Nodes, copy: Copy, tmp_path: Path, postgres_url: str, schema: str
) -> None:
    """Messages, topology and users; what a consumer held then is free, and marked. What came later is gone."""
    file = tmp_path / "copy"
    fill(cluster, "a", "q", *numbered(30))
    ask(cluster.by_name["a"].folder, "add_user", name="ann", password="secret", tags=[])
    holder = cluster.channel("b")
    assert [int(holder.basic_get("q")[2]) for _ in range(2)] == [0, 1]
    assert " rows, " in copy("backup", file)
    assert file.stat().st_mode & 0o777 == 0o600
    fill(cluster, "b", "later", "x")
    channel = cluster.channel("a")
    for _ in range(9):
        channel.basic_get("q", auto_ack=True)
    assert "lives: stop all nodes first" in copy("restore", file, code=1)
    assert counts(cluster, "a", "q") == (19, 2)
    stop(cluster)
    assert "restored: start the nodes" in copy("restore", file)
    assert asyncio.run(members_and_violations(postgres_url, schema)) == (0, [])
    start(cluster)
    rows = ask(cluster.by_name["b"].folder, "peek", queue="q", count=100)
    assert [row["body"] for row in rows] == numbered(30)
    assert [row["redelivered"] for row in rows[:2]] == [True, True]
    assert [row["name"] for row in ask(cluster.by_name["a"].folder, "list_queues")] == ["q"]
    assert "ann" in [row["name"] for row in ask(cluster.by_name["b"].folder, "list_users")]
    fill(cluster, "a", "again", *numbered(5))
    assert peeked(cluster, "b", "again") == numbered(5)


def test_a_backup_shows_one_moment(cluster: Nodes, copy: Copy, tmp_path: Path) -> None:
    """While messages move from one queue to the other and back, each is in one of them, once."""
    fill(cluster, "a", "one", *numbered(2000))
    fill(cluster, "a", "two")
    over = threading.Event()

    def keep_moving() -> None:
        ends = ["one", "two"]
        while not over.is_set():
            ask(cluster.by_name["a"].folder, "move", queue=ends[0], to=ends[1])
            ends.reverse()

    mover = threading.Thread(target=keep_moving)
    mover.start()
    try:
        copies = [tmp_path / f"copy{number}" for number in range(4)]
        for file in copies:
            copy("backup", file)
    finally:
        over.set()
        mover.join()
    stop(cluster)
    amid = 0
    for file in copies:
        copy("restore", file)
        cluster.by_name["a"].start()
        one, two = ([int(body) for body in cluster.contents("a", name)] for name in ("one", "two"))
        assert sorted(one + two) == list(range(2000))
        amid += 0 < len(one) < 2000
        cluster.by_name["a"].terminate()
    assert amid, "too tame"


def test_what_is_no_whole_backup_changes_nothing(cluster: Nodes, copy: Copy, tmp_path: Path) -> None:
    """A file that ends too soon, one with a wrong byte and one of something else; each is one line."""
    file, damaged = tmp_path / "copy", tmp_path / "damaged"
    fill(cluster, "a", "q", *numbered(20))
    copy("backup", file)
    assert "File exists" in copy("backup", file, code=2)
    stop(cluster)
    whole = file.read_bytes()
    middle = len(whole) // 2
    for content, reason in (
        (whole[:-40], "its end is missing"),
        (whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :], "damaged"),
        (b"-- PostgreSQL database dump", "not a backup of a cluster"),
    ):
        damaged.write_bytes(content)
        told = copy("restore", damaged, code=1)
        assert reason in told
        assert len(told.splitlines()) == 1
    start(cluster)
    assert peeked(cluster, "b", "q") == numbered(20)


def test_a_backup_is_restored_where_nothing_was(
    cluster: Nodes, copy: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schema: str, postgres_url: str
) -> None:
    """Into a new schema, with as many tables for blocks as the backup has."""
    file = tmp_path / "copy"
    fill(cluster, "a", "q", *numbered(20))
    copy("backup", file)
    monkeypatch.setenv("SLOTMQ_CLUSTER__SCHEMA_NAME", f"{schema}_new")
    assert "no cluster in the schema" in copy("backup", tmp_path / "none", code=1)
    assert not (tmp_path / "none").exists()
    copy("restore", file)
    (tmp_path / "new").mkdir()
    with Nodes(tmp_path / "new", postgres_url, f"{schema}_new", "c") as restored:
        assert peeked(restored, "c", "q") == numbered(20)
        fill(restored, "c", "more", *numbered(20))
        assert peeked(restored, "c", "more") == numbered(20)


def test_a_node_that_was_frozen_over_a_restore_is_no_member(cluster: Nodes, copy: Copy, tmp_path: Path) -> None:
    """It confirms nothing that it took before, closes its clients and joins as another epoch."""
    file = tmp_path / "copy"
    fill(cluster, "a", "q", *numbered(5))
    copy("backup", file)
    channel = cluster.channel("a", confirms=True)
    channel.basic_publish("", "q", b"later", pika.BasicProperties(delivery_mode=2))
    assert cluster.by_name["b"].terminate() == 0
    process = cluster.by_name["a"].running
    cluster.errors_expected("a", "node.lost")
    cluster.errors_expected("a", "database.went_back")
    process.send_signal(signal.SIGSTOP)
    try:
        copy("restore", file)
    finally:
        process.send_signal(signal.SIGCONT)

    def answer() -> Any:
        try:
            return peeked(cluster, "a", "q")
        except Unanswered:
            return None

    wait_until(lambda: answer() == numbered(5), "a has what was restored")
    with pytest.raises(pika.exceptions.AMQPError):
        channel.basic_publish("", "q", b"again", pika.BasicProperties(delivery_mode=2))
    fill(cluster, "a", "more", *numbered(5))


class Meddling(io.BytesIO):
    """A level that does something once, as soon as the snapshot of the backup has begun."""

    def __init__(self, meddle: Callable[[], None]) -> None:
        super().__init__()
        self._meddle: Callable[[], None] | None = meddle

    def write(self, content: Any) -> int:
        """Meddle before the first write."""
        meddle, self._meddle = self._meddle, None
        if meddle is not None:
            thread = threading.Thread(target=meddle)
            thread.start()
            thread.join()
        return super().write(content)


async def test_no_block_of_messages_is_removed_under_a_backup(
    sessions: Sessions, postgres_url: str, schema: str
) -> None:
    """A message that is settled meanwhile is in the backup, with its block; TRUNCATE would show in the snapshot."""
    a = await sessions("a")
    number = (await a.commit(Share(5, mine="1")))["number"]
    done: list[str] = []

    async def settle_and_turn() -> None:
        other = (await Session.open(postgres_url, schema)).as_node(a)
        await other.commit(Share(6, free="1"), settle=[(5, number, "1")], sequence=99)
        done.extend(
            [await other.value("SELECT turn_ring($1, $2, $3)", a.node, a.epoch, limit) for limit in (1, END, END)]
        )
        await other.close()

    level = Meddling(lambda: asyncio.run(settle_and_turn()))
    counts = await back_up(ServerAddress(postgres_url, "test", schema), level, lambda _done, _total: None)
    assert done == ["took chunk_1", "copied 1 chunks of chunk_0", "chunk_0 is in use"]
    assert counts["rows"]
    level.seek(0)
    restored = f"{schema}_restored"
    await restore(ServerAddress(postgres_url, "test", restored), level, lambda _done: None)
    assert await members_and_violations(postgres_url, restored) == (0, [])
    await drop(postgres_url, restored)


async def drop(url: str, schema: str) -> None:
    """Remove a schema."""
    connection = await asyncpg.connect(url)
    await connection.execute(f'DROP SCHEMA "{schema}" CASCADE')
    await connection.close()
