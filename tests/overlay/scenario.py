"""Random runs of a simulated overlay: bindings, messages and faults, drawn from a seed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Final, get_args

from broker.overlay.aggregation import Aggregation
from broker.overlay.packets import Conjunction, InterestPacket, Space
from broker.overlay.simulation.member import Dice
from broker.overlay.simulation.network import SimulatedTree
from broker.routing.pattern import parse_pattern
from tests.overlay.checker import Broken, Checker
from tests.overlay.faulty_leaf import FaultyLeaf, SimulatedBinding
from tests.overlay.faulty_link import NO_FAULTS, LinkFaults
from tests.overlay.faulty_network import FaultyNetwork, FolderCopy, folder_copy, random_tree

SETTLE_MS = 120_000
WORDS = ("a", "b", "c")
MOST = 0.9
"""The share of messages without copies, and of small messages."""
SMALL_BYTES, LARGE_BYTES = 100, 1_000
_UPDATES: Final = [kind.__name__ for kind in get_args(InterestPacket)]


@dataclass(frozen=True, slots=True)
class Scenario:
    """The size and faults of a run. `may_lose` adds limits and non-durable bindings, and allows gaps."""

    brokers: int = 6
    spaces: int = 1
    active_ms: int = 3_000
    messages: int = 60
    binding_changes: int = 24
    crashes: int = 2
    cuts: int = 3
    faults: LinkFaults = NO_FAULTS
    may_lose: bool = False
    cut_for_good: bool = False
    limited: bool = False
    """Some brokers refuse large messages."""
    replaced_folders: int = 0
    """How often a leaf restarts with an older copy of its data folder, or an empty one."""


@dataclass(slots=True)
class SimulationOutcome:
    """The result of one or more scenarios. `updates` counts the packets about interest."""

    published: int = 0
    delivered: int = 0
    flooded: int = 0
    filtered: int = 0
    repairs: int = 0
    updates: int = 0
    events: int = 0
    settled_ms: int = 0
    packets: Counter[str] = field(default_factory=Counter)

    def add(self, other: SimulationOutcome) -> None:
        """Add another outcome."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.packets += other.packets

    def lines(self) -> list[str]:
        """Return the outcome as a table."""
        return [f"{name:16} {getattr(self, name):>12}" for name in _COUNTS]


_COUNTS: Final = [entry.name for entry in fields(SimulationOutcome) if entry.type == "int"]


def random_scenario(dice: Dice) -> Scenario:
    """Return a scenario, mostly a small one."""
    roll = dice.random()
    brokers = dice.randint(3, 7) if roll < 0.85 else dice.randint(8, 14) if roll < 0.98 else dice.randint(15, 50)
    bad = dice.random() < 0.5
    faults = LinkFaults(
        drop=dice.choice((0.0, 0.02, 0.1)) if bad else 0.0,
        duplicate=dice.choice((0.0, 0.05)) if bad else 0.0,
        reorder=dice.choice((0.0, 0.1)) if bad else 0.0,
        most_delay_ms=dice.choice((2, 10, 60)),
        capacity_packets=dice.choice((1_000_000, 1_000_000, 8)),
    )
    return Scenario(
        brokers=brokers,
        spaces=dice.choice((1, 1, 2)),
        messages=dice.randint(20, 90),
        binding_changes=dice.randint(4, 30),
        crashes=dice.randint(0, 4),
        cuts=dice.randint(0, 5),
        faults=faults,
        may_lose=dice.random() < 0.2,
        cut_for_good=dice.random() < 0.2,
        limited=dice.random() < 0.2,
        replaced_folders=dice.choice((0, 0, 0, 1, 2)),
    )


