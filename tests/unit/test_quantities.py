"""Sizes and times with units: in settings of every layer, and as arguments of commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.cli.broker_folder import SettingsError
from broker.cli.settings_layers import load
from broker.quantities import duration_ms, size_bytes
from broker.settings import Settings, limits, sections

UNITS = {"bytes": "B", "ms": "ms", "s": "s"}


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("1", 1), ("0", 0), ("10GB", 10**10), ("1.5 kib", 1536), ("2mib", 2 << 20), ("0.1TB", 10**11), ("7B", 7)],
)
def test_sizes(text: str, bytes_: int) -> None:
    """Units are powers of ten and of two, in any letter case."""
    assert size_bytes(text) == bytes_


@pytest.mark.parametrize(
    ("text", "ms"),
    [("250", 250), ("7d", 604_800_000), ("90s", 90_000), ("1.5h", 5_400_000), ("5m", 300_000), ("5min", 300_000)],
)
def test_times(text: str, ms: int) -> None:
    """Units are weeks to milliseconds."""
    assert duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "ten", "10 parsecs", "-1", "0.1", "1e9", "1" * 400, "٣", "10 k", "1G"])
def test_what_is_no_quantity(text: str) -> None:
    """The error describes a valid value; K, M and G have two meanings and so none."""
    for reading in (size_bytes, duration_ms):
        with pytest.raises(ValueError, match="should be a"):
            reading(text)


def test_every_size_and_time_of_the_settings_takes_a_unit() -> None:
    """A number with its own unit is the number, whatever the key is; a plain number in text is, too."""
    seen = 0
    for section, _model, fields in sections():
        for key, field in fields.items():
            extra = field.json_schema_extra
            unit = UNITS.get(str(extra.get("unit")) if isinstance(extra, dict) else "")
            if unit is None:
                continue
            seen += 1
            low = limits(field)[0]
            for said in (f"{low}{unit}", f"{low}", low):
                assert getattr(getattr(Settings(**{section: {key: said}}), section), key) == low, f"{section}.{key}"
    assert seen > 40


def test_units_in_a_file_and_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer takes them; a limit holds for the number, and what is not a quantity is told with an example."""
    file = tmp_path / "slotmq.toml"
    file.write_text('[store]\ndisk_free_min_bytes = "1GB"\n[amqp]\nheartbeat_s = "2m"\nconsumer_timeout_ms = "30m"\n')
    monkeypatch.setenv("SLOTMQ_TAPS__WINDOW_MS", "2s")
    settings = load(file)
    assert settings.store.disk_free_min_bytes == 10**9
    assert (settings.amqp.heartbeat_s, settings.amqp.consumer_timeout_ms, settings.taps.window_ms) == (
        120,
        1_800_000,
        2000,
    )
    for text, reason in (
        ("1 parsec", "should be a size such as 10GB or 512MiB"),
        ("-1", "should be greater than or equal to 0"),
        ("9TiB", "should be less than or equal to"),
    ):
        monkeypatch.setenv("SLOTMQ_AMQP__TX_MAX_BYTES" if "TiB" in text else "SLOTMQ_STORE__DISK_FREE_MIN_BYTES", text)
        with pytest.raises(SettingsError) as refused:
            load(file)
        assert reason in str(refused.value)
        monkeypatch.delenv("SLOTMQ_AMQP__TX_MAX_BYTES", raising=False)
        monkeypatch.delenv("SLOTMQ_STORE__DISK_FREE_MIN_BYTES", raising=False)
    monkeypatch.setenv("SLOTMQ_AMQP__HEARTBEAT_S", "500ms")
    with pytest.raises(SettingsError, match="HEARTBEAT_S: should be a whole number"):
        load(file)
