"""The run with an overlay: six brokers, five of which are killed and restarted."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import accumulate, pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

from bench.picture import BLUE, GREEN, GREY, ORANGE, PALE, RED, horizontal_bars, new_figure, plain
from broker.cli.control_client import Unanswered, ask
from broker.cli.table import aligned
from demo.brokers import Broker, in_parallel
from demo.clients import PUBLISHERS, channel_to
from demo.ledger import Count, Failed
from demo.options import DEFAULT_COMMAND
from demo.plan import EXCHANGE
from demo.run import Fault, Run

PUBLISHING = "publishers"
MIDDLE = ("middle-1", "middle-2", "middle-3")
SUBSCRIBERS = ("europe", "america")
LEAVES = (PUBLISHING, *SUBSCRIBERS)
NAMES = (PUBLISHING, *MIDDLE, *SUBSCRIBERS)
COLUMNS = "broker|state|links|knows (V_b)|patterns|forwarded|filtered|flooded|MB out|lag".split("|")
LINKS = [*product([PUBLISHING], MIDDLE), *product(MIDDLE, SUBSCRIBERS)]
COLOURS = dict(zip((*MIDDLE, *SUBSCRIBERS), (BLUE, GREY, PALE, ORANGE, GREEN), strict=True))
AWAY_S = 3.0  # how long a broker in the middle stays away
PROBE = "demo.probe"
PROBES, PROBE_PAUSE_S = 50, 0.03  # the pause grows with every probe
ASK_EVERY_S = 0.5
SMOOTH = 4  # the samples of a rate in the picture

# What `slotmq overlay --json` shows of a broker, and its state. Counts restart at 0 with each start of its process.
Facts = Mapping[str, Any]


class Sample(NamedTuple):
    """All brokers at one moment, and the number of messages that each site's consumers have received."""

    at_s: float
    facts: Mapping[str, Facts]
    delivered: Mapping[str, int]


class OverlayRun(Run):
    """The overlay of the Gryphon paper's Figure 7. Each leaf opens its links to the brokers in the middle."""

    def perform(self) -> bool:
        """Publish and consume everything, and draw it; return whether the overlay kept its guarantees."""
        plot = self._options.plot
        if plot is not None:
            new_figure((1, 1))  # without matplotlib, fail before the run
        self._now: Mapping[str, Facts] = {name: {"state": "starting"} for name in NAMES}
        self._samples: list[Sample] = []
        self._events: list[tuple[float, str]] = []
        self._ended = threading.Event()
        asking = threading.Thread(target=self._ask, daemon=True)  # a slow answer does not delay the run
        asking.start()
        try:
            held = super().perform()
        finally:
            self._ended.set()
            asking.join()
        if plot is not None:
            draw(plot, self._samples, self._events)
            print(f"written: {plot}")
        return held

    def _make_faults(self) -> list[Fault]:
        middle = [Fault(0.15, MIDDLE[:1], "none", AWAY_S), Fault(0.35, MIDDLE[1:], "none", AWAY_S)]
        return [*middle, Fault(0.6, SUBSCRIBERS[1:]), Fault(0.8, [PUBLISHING])]

    def _start(self, stack: ExitStack) -> None:
        for group in (MIDDLE, LEAVES):  # the leaves need the ports of the middle
            for name in group:
                settings = self._folder / f"{name}.toml"
                settings.write_text(self._settings(name))
                self._brokers[name] = Broker(name, f"{DEFAULT_COMMAND} --config {settings}", self._folder)
            in_parallel(Broker.start, [self._brokers[name] for name in group])

    def _settings(self, name: str) -> str:
        """Return the settings of a broker, as TOML; strings of JSON are strings of TOML, too."""
        if name in MIDDLE:
            node, neighbours = "middle", [f'{{ node = "{leaf}", broker = "{leaf}" }}' for leaf in LEAVES]
        else:
            urls = [(inner, json.dumps(self._brokers[inner].url)) for inner in MIDDLE]
            node, neighbours = name, [f'{{ node = "middle", broker = "{to}", url = {url} }}' for to, url in urls]
        return (
            f'[overlay]\nexchanges = ["{EXCHANGE}"]\n[[overlay.node]]\nbroker = "{name}"\nnode = "{node}"\n'
            f"leaf = {json.dumps(name in LEAVES)}\nneighbours = [{', '.join(neighbours)}]\n"
        )

    def _urls(self, client: int) -> Sequence[str]:
        return [self._brokers[PUBLISHING if client < PUBLISHERS else _site_of(client)].url]

    def _await_bindings(self) -> None:
        """Publish probes until one reaches every site before the next: the start point that the overlay promises.

        A site's bindings take effect in the order in which they were made: once a probe has reached the queue that was
        bound last, all other bindings are in effect.
        """
        with ExitStack() as stack:
            publisher, *sites = [stack.enter_context(channel_to(url)) for url in self._homes]
            for site in sites:
                site.queue_declare(PROBE, exclusive=True, arguments={"x-max-length": 1})  # keeps the newest probe
                site.queue_bind(PROBE, EXCHANGE, routing_key=PROBE)
            for probe in range(1, PROBES):
                publisher.basic_publish(EXCHANGE, PROBE, b"%d" % probe)
                time.sleep(PROBE_PAUSE_S * probe)
                if all(site.basic_get(PROBE, auto_ack=True)[2] == b"%d" % probe for site in sites):
                    break
            else:
                raise Failed(f"none of {PROBES} probes reached every site in time")
        for channel, queues in self._channels():
            for queue in queues:
                channel.queue_purge(queue.name)
        super()._tell(f"every binding is in effect at {PUBLISHING}, after {probe} probes to each site")

    def _tell(self, text: str) -> None:
        self._events.append((time.monotonic(), text))
        super()._tell(text)

    def _ask(self) -> None:
        while not self._ended.wait(ASK_EVERY_S):
            self._now = {name: _facts_of(self._brokers.get(name), self._now[name]) for name in NAMES}
            delivered = dict.fromkeys(SUBSCRIBERS, 0)
            for client in range(PUBLISHERS, self._ledger.clients):
                delivered[_site_of(client)] += self._ledger.counts(client)[Count.DELIVERED]
            if any(delivered.values()):
                self._samples.append(Sample(time.monotonic(), self._now, delivered))

    def _state(self) -> str:
        down = [f"{name} {facts['state']}" for name, facts in self._now.items() if facts["state"] != "up"]
        forwarded = sum(passed(self._now[name]) for name in MIDDLE)
        filtered = sum(self._now[name].get("filtered", 0) for name in MIDDLE)
        return f"brokers {', '.join(down) or 'all up'}; middle: {forwarded:,} passed on, {filtered:,} filtered"

    def _above(self) -> str:
        return "\n".join(aligned(COLUMNS, [cells(name, facts) for name, facts in self._now.items()]))


