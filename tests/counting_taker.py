"""Takes the output of a connection machine for tests: counts how often the machine reported output."""

from __future__ import annotations

from broker.amqp.output import OutputTaker


class CountingTaker(OutputTaker):
    """Leaves the output where it is."""

    def __init__(self) -> None:
        self.told = 0

    def output_waits(self) -> None:
        self.told += 1
