"""The handle of a slot file that can be fetched: a sealed one, or one of a snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from broker.slot_files.seal_log import Seal
from broker.slot_files.slot_file import SlotMeta


@dataclass(frozen=True, slots=True)
class SlotHandle:
    """What is known about a slot file before it is fetched. Handles are pickled into tasks.

    Shapes: the fields of `Seal`, and the store. For a file of a snapshot, the seal is 0, `snapshot` is the snapshot's
        id and the file's number, and the timestamps are None, because only the file itself has them.
    """

    store: str
    seal: int
    vhost: str
    queue: str
    number: int
    first: int
    end: int
    count: int
    first_ts_ms: int | None
    last_ts_ms: int | None
    bytes: int
    crc: int
    incarnation: str = ""
    snapshot: tuple[str, int] | None = None

    @classmethod
    def of(cls, store: str, seal: Seal) -> Self:
        return cls(store, **{name: getattr(seal, name) for name in Seal.__slots__ if name in cls.__slots__})

    @classmethod
    def of_snapshot(cls, answer: Mapping[str, Any], vhost: str, queue: str) -> list[Self]:
        """Return the handles of a snapshot's files, from the broker's answer."""
        taken = answer["id"]
        return [
            cls(
                answer["store"], 0, vhost, queue, 0, file["first"], file["end"], file["count"],
                None, None, file["bytes"], file["crc"], snapshot=(taken, file["n"]),
            )
            for file in answer["files"]
        ]  # fmt: skip

    def __str__(self) -> str:
        if self.snapshot is None:
            return f"slot {self.seal} of tap {self.queue!r} in vhost {self.vhost!r}"
        return f"slot {self.snapshot[1]} of the snapshot of queue {self.queue!r} in vhost {self.vhost!r}"

    def differs_from(self, meta: SlotMeta) -> str:
        """Return a description of the first difference between the handle and its file, or "" if there is none."""
        for name in ("store", "seal", "vhost", "queue", "first", "end", "count"):
            meant, found = getattr(self, name), getattr(meta, name)
            if meant != found:
                return f"its {name} is {found!r}, not {meant!r}"
        return ""