class Simulation:
    """One run of a scenario."""

    def __init__(self, scenario: Scenario, dice: Dice, topology: SimulatedTree | None = None) -> None:
        self.scenario = scenario
        self.dice = dice
        spaces = [Space("/", f"orders{place}") for place in range(scenario.spaces)]
        mixed = dice.random() < 0.3
        kinds = (Aggregation.COVERING, Aggregation.COVERING, Aggregation.IDENTICAL, Aggregation.NONE)
        kind = dice.choice(kinds)
        self.network = FaultyNetwork(
            topology or random_tree(dice, scenario.brokers),
            spaces,
            dice,
            lambda: dice.choice(kinds) if mixed else kind,
            patterns_max=dice.choice((1000, 1000, 4)),
        )
        for member in self.network.members():
            if scenario.limited and dice.random() < 0.5:
                member.limit_bytes = SMALL_BYTES
        self.checker = Checker(self.network, may_lose=scenario.may_lose)
        self._bindings = 0
        self._folders: list[tuple[FaultyLeaf, FolderCopy]] = []

    def run(self) -> SimulationOutcome:
        """Run the scenario and check the guarantees. Raises: Broken."""
        network, scenario, scheduler = self.network, self.scenario, self.network.scheduler
        for link in network.links:
            link.faults = scenario.faults
        network.start()
        for count, action in (
            (scenario.messages, self._publish),
            (scenario.binding_changes, self._change_bindings),
            (scenario.crashes, self._crash),
            (scenario.cuts, self._cut),
            (1 if scenario.cut_for_good else 0, network.cut_one_for_good),
            (scenario.replaced_folders, self._copy_folder),
            (scenario.replaced_folders, self._replace_folder),
            (dice_limits(self.dice) if scenario.may_lose else 0, self._force_out),
        ):
            for _ in range(count):
                scheduler.after(self.dice.randint(0, scenario.active_ms), action)
        scheduler.run_until(scenario.active_ms)
        self._settle()
        self.checker.final()
        outcome = self._outcome()
        self._last_round()
        return outcome

    def _last_round(self) -> None:
        """Check that a settled network does not flood."""
        before = self._flooded()
        for _ in range(10):
            self._publish()
        self._settle()
        self.checker.final()
        if self._flooded() != before and not self._may_flood:
            raise Broken("a network that has settled floods")

    @property
    def _may_flood(self) -> bool:
        """Return whether a broker may lack knowledge: a lost vector is not repeated, and a link may be cut for good."""
        return bool(self.scenario.faults.drop or self.network.cut_for_good)

    def _settle(self) -> None:
        """End all faults and run until nothing is in flight. Raises: Broken if that takes too long."""
        network, scheduler = self.network, self.network.scheduler
        for link in network.links:
            link.faults = NO_FAULTS
        network.heal()
        end_ms = scheduler.now_ms + SETTLE_MS
        scheduler.run_until(scheduler.now_ms + 500)
        while (unsettled := self._unsettled()) and scheduler.now_ms < end_ms:
            scheduler.run_until(scheduler.now_ms + 250)
            network.heal()
        if unsettled:
            raise Broken(f"not settled after {SETTLE_MS} ms: {unsettled}")

    def _unsettled(self) -> str:
        network = self.network
        down = [member.name for member in network.members() if not member.is_running]
        down += [
            "-".join(member.name for member in link.members) for link in network.links if not (link.works or link.held)
        ]
        return f"down: {down}" if down else self.checker.quiet()

    def _flooded(self) -> int:
        return sum(member.counts.flooded for member in self.network.inner.values())

    def _outcome(self) -> SimulationOutcome:
        network = self.network
        leaves = network.leaves.values()
        packets = network.statistics.packets
        return SimulationOutcome(
            published=sum(len(messages) for leaf in leaves for messages in leaf.published.values()),
            delivered=self.checker.delivered,
            flooded=self._flooded(),
            filtered=sum(member.counts.filtered for member in network.inner.values()),
            repairs=sum(sink.repairs for leaf in leaves for sink in leaf.leaf.sinks.values()),
            updates=sum(packets[kind] for kind in _UPDATES),
            events=network.scheduler.count,
            settled_ms=network.scheduler.now_ms - self.scenario.active_ms,
            packets=packets,
        )

    def _leaf(self) -> FaultyLeaf | None:
        leaf = self.dice.choice(list(self.network.leaves.values()))
        return leaf if leaf.is_running else None

    def _publish(self) -> None:
        leaf = self._leaf()
        if leaf is not None:
            copies = () if self.dice.random() < MOST else (self._key(),)
            size_bytes = SMALL_BYTES if self.dice.random() < MOST else LARGE_BYTES
            leaf.publish(self.dice.choice(self.network.spaces), self._key(), b"x" * size_bytes, copies)

    def _key(self) -> str:
        return ".".join(self.dice.choice(WORDS) for _ in range(self.dice.randint(1, 3)))

    def _change_bindings(self) -> None:
        leaf = self._leaf()
        if leaf is None:
            return
        added: dict[str, SimulatedBinding] = {}
        for _ in range(self.dice.randint(0, 3)):
            self._bindings += 1
            words = [self.dice.choice((*WORDS, "*", "#")) for _ in range(self.dice.randint(1, 3))]
            space = self.dice.choice(self.network.spaces)
            durable = not self.scenario.may_lose or self.dice.random() < 0.5
            text = ".".join(words)
            added[f"binding{self._bindings}"] = SimulatedBinding(Conjunction(space, parse_pattern(text).text), durable)
        removed = [name for name in leaf.bindings if self.dice.random() < 0.25]
        leaf.change_bindings(added, removed)

    def _crash(self) -> None:
        member = self.dice.choice(self.network.members())
        self.network.crash(member, self.dice.choice((1, 200, 1_000, 5_000)))

    def _cut(self) -> None:
        link = self.dice.choice(self.network.links)
        if self.dice.random() < 0.3:
            self.network.cut_one_way(link, self.dice.randint(200, 2_000))
        else:
            self.network.cut(link, self.dice.choice((10, 500, 3_000)))

    def _copy_folder(self) -> None:
        leaf = self._leaf()
        if leaf is not None:
            self._folders.append((leaf, folder_copy(leaf)))

    def _replace_folder(self) -> None:
        back_after_ms = self.dice.choice((1, 200, 1_000))
        if self._folders and self.dice.random() < MOST:
            leaf, copy = self.dice.choice(self._folders)
            self.network.replace_folder(leaf, copy, back_after_ms)
        elif (wiped := self._leaf()) is not None:
            self.network.replace_folder(wiped, None, back_after_ms)

    def _force_out(self) -> None:
        leaf = self._leaf()
        if leaf is not None:
            space = self.dice.choice(self.network.spaces)
            leaf.log.streams[space].force_out(leaf.log.streams[space].durable)


def dice_limits(dice: Dice) -> int:
    """Return how often a limit forces messages out."""
    return dice.randint(0, 2)
