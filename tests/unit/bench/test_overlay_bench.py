"""The benchmark of the overlay: its publishers and checks, where its streams go, and what it makes of its figures."""

from __future__ import annotations

import signal
import socket
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.brokers import Broker
from bench.growth.ground import EXCHANGE
from bench.overlay import __main__ as command
from bench.overlay.arrivals import Arrivals, Faults, Numbering, faults_of, longest_dip_s
from bench.overlay.crashes import EXCHANGES, GROUPS, MIDDLE, TOPICS, keys_of
from bench.overlay.load import PUBLISHING, SUBSCRIBING, falls_behind, middle_of
from bench.overlay.paced import PacedSource
from bench.overlay.plan import FULL, QUICK, Row, Stage
from bench.overlay.report import TITLES, tables
from bench.overlay.report import machine as machine_sentence
from bench.overlay.tree import Logical, Tree
from bench.overlay.verdicts import phases_of, verdicts
from bench.results import load as load_kept
from broker.overlay.packets import Space, StreamName
from broker.overlay.peers import choose
from broker.perf.crew import RunFailed
from broker.perf.peer import Address, PeerConnection
from broker.perf.spool import Material, Spool
from broker.perf.stamp import STAMP, STAMP_BYTES

PROJECT = Path(__file__).resolve().parents[3]
PAGE = PROJECT / "docs" / "figures.md"
NUMBERING = Numbering(start_ns=1_000_000, step_ns=500_000, topics=4)
MACHINE = {"cpu": "a processor", "cores": 2, "python": "3.11", "load": 0.0}


# -- publishers and checks --------------------------------------------------------------------------------------------


def bodies(*numbers: int) -> bytes:
    """Return bodies with the stamps of messages that were due, one after the other."""
    dues = [NUMBERING.start_ns + number * NUMBERING.step_ns for number in numbers]
    return b"".join(due_ns.to_bytes(8, "big") for due_ns in dues)


def arrived(*numbers: int) -> Arrivals:
    """Return what a connection received."""
    arrivals = Arrivals(0)
    arrivals.watch(bodies(*numbers), 0, 8, len(numbers))
    return arrivals


def test_every_delivery_is_found_by_its_topic() -> None:
    """Numbers come from the stamps, also of bodies between other bytes."""
    arrivals = Arrivals(0)
    buffer = b"..".join(bodies(number) for number in (1, 5, 2, 9))
    arrivals.watch(buffer, 0, 10, 4)
    arrivals.watch(bodies(13), 0, 0, 1)
    assert arrivals.by_topic(NUMBERING) == {1: [1, 5, 9, 13], 2: [2]}
    assert sum(arrivals.buckets.values()) == 5


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ((5, 9, 13, 17), Faults()),
        ((5, 9, 17), Faults(missing=1)),
        ((5, 9, 13), Faults(missing=1)),
        ((5, 9, 13, 13, 17), Faults(double=1)),
        ((5, 13, 9, 17), Faults(disordered=1)),
        ((1, 5, 9, 13, 17), Faults()),
    ],
)
def test_a_subscriber_gets_each_message_once_from_its_first_one(numbers: tuple[int, ...], found: Faults) -> None:
    """What is missing within and at the end, double, or late is counted; messages before the first one are not due."""
    assert faults_of(numbers, 4, 18) == found
    assert arrived(*numbers).faults(NUMBERING, [1], [18]) == found


def test_a_topic_of_which_nothing_came_is_missing() -> None:
    """A wanted topic without any message is a fault; the end of a topic is that of its publisher."""
    assert arrived(1, 5).faults(NUMBERING, [1, 2], [99, 6]) == Faults(missing=1)


def test_the_longest_dip_is_at_a_stretch() -> None:
    """Buckets with at least half of the due messages end a dip."""
    assert longest_dip_s([10, 4, 0, 5, 0, 0, 4, 9], 10) == pytest.approx(0.3)


def paced(per_s: float) -> tuple[PacedSource, socket.socket]:
    """Return a publisher with a spool of one message, and the other end of its socket."""
    here, there = socket.socketpair()
    peer = cast("PeerConnection", SimpleNamespace(socket=here, received=bytearray()))
    return PacedSource(peer, Spool(Material("x", ("a",), 16), 0, 1), 1_000, per_s), there


