"""The overlay brokers of this process, driven by its loop, its vhosts and their links."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.core.names import INTEREST, TRACE
from broker.event_log import get_logger
from broker.overlay.aggregation import Aggregation
from broker.overlay.inner import Inner
from broker.overlay.interest import Interest
from broker.overlay.leaf import Leaf
from broker.overlay.logical_broker import Timing
from broker.overlay.packets import Packet
from broker.overlay.peers import Outgoing
from broker.overlay_node.leaf_driver import LeafDriver
from broker.overlay_node.leaf_file import LeafFile
from broker.store.files import Files

if TYPE_CHECKING:
    from broker.delivery.engine import Engine
    from broker.overlay_node.overlay_link import OverlayLink
    from broker.settings import Settings
    from broker.settings.overlay import OverlayBroker
    from broker.vhosts.vhosts import Vhosts

_log = get_logger()

TIME_BITS: Final = 20  # a leaf has fewer than 2**20 virtual times per second; random bits distinguish its runs
ENFORCE_TICKS: Final = 50  # the limits are enforced once a second


class Participation:
    """The exchanges that take part in an overlay, as its settings define.

    A name may contain `*` for any characters. It is preceded by a vhost and a colon, unless the exchange is in the
    default vhost and its name contains no colon. The default, firehose and interest exchanges never take part.
    """

    def __init__(self, names: Iterable[str], default_vhost: str) -> None:
        parts = (name.rpartition(":") if name.count(":") < 2 else name.partition(":") for name in names)
        self._patterns = [
            (_expression(vhost) if colon else re.compile(re.escape(default_vhost)), _expression(exchange))
            for vhost, colon, exchange in parts
        ]

    def takes_part(self, vhost: str, exchange: str) -> bool:
        """Return whether an exchange of that name takes part."""
        return exchange not in ("", TRACE, INTEREST) and any(
            of_vhost.fullmatch(vhost) and of_exchange.fullmatch(exchange) for of_vhost, of_exchange in self._patterns
        )


class HeldBrokers:
    """Drive the overlay brokers of this process. The links call `opened`, `received` and `lost`.

    Invariant: the output that the events of one turn of the loop produce is sent together in the next one.
    """

    def __init__(
        self, settings: Settings, vhosts: Vhosts, files: Files, folder: Path, fail: Callable[[BaseException], None]
    ) -> None:
        overlay = settings.overlay
        self._vhosts = vhosts
        self._fail = fail
        self._scheduled = False
        self._started = False
        self._ends = False
        self._ticks = 0
        self.held = overlay.node
        self.links: dict[tuple[str, str], OverlayLink] = {}
        self._full: set[tuple[str, str]] = set()
        self.inners: dict[str, Inner] = {}
        self.driver: LeafDriver | None = None
        self._aggregation = Aggregation(overlay.aggregation)
        self._patterns_max = overlay.patterns_max
        self._withdraw_after_ms = overlay.withdraw_after_ms
        timing = Timing(silence_ms=overlay.silence_ms)
        for held in overlay.node:
            neighbours = _nodes(held)
            if held.leaf:
                participation = Participation(overlay.exchanges, settings.auth.default_vhost)

                def make_interest(bound: int, held: OverlayBroker = held) -> Interest:
                    return self._interest(held, own_leaf=held.broker, persisted_bound=bound)

                self.driver = LeafDriver(
                    held.broker,
                    neighbours[0],
                    make_interest,
                    timing,
                    participation.takes_part,
                    LeafFile(files, folder, held.broker),
                    overlay,
                    self.schedule,
                    fail,
                )
            else:
                self.inners[held.broker] = Inner(self._interest(held), neighbours, timing)

    def _interest(self, held: OverlayBroker, *, own_leaf: str | None = None, persisted_bound: int = 0) -> Interest:
        return Interest(
            held.node,
            _nodes(held),
            self._aggregation,
            self._patterns_max,
            own_leaf,
            persisted_bound=persisted_bound,
            incarnation=_incarnation(persisted_bound),
            withdraw_after_ms=self._withdraw_after_ms,
            one_way={neighbour.node for neighbour in held.neighbours if neighbour.subscriptions == "none"},
        )

    # -- running ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Attach the vhosts, before any link is opened. Raises: NewerFormat; CorruptFile; StoreFailed."""
        driver = self.driver
        if driver is not None:
            for engine in self._vhosts.engines.values():
                driver.attach(engine)
            self._vhosts.on_open(self._attach)
            self._vhosts.before_close(self._detach)  # a vhost's streams are deleted with its folder
            await driver.start()
        self._started = True
        self.schedule()

    async def stop(self) -> None:
        """Stop the brokers; the links must be closed before."""
        self._ends = True
        if self.driver is not None and self._started:
            await self.driver.stop()

    def forget(self, leaf: str) -> None:
        """Retain nothing more for a leaf that will not return.

        Raises: ValueError if no broker of this process knows the leaf, a link leads to it, or another broker still
            announces it.
        """
        brokers = [self._broker(held.broker) for held in self.held]
        vectors = [] if self.driver is None else [source.vector for source in self.driver.leaf.sources.values()]
        known = any(broker.interest.direction(leaf) is not None for broker in brokers)
        has_positions = self.driver is not None and self.driver.has_positions(leaf)
        if not (known or has_positions or any(leaf in vector for vector in vectors)):
            raise ValueError(f"no leaf '{leaf}' is known here")
        if leaf in {peer for _, peer in self.links}:
            raise ValueError(f"'{leaf}' is not away: a link leads to it")
        for broker in brokers:
            broker.interest.forget(leaf)
        self._after_event()
        nodes = {broker.interest.direction(leaf) for broker in brokers} - {held.node for held in self.held} - {None}
        for node in nodes:
            raise ValueError(f"tree node '{node}' still announces '{leaf}': run this at its brokers first")
        if self.driver is not None:
            self.driver.forget(leaf, _now_ms())
        _log.warning("overlay.leaf_forgotten", leaf=leaf)
        self._after_event()

    @property
    def busy(self) -> bool:
        """Whether a turn is scheduled, or the leaf has work."""
        return self._scheduled or (self._started and self.driver is not None and self.driver.busy)

    def schedule(self) -> None:
        """Schedule a turn of the brokers."""
        if self._started and not self._scheduled and not self._ends:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def tick(self) -> None:
        """Advance the time of the brokers; called every twenty milliseconds."""
        if not self._started or self._ends:
            return
        self._ticks += 1
        now_ms = _now_ms()
        for inner in self.inners.values():
            inner.tick(now_ms)
        if self.driver is not None:
            self.driver.tick(now_ms, enforce=self._ticks % ENFORCE_TICKS == 0)
        self._turn()

    def _turn(self) -> None:
        self._scheduled = False
        if self._ends:
            return
        try:
            self._update_full()
            now_ms = _now_ms()
            if self.driver is not None:
                self._send(self.driver.name, self.driver.turn(now_ms))
            for name, inner in self.inners.items():
                self._send(name, inner.take_output(now_ms))
            self._log_refused()
        except Exception as error:  # noqa: BLE001 - a defect or a failed store: nothing may be acknowledged after it
            self._ends = True
            self._fail(error)

    def _send(self, own: str, output: Sequence[Outgoing]) -> None:
        for _node, broker, packet in output:
            link = self.links.get((own, broker))
            if link is not None:
                link.send(packet)

    def _log_refused(self) -> None:
        """Log the messages that were too large for a neighbour; the leaves beyond it find a gap."""
        for held in self.held:
            for peer, stream, number in self._broker(held.broker).peers.take_refused():
                _log.warning(
                    "overlay.message_too_large",
                    broker=held.broker,
                    peer=peer,
                    vhost=stream.space.vhost,
                    exchange=stream.space.exchange,
                    leaf=stream.leaf,
                    number=number,
                    limit_bytes=self.links[held.broker, peer].limit_bytes,
                )

    def _update_full(self) -> None:
        """Notify the brokers of links that are full, or no longer full."""
        for pair, link in self.links.items():
            if link.full is not (pair in self._full):
                self._full ^= {pair}
                self._broker(link.own).full(link.node, link.peer, is_full=pair in self._full)

    def interest_of(self, name: str) -> Interest:
        """Return what a broker of this process knows of the interest of others."""
        return self._broker(name).interest

    def _broker(self, name: str) -> Inner | Leaf:
        driver = self.driver
        return driver.leaf if driver is not None and driver.name == name else self.inners[name]

    # -- vhosts -------------------------------------------------------------------------------------------------------

    def _attach(self, engine: Engine) -> None:
        assert self.driver is not None
        self.driver.attach(engine)
        self.schedule()

    async def _detach(self, engine: Engine) -> None:
        assert self.driver is not None
        self.driver.detach(engine.vhost.name)

    # -- links --------------------------------------------------------------------------------------------------------

    def opened(self, link: OverlayLink) -> None:
        """Begin a session on a link."""
        self.links[link.own, link.peer] = link
        self._full.discard((link.own, link.peer))
        self._broker(link.own).connected(link.node, link.peer, link.session, _now_ms(), link.limit_bytes)
        self._after_event()

    def received(self, link: OverlayLink, packets: Sequence[Packet]) -> None:
        """Process packets of an open link. Raises: Contradiction if the link must be closed because of an update."""
        broker, now_ms = self._broker(link.own), _now_ms()
        try:
            for packet in packets:
                broker.received(link.node, link.peer, packet, now_ms)
        finally:
            self._after_event()

    def lost(self, link: OverlayLink) -> None:
        """End the session on a link."""
        if self.links.get((link.own, link.peer)) is link:
            del self.links[link.own, link.peer]
            self._full.discard((link.own, link.peer))
            self._broker(link.own).lost(link.node, link.peer, _now_ms())
            self._after_event()

    def _after_event(self) -> None:
        if self.driver is not None:
            self.driver.after_event()
        self.schedule()


def _expression(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.split("*"))), re.DOTALL)


def _incarnation(bound: int) -> int:
    """Return the distance above the bound at which the virtual times of this process start.

    The clock makes them later than those of all earlier runs. If the clock is below the bound, or was ahead in an
    earlier run, the random bits at least make them different.
    """
    from_clock = int(time.time()) << TIME_BITS
    return max(0, from_clock - bound) + secrets.randbits(TIME_BITS)


def _nodes(held: OverlayBroker) -> tuple[str, ...]:
    """Return the neighbour tree nodes of a broker."""
    return tuple(dict.fromkeys(neighbour.node for neighbour in held.neighbours))


def _now_ms() -> int:
    """Return the time of the loop, by which the overlay measures its intervals."""
    return int(asyncio.get_running_loop().time() * 1000)
