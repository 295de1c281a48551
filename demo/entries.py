"""Where the clients of a run connect: publishers to one broker, consumers to one or, in turn, to several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from demo.ledger import Address
from demo.plan import Shares


@dataclass(frozen=True, slots=True)
class Entries:
    """The addresses of a run."""

    publish: Address
    consume: tuple[Address, ...]

    @classmethod
    def single(cls, address: Address) -> Entries:
        """Return one broker for all clients."""
        return cls(address, (address,))

    def of_consumer(self, number: int) -> Address:
        """Return where a consumer connects; pika's consumers come first."""
        return self.consume[number % len(self.consume)]

    def homes(self, shares: Shares) -> list[Address]:
        """Return where each queue of the plan is: at the broker of its consumer."""
        groups = [*shares.pika, *shares.aio]
        found = {index: self.of_consumer(number) for number, group in enumerate(groups) for index in group}
        return [found[index] for index in range(len(found))]

    def brokers(self) -> Sequence[Address]:
        """Return every address once."""
        return list(dict.fromkeys((self.publish, *self.consume)))
