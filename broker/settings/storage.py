"""The settings of storage: slots, the store, the slot files of taps, memory."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from broker.settings.fields import AT_ONCE, GiB, KiB, MiB, Milliseconds, SettingsSection, Size, number


class Slots(SettingsSection):
    """When a queue's open slot is sealed, and how many workers deliver."""

    window_messages: int = number(
        1000, 1, 65_536, "messages", "A slot is sealed at this number of messages", "WSO2 slots"
    )
    window_bytes: Size = number(MiB, 4 * KiB, GiB, "bytes", "... or at this size")
    window_ms: Milliseconds = number(
        10_000, 100, 3_600_000, "ms", "... or at this age. Messages are delivered before their slot is sealed, too."
    )
    workers: int = number(2, 1, 256, "workers", "How many delivery workers share the queues.")


class Store(SettingsSection):
    """The storage of messages on disk."""

    sync: bool = Field(
        default=True,
        description="Whether a confirm waits for fdatasync. Without it, a power loss can lose confirmed messages.",
    )
    segment_bytes: Size = number(
        64 * MiB, MiB, 4 * GiB - 1, "bytes", "The size of a log file. Disk space is freed by whole files."
    )
    checkpoint_interval_ms: Milliseconds = number(
        30_000,
        1000,
        3_600_000,
        "ms",
        "How often a checkpoint is written, from which recovery starts; also when a log file is full.",
        reload=AT_ONCE,
    )
    compact_below_ratio: float = number(
        0.25,
        0.0,
        0.9,
        "part",
        "A log file is rewritten when less than this share of it is still needed; 0 means never.",
        reload=AT_ONCE,
    )
    on_corruption: Literal["refuse", "quarantine"] = Field(
        default="refuse",
        description="What happens when synced data is damaged or missing: refuse keeps the vhost offline, quarantine "
        "continues without the data.",
    )
    disk_free_min_bytes: Size = number(
        256 * MiB, 0, 1024 * GiB, "bytes", "Publishers are blocked while the disk has less free space than this.",
        "RabbitMQ disk_free_limit", reload=AT_ONCE,
    )  # fmt: skip
    reserve_bytes: Size = number(
        64 * MiB,
        0,
        1024 * GiB,
        "bytes",
        "Disk space held back in the data folder, so that a broker on a full disk can start and drain; publishers are "
        "blocked while a part of it is missing. 0 means none.",
    )

    @property
    def quarantines(self) -> bool:
        """Whether the broker continues without damaged or missing data."""
        return self.on_corruption == "quarantine"


class TapSettings(SettingsSection):
    """When taps write slot files, and how much a tap without caps of its own keeps."""

    window_messages: int = number(
        50_000, 1, 65_536, "messages", "A tap writes a slot file at this number of messages", reload=AT_ONCE
    )
    window_bytes: Size = number(
        16 * MiB, 4 * KiB, GiB, "bytes", "... or at this size; a file is hardly larger", reload=AT_ONCE
    )
    window_ms: Milliseconds = number(
        5_000, 100, 3_600_000, "ms", "... or when the oldest message has waited this long.", reload=AT_ONCE
    )
    window_max_ms: Milliseconds = number(
        60_000,
        100,
        3_600_000,
        "ms",
        "While a tap has no reader, window_ms doubles with each of its files up to this, so that it writes fewer. "
        "A value up to window_ms turns that off.",
        reload=AT_ONCE,
    )
    max_bytes: Size = number(
        10 * GiB,
        MiB,
        1024 * 1024 * GiB,
        "bytes",
        "A tap's oldest slot files are deleted when its files together are larger than this",
        reload=AT_ONCE,
    )
    max_age_ms: Milliseconds = number(
        604_800_000,
        1000,
        315_360_000_000,
        "ms",
        "... or when they are this old, even if a reader needs them: that is a gap.",
        reload=AT_ONCE,
    )
    snapshot_ms: Milliseconds = number(
        3_600_000,
        1000,
        86_400_000,
        "ms",
        "How long a snapshot of a queue exists; at most until the next start.",
        reload=AT_ONCE,
    )
    snapshots_user_max: int = number(
        4,
        1,
        64,
        "snapshots",
        "How many snapshots a user has; one more replaces the user's oldest",
        reload=AT_ONCE,
    )
    snapshots_disk_ratio: float = number(
        0.2,
        0.0,
        1.0,
        "part",
        "... and the share of the disk for the snapshots of all users; those of one user take no more than they "
        "leave to others.",
        reload=AT_ONCE,
    )
    cursors_user_max: int = number(
        100, 0, 1000, "cursors", "How many cursors of taps a user can create over HTTP.", reload=AT_ONCE
    )


class Memory(SettingsSection):
    """The memory for messages, and the memory alarm."""

    resident_max_bytes: Size = number(
        128 * MiB,
        MiB,
        1024 * GiB,
        "bytes",
        "How many bytes of messages stay in memory; beyond it slots are paged out to disk.",
        reload=AT_ONCE,
    )
    alarm_ratio: float = number(
        0.4, 0.01, 1.0, "part",
        "Publishers are blocked while the process uses more than this share of the machine's memory.",
        "RabbitMQ vm_memory_high_watermark", reload=AT_ONCE,
    )  # fmt: skip
    alarm_bytes: Size = number(
        0, 0, 1024 * GiB, "bytes", "The same as a number of bytes; 0 means that alarm_ratio applies.", reload=AT_ONCE
    )