def _site_of(client: int) -> str:
    return SUBSCRIBERS[(client - PUBLISHERS) % len(SUBSCRIBERS)]


def _facts_of(broker: Broker | None, before: Facts) -> Facts:
    if broker is None or broker.state != "up":
        return {"state": broker.state if broker else "starting"}
    try:
        return {"state": "up", **ask(broker.data, "overlay")[0]}
    except Unanswered:
        return {**before, "state": "no answer"}


def passed(facts: Facts) -> int:
    """Return the messages that a broker in the middle has passed on since its process started."""
    return int(facts.get("matched", 0) + facts.get("flooded", 0))


def cumulative(counts: Iterable[int]) -> list[int]:
    """Return the sums of a count that restarts at 0 with its process."""
    return list(accumulate(now - before if now >= before else now for before, now in pairwise([0, *counts])))


def cells(name: str, facts: Facts) -> list[str]:
    """Return a row of the table; a leaf has forwarded what it published into the overlay or received from it."""
    if facts["state"] != "up":
        return [name, facts["state"], *[""] * len(COLUMNS[2:])]
    streams, links = facts.get("streams", []), facts["links"]
    up = f"{sum(link['state'] != 'down' for link in links)}/{len(links)}"
    known = " ".join(sorted(f"{row['leaf']}:{row['time']}" for row in facts["leaves"]))
    row = [name, "up", up, known, f"{sum(row['count'] for row in facts['patterns']):,}"]
    sent_mb = f"{sum(link['sent_bytes'] for link in links) / 1e6:,.1f}"
    if name in MIDDLE:
        return [*row, *(f"{facts.get(count, 0):,}" for count in ("matched", "filtered", "flooded")), sent_mb, ""]
    on = sum(one["sent"] for one in streams) if name == PUBLISHING else facts.get("delivered", 0)
    return [*row, f"{on:,}", "", "", sent_mb, f"{sum(one['lag'] for one in [*streams, *facts.get('received', [])]):,}"]


def draw(path: Path, samples: Sequence[Sample], events: Sequence[tuple[float, str]]) -> None:
    """Draw a run: the megabytes over each link, and the rates of sites and brokers in the middle, with all faults."""
    figure = new_figure((11, 9))
    links, sites, middle = figure.subplots(3, 1)
    sent = [
        {(name, link["peer"]): link["sent_bytes"] for name in NAMES for link in one.facts[name].get("links", [])}
        for one in samples
    ]
    crossed = {link: max(cumulative(found.get(link, 0) for found in sent), default=0) / 1e6 for link in LINKS}
    colours = [COLOURS[one if one in MIDDLE else other] for one, other in LINKS]
    horizontal_bars(links, {" to ".join(link): count for link, count in crossed.items()}, colours, "MB over each link")
    got = {name: [one.delivered[name] for one in samples] for name in SUBSCRIBERS}
    on = {name: cumulative(passed(one.facts[name]) for one in samples) for name in MIDDLE}
    times = [sample.at_s - samples[0].at_s for sample in samples]
    spans = [(max(0, at - SMOOTH), at) for at in range(1, len(times))]
    for axes, counts, label in ((sites, got, "messages to consumers"), (middle, on, "messages passed on")):
        for name, values in counts.items():
            rates = [(values[at] - values[since]) / (times[at] - times[since]) for since, at in spans]
            axes.plot(times[1:], rates, color=COLOURS[name], label=name, linewidth=1.4)
        axes.set_ylim(0)
        plain(axes, "", "seconds", f"{label}\nper second", legend=True)
        for at_s, text in events:
            names, killed, _ = text.partition(" killed")
            if killed or " started again" in text:
                look = {"color": RED, "linestyle": "-"} if killed else {"color": GREEN, "linestyle": ":"}
                axes.axvline(at_s - samples[0].at_s, linewidth=0.9, **look)
                said = f"{names} killed ".replace(" and ", ",\n") if killed else ""
                axes.text(at_s - samples[0].at_s, axes.get_ylim()[1], said, size=7, va="top", ha="right", rotation=90)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
