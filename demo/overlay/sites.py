"""The brokers of a run: a leaf for publishers, three brokers in the tree node between, two leaves for subscribers."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from demo.broker_process import BrokerProcess
from demo.ledger import Address
from demo.plan import EXCHANGE

PUBLISHERS = "publishers"
MIDDLE = ("middle-1", "middle-2", "middle-3")
SUBSCRIBERS = ("europe", "america")
LEAVES = (PUBLISHERS, *SUBSCRIBERS)
NAMES = (PUBLISHERS, *MIDDLE, *SUBSCRIBERS)
COMMAND = (
    f"{sys.executable} -m broker serve --host 127.0.0.1 --port {{{{port}}}} --data-dir {{{{folder}}}} "
    "--config {settings}"
)


class Sites:
    """The overlay of the Gryphon paper's Figure 7. Each leaf opens its links to the brokers in the middle."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._brokers: dict[str, BrokerProcess] = {}
        self.addresses: dict[str, Address] = {}
        self.states = dict.fromkeys(NAMES, "starting")

    def start(self) -> tuple[Address, float]:
        """Start all brokers; return the publishers' address and how long it took. Raises: BrokerFailed."""
        began_s = time.monotonic()
        for group in (MIDDLE, LEAVES):  # the leaves have to know the ports of the middle
            for name in group:
                own = self._folder / name
                own.mkdir()
                settings = own / "settings.toml"
                settings.write_text(self._settings(name))
                self._brokers[name] = BrokerProcess(COMMAND.format(settings=settings), own)
            with ThreadPoolExecutor() as starters:
                started = list(starters.map(lambda name: self._brokers[name].start(), group))
            for name, (address, _) in zip(group, started, strict=True):
                self.addresses[name] = address
                self.states[name] = "up"
        return self.addresses[PUBLISHERS], time.monotonic() - began_s

    def check(self) -> None:
        """Check that every broker that was not killed is alive. Raises: BrokerFailed."""
        for name, broker in self._brokers.items():
            if self.states[name] == "up":
                broker.check()

    def kill_broker(self, name: str) -> None:
        """End a broker by SIGKILL."""
        self.states[name] = "killed"
        self._brokers[name].kill()

    def restart(self, name: str) -> float:
        """Start a killed broker on its folder and port; return how long it took. Raises: BrokerFailed."""
        _, took_s = self._brokers[name].start()
        self.states[name] = "up"
        return took_s

    def folder_of(self, name: str) -> Path:
        """Return a broker's data folder, which has its control socket."""
        return self._folder / name / "broker"

    def kill(self) -> None:
        """End everything by SIGKILL."""
        for broker in self._brokers.values():
            broker.kill()

    def stop(self) -> float:
        """Stop every broker; return how long that took. Raises: BrokerFailed."""
        began_s = time.monotonic()
        self.states = dict.fromkeys(NAMES, "stopped")
        with ThreadPoolExecutor() as stoppers:
            list(stoppers.map(BrokerProcess.stop, self._brokers.values()))
        return time.monotonic() - began_s

    def last_words(self) -> str:
        """Return the last lines of every broker."""
        return os.linesep.join(f"{name}:\n{broker.last_words()}" for name, broker in self._brokers.items())

    def _settings(self, name: str) -> str:
        """Return the settings of a broker, as TOML."""
        if name in MIDDLE:
            node, neighbours = "middle", [{"node": leaf, "broker": leaf} for leaf in LEAVES]
        else:
            node, neighbours = name, [{"node": "middle", "broker": inner, "url": self._url(inner)} for inner in MIDDLE]
        lines = [
            "[overlay]",
            f"exchanges = [{json.dumps(EXCHANGE)}]",
            "[[overlay.node]]",
            f"broker = {json.dumps(name)}",
            f"node = {json.dumps(node)}",
            f"leaf = {json.dumps(name in LEAVES)}",
            f"neighbours = [{', '.join(_inline(neighbour) for neighbour in neighbours)}]",
        ]
        return "\n".join(lines) + "\n"

    def _url(self, name: str) -> str:
        address = self.addresses[name]
        return f"amqp://{address.user}:{address.password}@{address.host}:{address.port}"


def _inline(table: Mapping[str, Any]) -> str:
    """Return an inline table of TOML; strings of JSON are strings of TOML too."""
    return "{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in table.items()) + " }"
