"""The shared part of the scenarios without messages: many conversations, the first fault, and the result."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterable, Mapping
from typing import Final

from broker.perf.conversation import Conversation, Switchboard
from broker.perf.crew import Interruption
from broker.perf.faults import Fault, Refusal
from broker.perf.machine import ProcessTree, TreeUsage, make_room
from broker.perf.outcome import document, generator, used
from broker.perf.peer import Address, PeerConnection, Script
from broker.perf.progress import RunProgress
from broker.perf.result import Figure, Result

TURN_S: Final = 0.2


class ScriptedRun:
    """The conversations of a run, and the resource usage since its start.

    Invariant: `fault` is the first fault of any conversation, None without one.
    """

    def __init__(
        self,
        options: Namespace,
        progress: RunProgress,
        interruption: Interruption,
        sockets: int,
        heartbeat_s: float = 0,
    ) -> None:
        """Connect to the broker and read the usage of its process; `sockets` is the number that the run needs.

        Raises: Fault, OSError for a broker that refuses a first connection, or a process that does not exist.
        """
        make_room(sockets + 1)
        self.options = options
        self.progress = progress
        self.interruption = interruption
        self.address: Address = options.uri
        self.board = Switchboard(heartbeat_s)
        self.fault: Fault | None = None
        first = PeerConnection(self.address, 1)
        self._product = first.product
        first.close()
        self._tree = ProcessTree(options.pid) if options.pid else None
        self._outset = self.usage()
        if self._tree is not None:
            if self._outset is None or not self._outset.rss_bytes:
                raise Fault(f"no process {options.pid} on this machine")
            self._tree.reset_peak()
        self._watch = Stopwatch()

    def usage(self) -> TreeUsage | None:
        """Return what the broker has used so far, None if its process is unknown."""
        return self._tree.usage() if self._tree else None

    def dial(self, script: Script) -> Conversation | None:
        """Return a new conversation that follows `script`; None, with the fault, if it cannot be opened."""
        try:
            return self.board.dial(self.address, script)
        except OSError as error:
            self.fault = self.fault or Refusal(f"no more connections: {error.strerror or error}")
            return None

    def note(self, talks: Iterable[Conversation]) -> None:
        """Note the first fault of these conversations."""
        for talk in talks:
            self.fault = self.fault or talk.fault

    def result(self, figures: Mapping[str, Figure], failures: Iterable[str], busy_share: float) -> Result:
        """Return the result document."""
        return document(
            self.options,
            self._product,
            self._watch.seconds(),
            generator=generator(self._watch.cpu_s(), busy_share),
            process=used(self._outset, self.usage(), 0),
            figures=dict(figures),
            failures=tuple(failures),
        )


class Stopwatch:
    """Measures the duration of a stage and the CPU time that this process spends in it."""

    def __init__(self) -> None:
        self._began_s, self._cpu_s = time.monotonic(), time.process_time()

    def seconds(self) -> float:
        """Return the elapsed time; never 0."""
        return max(1e-9, time.monotonic() - self._began_s)

    def cpu_s(self) -> float:
        """Return the CPU time that this process used."""
        return time.process_time() - self._cpu_s

    def busy_share(self) -> float:
        """Return the CPU time of this process as a share of the elapsed time."""
        return self.cpu_s() / self.seconds()
