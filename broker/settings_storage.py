"""The settings of what is kept and where: slots, the store, the slot files of taps, memory."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from broker.settings_fields import AT_ONCE, GiB, KiB, MiB, SettingsSection, number

__all__ = ["Memory", "Slots", "Store", "TapSettings"]


class Slots(SettingsSection):
    """When a queue's open slot is sealed, and who delivers."""

    window_messages: int = number(1000, 1, 65_536, "messages", "A slot is sealed at so many messages", "WSO2 slots")
    window_bytes: int = number(MiB, 4 * KiB, GiB, "bytes", "... or at so many bytes")
    window_ms: int = number(
        10_000, 100, 3_600_000, "ms", "... or at this age. Messages are delivered before that as well."
    )
    workers: int = number(2, 1, 256, "workers", "Slot delivery workers; each has its share of the queues.")


class Store(SettingsSection):
    """What is on disk, and when it is safe there."""

    sync: bool = Field(
        default=True,
        description="Whether a confirm waits for fdatasync; without, a power loss loses confirmed messages.",
    )
    segment_bytes: int = number(
        64 * MiB, MiB, 4 * GiB - 1, "bytes", "The size of a log file; space comes back by files."
    )
    checkpoint_interval_ms: int = number(
        30_000,
        1000,
        3_600_000,
        "ms",
        "How often the state is written down, so that recovery starts from there; also when a log file is full.",
        reload=AT_ONCE,
    )
    compact_below_ratio: float = number(
        0.25,
        0.0,
        0.9,
        "part",
        "A log file of which less than this is still needed is rewritten; 0 is never.",
        reload=AT_ONCE,
    )
    on_corruption: Literal["refuse", "quarantine"] = Field(
        default="refuse",
        description="What damage to what had been synced means: its vhost stays offline, or it is set aside loudly.",
    )
    disk_free_min_bytes: int = number(
        256 * MiB, 0, 1024 * GiB, "bytes", "Publishers are blocked while the disk has less than this free.",
        "RabbitMQ disk_free_limit", reload=AT_ONCE,
    )  # fmt: skip
    reserve_bytes: int = number(
        64 * MiB,
        0,
        1024 * GiB,
        "bytes",
        "Disk space held back in the data folder, so that a broker can start on a full disk and be drained; 0 is none.",
    )


class TapSettings(SettingsSection):
    """What taps keep in slot files for readers, and how much a tap keeps when it says nothing itself."""

    window_messages: int = number(
        50_000, 1, 65_536, "messages", "The messages of a tap go into a slot file when they are so many", reload=AT_ONCE
    )
    window_bytes: int = number(
        16 * MiB, 4 * KiB, GiB, "bytes", "... or so many bytes; a file is hardly longer", reload=AT_ONCE
    )
    window_ms: int = number(5_000, 100, 3_600_000, "ms", "... or when the oldest has waited so long.", reload=AT_ONCE)
    max_bytes: int = number(
        10 * GiB,
        MiB,
        1024 * 1024 * GiB,
        "bytes",
        "A tap's slot files go, the oldest first, when they are longer in all",
        reload=AT_ONCE,
    )
    max_age_ms: int = number(
        604_800_000,
        1000,
        315_360_000_000,
        "ms",
        "... or this old, whoever has not read them: that is a gap.",
        reload=AT_ONCE,
    )
    snapshot_ms: int = number(
        3_600_000,
        1000,
        86_400_000,
        "ms",
        "How long a snapshot of a queue is there to be read; at most until the next start.",
        reload=AT_ONCE,
    )


class Memory(SettingsSection):
    """What may stay in memory."""

    resident_max_bytes: int = number(
        128 * MiB,
        MiB,
        1024 * GiB,
        "bytes",
        "Message bytes kept in memory; beyond it sealed slots stay on disk only.",
        reload=AT_ONCE,
    )
    alarm_ratio: float = number(
        0.4, 0.01, 1.0, "part", "Publishers are blocked while the process has more than this of the machine's memory.",
        "RabbitMQ vm_memory_high_watermark", reload=AT_ONCE,
    )  # fmt: skip
    alarm_bytes: int = number(
        0, 0, 1024 * GiB, "bytes", "The same as a number of bytes; 0 leaves it to alarm_ratio.", reload=AT_ONCE
    )
