"""The settings of storage: slots, the store, the slot files of taps, and memory."""

from __future__ import annotations

from typing import Literal

from broker.settings.fields import AT_ONCE, GiB, KiB, MiB, Milliseconds, SettingsSection, Size, number


class Slots(SettingsSection):
    """When a queue's open slot is sealed, and how many workers deliver messages."""

    window_messages: int = number(1000, 1, 65_536, "messages", "WSO2 slots")
    """A slot is sealed when it contains this number of messages."""
    window_bytes: Size = number(MiB, 4 * KiB, GiB, "bytes")
    """A slot is sealed when it reaches this size."""
    window_ms: Milliseconds = number(10_000, 100, 3_600_000, "ms")
    """A slot is sealed when it reaches this age. Its messages can be delivered before that."""
    workers: int = number(2, 1, 256, "workers")
    """How many delivery workers share the queues."""


class Store(SettingsSection):
    """The storage of messages on disk."""

    sync: bool = True
    """Whether a confirm waits for fdatasync. Without it, a power loss can lose confirmed messages."""
    segment_bytes: Size = number(64 * MiB, MiB, 4 * GiB - 1, "bytes")
    """The size of a log file. Disk space is freed by whole files."""
    checkpoint_interval_ms: Milliseconds = number(30_000, 1000, 3_600_000, "ms", reload=AT_ONCE)
    """How often a checkpoint is written, from which recovery starts; also when a log file is full."""
    compact_below_ratio: float = number(0.25, 0.0, 0.9, "part", reload=AT_ONCE)
    """A log file is rewritten when less than this share of it is still needed; 0 means never."""
    on_corruption: Literal["refuse", "quarantine"] = "refuse"
    """What happens when synced data is damaged or missing: refuse keeps the vhost offline, quarantine continues without
    the data."""
    disk_free_min_bytes: Size = number(256 * MiB, 0, 1024 * GiB, "bytes", "RabbitMQ disk_free_limit", reload=AT_ONCE)
    """Publishers are blocked while the disk has less free space than this."""
    reserve_bytes: Size = number(64 * MiB, 0, 1024 * GiB, "bytes")
    """Disk space held back in the data folder, so that a broker on a full disk can start and drain; publishers are
    blocked while a part of it is missing. 0 means none."""

    @property
    def quarantines(self) -> bool:
        return self.on_corruption == "quarantine"


class TapSettings(SettingsSection):
    """When taps write slot files, and how much a tap without its own caps keeps."""

    window_messages: int = number(50_000, 1, 65_536, "messages", reload=AT_ONCE)
    """A tap writes a slot file when this number of messages waits."""
    window_bytes: Size = number(16 * MiB, 4 * KiB, GiB, "bytes", reload=AT_ONCE)
    """A tap writes a slot file when the waiting messages reach this size, which a file hardly exceeds."""
    window_ms: Milliseconds = number(5_000, 100, 3_600_000, "ms", reload=AT_ONCE)
    """A tap writes a slot file when its oldest message has waited this long."""
    window_max_ms: Milliseconds = number(60_000, 100, 3_600_000, "ms", reload=AT_ONCE)
    """While a tap has no reader, window_ms doubles with each of its files up to this, so that it writes fewer. A value
    up to window_ms turns that off."""
    max_bytes: Size = number(10 * GiB, MiB, 1024 * 1024 * GiB, "bytes", reload=AT_ONCE)
    """A tap's oldest slot files are deleted when its files together are larger than this."""
    max_age_ms: Milliseconds = number(604_800_000, 1000, 315_360_000_000, "ms", reload=AT_ONCE)
    """A tap's slot files are deleted at this age, even if a reader has not read them; the reader then finds a gap."""
    snapshot_ms: Milliseconds = number(3_600_000, 1000, 86_400_000, "ms", reload=AT_ONCE)
    """How long a snapshot of a queue exists; at most until the next start."""
    snapshots_user_max: int = number(4, 1, 64, "snapshots", reload=AT_ONCE)
    """How many snapshots a user can have; another one replaces the user's oldest snapshot."""
    snapshots_disk_ratio: float = number(0.2, 0.0, 1.0, "part", reload=AT_ONCE)
    """The share of the disk for the snapshots of all users. A user can take at most half of what the others leave."""
    cursors_user_max: int = number(100, 0, 1000, "cursors", reload=AT_ONCE)
    """How many cursors of taps a user can create over HTTP."""


class Memory(SettingsSection):
    """The memory for messages, and the memory alarm."""

    resident_max_bytes: Size = number(128 * MiB, MiB, 1024 * GiB, "bytes", reload=AT_ONCE)
    """How many bytes of messages stay in memory; beyond it slots are paged out to disk."""
    alarm_ratio: float = number(0.4, 0.01, 1.0, "part", "RabbitMQ vm_memory_high_watermark", reload=AT_ONCE)
    """Publishers are blocked while the process uses more than this share of the machine's memory."""
    alarm_bytes: Size = number(0, 0, 1024 * GiB, "bytes", reload=AT_ONCE)
    """The limit of the memory alarm in bytes; 0 means that alarm_ratio applies."""
