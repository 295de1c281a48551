"""An output taker for tests, which counts the reports of waiting output."""

from __future__ import annotations

from broker.amqp.output import OutputTaker


class CountingTaker(OutputTaker):
    """Leaves the output in the connection machine."""

    def __init__(self) -> None:
        self.told = 0

    def output_waits(self) -> None:
        self.told += 1
