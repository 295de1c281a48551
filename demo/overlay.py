"""The flights through an overlay: six brokers, five of which are killed and come back on the way."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack

from pika.adapters.blocking_connection import BlockingChannel
from rich.console import RenderableType

from demo.brokers import Broker, BrokerFailed, start_all
from demo.clients import PUBLISHERS as PUBLISHING_CLIENTS
from demo.gauges import LEAVES, MIDDLE, PUBLISHERS, SUBSCRIBERS, Gauges
from demo.ledger import Count
from demo.options import DEFAULT_COMMAND
from demo.pika_client import channel_to
from demo.plan import EXCHANGE
from demo.run import Fault, Run

AWAY_S = 3.0  # how long a broker in the middle stays away
PROBE = "demo.probe"
PROBES = 50
PROBE_PAUSE_S = 0.03  # grows with every probe


class OverlayRun(Run):
    """The overlay of the Gryphon paper's Figure 7. Each leaf opens its links to the brokers in the middle."""

    def perform(self) -> bool:
        """Publish and consume everything, and draw it; return whether the overlay kept its guarantees."""
        self._gauges = Gauges(self._brokers, self._delivered)
        plot = self._options.plot
        if plot is not None:
            from demo.picture import draw  # before the run: without matplotlib there is no picture
        try:
            held = super().perform()
        finally:
            self._gauges.stop()
        if plot is not None:
            draw(plot, self._gauges)
            print(f"written: {plot}")
        return held

    def _make_faults(self) -> list[Fault]:
        middle = [Fault(0.15, MIDDLE[:1], "none", AWAY_S), Fault(0.35, MIDDLE[1:], "none", AWAY_S)]
        return [*middle, Fault(0.6, SUBSCRIBERS[1:]), Fault(0.8, [PUBLISHERS])]

    def _start(self) -> None:
        for group in (MIDDLE, LEAVES):  # the leaves have to know the ports of the middle
            for name in group:
                settings = self._folder / f"{name}.toml"
                settings.write_text(self._settings(name))
                self._brokers[name] = Broker(name, f"{DEFAULT_COMMAND} --config {settings}", self._folder)
            start_all(self._brokers[name] for name in group)

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
        return [self._brokers[PUBLISHERS if client < PUBLISHING_CLIENTS else _site_of(client)].url]

    def _await_bindings(self) -> None:
        """Publish probes until one reaches every site before the next: the start point that the overlay promises.

        A site's bindings start in the order in which they were made: once a probe has reached the queue that was bound
        last, all others get what they want.
        """
        with ExitStack() as stack:
            publisher, *sites = [stack.enter_context(channel_to(url)) for url in self._homes]
            for site in sites:
                site.queue_declare(PROBE, exclusive=True)
                site.queue_bind(PROBE, EXCHANGE, routing_key=PROBE)
            for probe in range(1, PROBES):
                publisher.basic_publish(EXCHANGE, PROBE, str(probe).encode())
                time.sleep(PROBE_PAUSE_S * probe)
                if all(_newest_probe(site) == probe for site in sites):
                    break
            else:
                raise BrokerFailed(f"none of {PROBES} probes reached every site in time")
        for channel, queues in self._channels():
            for queue in queues:
                channel.queue_purge(queue.name)
        self._tell(f"every binding counts at {PUBLISHERS}: known by {probe} probes to each site")
        self._gauges.start()

    def _state(self) -> str:
        return self._gauges.summary()

    def _above(self) -> RenderableType:
        return self._gauges.table()

    def _tell(self, text: str) -> None:
        self._gauges.note(text)
        super()._tell(text)

    def _delivered(self) -> dict[str, int]:
        """Return how many messages the consumers of each site have got."""
        counts = dict.fromkeys(SUBSCRIBERS, 0)
        for client in range(PUBLISHING_CLIENTS, self._ledger.clients):
            counts[_site_of(client)] += self._ledger.counts(client)[Count.DELIVERED]
        return counts


def _site_of(client: int) -> str:
    return SUBSCRIBERS[(client - PUBLISHING_CLIENTS) % len(SUBSCRIBERS)]


def _newest_probe(site: BlockingChannel) -> int:
    """Return the number of the last probe that has arrived, 0 if none has."""
    newest = 0
    while (body := site.basic_get(PROBE, auto_ack=True)[2]) is not None:
        newest = int(body)
    return newest