def test_a_paced_publisher_sends_what_is_due_with_its_due_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No message leaves before it is due, each carries the time at which it was, and after a stop none leaves."""
    now_ns = 1_000
    monkeypatch.setattr("bench.overlay.paced.time.monotonic_ns", lambda: now_ns)
    source, there = paced(per_s=1e6)  # one in 1,000 ns
    assert source.take(100) == 0  # it has not begun
    source.start(5_000)
    assert source.take(100) == 0
    now_ns = 7_500
    for _ in range(3):
        assert source.take(100) == 1
        assert source.take(100) == 0  # the socket has not taken it yet
        source.write()
    assert source.take(100) == 0
    sent = there.recv(1 << 16)
    stride = len(sent) // 3
    ends = [(number + 1) * stride - 1 for number in range(3)]  # before the last octet of a frame
    stamps = [STAMP.unpack_from(sent, end - STAMP_BYTES) for end in ends]
    assert stamps == [(5_000, 7_500), (6_000, 7_500), (7_000, 7_500)]
    now_ns += 100_000_000
    source.start(now_ns)  # after a pause it goes on with the next message
    assert source.take(100) == 1
    source.write()
    assert STAMP.unpack_from(there.recv(1 << 16), stride - 1 - STAMP_BYTES) == (now_ns, now_ns)
    assert source.take(100) == 0
    now_ns += 100_000_000
    source.stop()
    assert source.take(100) == 0
    there.close()
    source.socket.close()


# -- where the streams go ---------------------------------------------------------------------------------------------


def first_choice(leaf: str, exchange: str, brokers: tuple[str, ...]) -> str:
    """Return the broker of a tree node that a stream goes to."""
    reachable = {broker: {"sb"} for broker in brokers}
    return choose(StreamName(leaf, Space("/", exchange)), reachable, {"sb"})[0]


def test_streams_fail_over_as_in_the_paper() -> None:
    """The first half of the topics goes through ib1 and ib2; without them ib3 takes over, which had the other half."""
    assert [first_choice("pb", one, MIDDLE) for one in EXCHANGES] == ["ib1", "ib2", "ib3", "ib1"]
    assert first_choice("pb", EXCHANGES[0], MIDDLE[1:]) == "ib3"


def test_every_publishing_broker_has_a_middle_of_its_own() -> None:
    """The four streams go through four different processes, none through that of the subscribers."""
    brokers = tuple(middle_of(name) for name in (*PUBLISHING, SUBSCRIBING))
    used = [first_choice(name, EXCHANGE, brokers) for name in PUBLISHING]
    assert sorted(used) == [middle_of(name) for name in PUBLISHING]


def test_saturated_brokers_are_told() -> None:
    """Brokers that take in, or deliver, much less than is due are saturated."""
    due = {"publishers": 4_000, "published_per_s": 8_000.0, "delivered_per_s": 4_000.0}
    found = [
        falls_behind(due | more, FULL) for more in ({}, {"published_per_s": 6_000.0}, {"delivered_per_s": 3_000.0})
    ]
    assert found == [False, True, True]


def test_topics_are_numbered_as_they_are_published() -> None:
    """Message N is of topic N modulo 100, whichever exchange it is published to; groups want whole exchanges."""
    for number in range(2 * TOPICS):
        exchange = number % len(EXCHANGES)
        keys = keys_of(exchange)
        assert keys[number // len(EXCHANGES) % len(keys)] == f"topic.{number % TOPICS:03d}"
    assert sum(len(keys_of(exchange)) * group.copies for group in GROUPS for exchange in group.exchanges) == 850


def test_a_process_connects_to_those_that_run(tmp_path: Path) -> None:
    """Each logical broker has all brokers of the neighbouring nodes; only those that run already have a URL."""
    processes = {name: (Logical(name, f"at-{name}", leaf=True), Logical(f"hop-{name}", "mid")) for name in ("a", "b")}
    tree = Tree(tmp_path, PROJECT, ["x"], processes, [("at-a", "mid"), ("at-b", "mid")], floods=True)
    tree.brokers["a"] = Broker("a", Address("127.0.0.1", 4711))
    settings = tomllib.loads(tree.settings("b"))["overlay"]
    leaf, hop = settings["node"]
    url = "amqp://guest:guest@127.0.0.1:4711"
    assert (leaf["broker"], leaf["node"], leaf["leaf"], hop["leaf"]) == ("b", "at-b", True, False)
    assert leaf["neighbours"] == [
        {"node": "mid", "broker": "hop-a", "url": url, "subscriptions": "none"},
        {"node": "mid", "broker": "hop-b", "subscriptions": "none"},
    ]
    assert [one["broker"] for one in hop["neighbours"]] == ["a", "b"]


# -- figures ----------------------------------------------------------------------------------------------------------


def parts() -> dict[str, list[Row]]:
    """Return rows in which everything is as the paper says."""
    load = [
        {
            "scheme": scheme, "publishers": count, "pb_cpu": share * count, "sb_cpu": sb, "published_per_s": count,
            "delivered_per_s": 2000.0,
        }
        for scheme, share, sbs in (("propagation", 1e-5, (0.1, 0.1)), ("flooding", 3e-5, (0.1, 0.4)))
        for count, sb in zip((2_000, 12_000), sbs, strict=True)
    ]  # fmt: skip
    hops = [
        {
            "hops": count, "delivery_ms": 1.0 + count, "delivery_p99_ms": 9.0, "local_ms": 5.0,
            "global_ms": 7.0 + 2 * count,
        }
        for count in (1, 4, 7)
    ]  # fmt: skip
    leaves = [
        {"scheme": scheme, "leaves": count, "pb": 0.1, "ib": 0.1 * count, "sb": 0.2}
        for scheme in ("propagation", "flooding")
        for count in (1, 7)
    ]
    cost = [
        {
            "form": "compiled", "size": 16, "round": turn, "s1_us": 2.0, "middle_us": middle_us, "publishing_us": 9.0,
            "subscribing_us": 9.0, "s1_per_s": 1e5, "per_s": 2e4,
        }
        for turn, middle_us in enumerate((3.0, 4.0, 9.0))
    ]  # fmt: skip
    failure = {
        "missing": 0, "double": 0, "disordered": 0, "delivered": 100, "published_per_s": 10.0,
        "due_per_s": {"first": 5.0, "fourth": 2.0}, "dip_s": {"first": 0.2, "fourth": 0.1},
        "rates": {"first": [5] * 20, "fourth": [0] * 14 + [2] * 6},
        "cpu": {
            "ib1": [0.04] * 4 + [0.0] * 16, "ib2": [0.04] * 8 + [0.0] * 12,
            "ib3": [0.0] * 4 + [0.04] * 4 + [0.08] * 12,
        },
        "events": [(4.0, "ib1 killed"), (8.0, "ib2 killed"), (12.0, "fourth group"), (16.0, "ib1 back")],
    }  # fmt: skip
    return {"cost": cost, "load": load, "hops": hops, "leaves": leaves, "failure": [failure]}


def content(**changed: list[Row]) -> dict[str, Any]:
    """Return a kept run."""
    return {"machine": MACHINE, "compiled": True, "quick": False, "failures": [], "parts": parts() | changed}


def test_every_shape_of_the_paper_can_be_found() -> None:
    """Figures as the paper has them agree in every verdict; a median decides what a message costs."""
    found = verdicts(parts())
    assert {one.part for one in found} == set(parts())
    assert [one for one in found if not one.agrees] == []
    assert [one.found for one in found if one.part == "cost"] == ["4.00 and 2.00 CPU-µs: 2.0 times"]


@pytest.mark.parametrize(
    ("part", "changes", "shape"),
    [
        ("load", {1: {"sb_cpu": 0.2}}, "sb's CPU stays constant with propagation"),
        ("load", {3: {"sb_cpu": 0.12}}, "sb's CPU grows with flooding"),
        ("load", {2: {"sb_cpu": 0.2}}, "sb's CPU is the same"),
        ("load", {3: {"pb_cpu": 0.13}}, "pb's CPU grows"),
        ("hops", {2: {"local_ms": 9.0}}, "a start under a cover"),
        ("hops", {1: {"delivery_ms": 8.0}}, "delivery latency grows linearly"),
        ("hops", {2: {"global_ms": 9.0}}, "a start without a cover grows linearly"),
        ("leaves", {1: {"pb": 0.2}}, "pb's CPU does not grow with the leaves, propagation"),
        ("leaves", {3: {"sb": 0.3}}, "sb's CPU does not grow with the leaves, flooding"),
        ("failure", {0: {"double": 1}}, "nothing is lost"),
        ("failure", {0: {"dip_s": {"first": 1.1}}}, "clients' rates go on"),
        ("cost", {1: {"middle_us": 4.1}}, "a forwarded message of 16 B"),
    ],
)
def test_a_shape_that_is_another_one_is_told(part: str, changes: dict[int, Row], shape: str) -> None:
    """Each verdict changes with the figures that it is about, and no other one does."""
    rows = [row | changes.get(at, {}) for at, row in enumerate(parts()[part])]
    wrong = [one.shape for one in verdicts(parts() | {part: rows}) if not one.agrees]
    assert wrong
    assert shape in wrong[0]


def test_phases_leave_out_the_seconds_of_their_events() -> None:
    """A phase has the medians of its quiet seconds, of rates and of CPU time."""
    phases = phases_of(parts()["failure"][0])
    assert [phase["phase"] for phase in phases] == ["begin", "ib1 killed", "ib2 killed", "fourth group", "ib1 back"]
    assert [phase["ib3"] for phase in phases] == [0.0, 0.04, 0.08, 0.08, 0.08]
    assert [phase["fourth"] for phase in phases] == [0, 0, 0, 2, 2]


def test_every_table_can_be_made_of_what_was_measured() -> None:
    """Each part has a table, a part without rows has none, and what failed is told."""
    assert set(tables(content())) == set(TITLES)
    assert set(tables(content(load=[], leaves=[]))) == set(TITLES) - {"load", "leaves"}
    failed = content() | {"failures": ["hops: nothing came"]}
    assert machine_sentence(failed).endswith("Not measured: hops: nothing came.")


def test_page_and_kept_run_agree() -> None:
    """The tables of the page are those of the run that it names; the picture shows the others."""
    text = PAGE.read_text()
    name = command.PLACES.kept_name(text)
    kept = load_kept(PROJECT / "bench" / "results" / name)
    assert command.filled(text, kept, name) == text
    assert "<!-- bench-overlay: machine -->" in text


# -- robustness -------------------------------------------------------------------------------------------------------


def a_stage() -> Stage:
    """Return the circumstances of a part that starts nothing."""
    return Stage(QUICK, PROJECT, Path("/nowhere"), lambda _: None)


def test_a_part_that_fails_keeps_the_rows_that_it_has() -> None:
    """A refusal, a defect and a part that hangs all end in a line, and the rows before stay."""

    def hang(_stage: Stage, rows: list[Row]) -> None:
        rows.append({"n": 1})
        signal.pause()

    def refuse(_stage: Stage, rows: list[Row]) -> None:
        raise RunFailed("first line\nno broker")

    def break_down(_stage: Stage, rows: list[Row]) -> None:
        raise KeyError("load")

    rows: list[Row] = []
    assert command.guarded(hang, a_stage(), rows, 0.01) == "stopped after 0 s"
    assert rows == [{"n": 1}]
    assert command.guarded(refuse, a_stage(), rows, 60) == "no broker"
    assert command.guarded(break_down, a_stage(), rows, 60) == "KeyError: 'load'"
    assert command.guarded(hang, a_stage(), rows, 0) == "the time was used up"


def test_the_whole_run_fits_into_its_time() -> None:
    """The limits of the parts bound each of them; a full run measures what the paper did."""
    assert (FULL.publishers[0], FULL.publishers[-1], FULL.hops, len(FULL.leaves)) == (2_000, 12_000, (1, 4, 7), 7)
    assert command.options_of([]).minutes < 12
