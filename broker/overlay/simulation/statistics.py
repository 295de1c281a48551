"""What crossed the links of a simulated network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from broker.overlay.packets import Packet


@dataclass(slots=True)
class Statistics:
    """Packets, and bytes if `size_bytes` measures them, by link and kind of packet."""

    size_bytes: Callable[[Packet], int] | None = None
    packets: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    bytes: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    elements: Counter[tuple[str, str]] = field(default_factory=Counter)

    def count(self, sender: str, receiver: str, packet: Packet) -> None:
        """Count a packet that was put on a link."""
        kind = type(packet).__name__
        self.packets[sender, receiver, kind] += 1
        if self.size_bytes is not None:
            self.bytes[sender, receiver, kind] += self.size_bytes(packet)

    def by_kind(self) -> dict[str, tuple[int, int]]:
        """Return packets and bytes by kind."""
        packets: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for (_, _, kind), count in self.packets.items():
            packets[kind] += count
        for (_, _, kind), size in self.bytes.items():
            sizes[kind] += size
        return {kind: (count, sizes[kind]) for kind, count in sorted(packets.items())}

    def lines(self) -> list[str]:
        """Return a table of the kinds of packets, and of the elements of runs."""
        rows = [f"{kind:10} {count:>10} packets {size:>12} bytes" for kind, (count, size) in self.by_kind().items()]
        return [*rows, f"{'elements':10} {sum(self.elements.values()):>10} over {len(self.elements)} lanes"]
