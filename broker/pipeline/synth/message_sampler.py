"""Messages drawn from a workload, block by block: the n-th block of a seed is the same wherever it is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from typing import Any, Final

import numpy as np
import pyarrow as pa

from broker.amqp.content_header import FLAG_OF, KINDS
from broker.amqp.table_writer import encode_short_text, encode_table
from broker.amqp.wire import FLAGS
from broker.pipeline.source.header_json import table_to_json
from broker.pipeline.source.schema import ARROW_SCHEMA
from broker.pipeline.synth.key_pool import pool_of
from broker.pipeline.synth.workload import Header, Rate, Workload

__all__ = ["SLOT_ROWS", "Drawing", "MessageSampler", "sampler_of"]

BLOCK_ROWS_MAX: Final = 5_000
BLOCK_BYTES: Final = 8 << 20  # of bodies, in the mean
KEYS_MAX: Final = 100_000
HEADS_MAX: Final = 2_048  # combinations of properties and headers that occur
SLOT_ROWS: Final = 50_000
Z_99: Final = 2.326  # the 99th percentile of the normal distribution
BURST_MAX: Final = 10.0
DAY_MINUTES: Final = 1440
SAMPLERS_MAX: Final = 2
HEADS_STREAM, MINUTES_STREAM = 1 << 62, (1 << 62) + 1  # behind every block's number
COLUMN_OF: Final = {"message_type": "type"}  # a property's name -> that of the row


_samplers: dict[tuple[str, Drawing], MessageSampler] = {}


@dataclass(frozen=True, slots=True)
class Drawing:
    """What is to be drawn: how many messages, by which seed, as whose queue."""

    messages: int
    seed: int = 0
    queue: str = "synth"
    first_ms: int | None = None


class MessageSampler:
    """Draws messages.

    Cost: a few vector operations a block; the keys and headers to draw from are laid out once.
    Invariant: a block depends on workload, drawing and its number alone; rows come in the order of their times.
    """

    def __init__(self, workload: Workload, drawing: Drawing) -> None:
        self._drawing = drawing
        self._sizes = np.asarray(workload.sizes, dtype=np.float64)
        mean_bytes = max(float(self._sizes.mean()), 1.0)
        self.block_rows = int(min(max(BLOCK_BYTES / mean_bytes, 1), BLOCK_ROWS_MAX))
        self.blocks = -(-drawing.messages // self.block_rows)
        self._lay_out_keys(workload)
        self._heads = heads_of(workload, self._stream(HEADS_STREAM))
        self._lay_out_minutes(workload.rate)

    def rows(self, blocks: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some blocks."""
        for number in blocks:
            yield self.block(number)

    def block(self, number: int) -> pa.RecordBatch:
        """Return the rows of one block, by the schema of messages."""
        first = number * self.block_rows
        rows = min(self.block_rows, self._drawing.messages - first)
        draw = self._stream(number)
        keys = pa.array(np.searchsorted(self._key_bounds, draw.random(rows), side="right").clip(max=self._last_key))
        heads = pa.array(draw.integers(0, len(self._heads), rows))
        bodies = self._bodies(draw, rows)
        offsets: Any = np.arange(first, first + rows, dtype=np.int64)
        places = (offsets + 0.5) / self._drawing.messages
        times = np.interp(places, self._time_bounds, self._times_ms).astype(np.int64) * 1000
        made = {
            "vhost": self._vhosts.take(keys),
            "queue": pa.array([self._drawing.queue], pa.string()).take(pa.array(np.zeros(rows, np.int64))),
            "slot": pa.array(offsets // SLOT_ROWS * SLOT_ROWS + 1),
            "seal": pa.array(offsets // SLOT_ROWS + 1),
            "offset": pa.array(offsets + 1),
            "ts": pa.array(times, ARROW_SCHEMA.field("ts").type),
            "exchange": self._exchanges.take(keys),
            "routing_key": self._keys.take(keys),
            "redelivered": pa.array(np.zeros(rows, bool)),
            "body": bodies,
        }
        for name in self._heads.schema.names:
            made[name] = self._heads.column(name).take(heads)
        columns = [made[name] if name in made else pa.nulls(rows, kind.type) for name, kind in _fields()]
        return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)

    def _stream(self, number: int) -> np.random.Generator:
        key = np.array([self._drawing.seed % (1 << 64), number], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key))

    def _bodies(self, draw: np.random.Generator, rows: int) -> pa.Array:
        quantiles = np.linspace(0.0, 1.0, len(self._sizes))
        sizes = np.rint(np.interp(draw.random(rows), quantiles, self._sizes)).astype(np.int64)
        ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes))).astype(np.int32)
        octets = pa.py_buffer(draw.bytes(int(ends[-1])))
        return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(ends.tobytes()), octets])

    def _lay_out_keys(self, workload: Workload) -> None:
        total = sum(source.messages for source in workload.sources)
        shares: list[float] = []
        columns: tuple[list[str], list[str], list[str]] = ([], [], [])
        for source in workload.sources:
            room = max(100, KEYS_MAX * source.messages // total)
            for key, share in pool_of(source.keys, room, self._drawing.seed):
                shares.append(share * source.messages / total)
                for column, value in zip(columns, (source.vhost, source.exchange, key), strict=True):
                    column.append(value)
        self._key_bounds = np.cumsum(np.asarray(shares))
        self._last_key = len(shares) - 1
        self._vhosts, self._exchanges, self._keys = (pa.array(column, pa.string()) for column in columns)

    def _first_ms(self, rate: Rate) -> int:
        return rate.first_ms if self._drawing.first_ms is None else self._drawing.first_ms

    def _lay_out_minutes(self, rate: Rate) -> None:
        """Lay out which share of the messages has come by which minute; bursts beyond the profile's are drawn."""
        profile = np.asarray(rate.profile)
        minutes = int(max(1, np.ceil(self._drawing.messages / rate.mean_per_minute)))
        if len(profile) == DAY_MINUTES:  # it begins at midnight
            profile = np.roll(profile, -(self._first_ms(rate) // 60_000 % DAY_MINUTES))
        weights: Any = np.resize(profile, minutes)
        of_profile = float(np.quantile(profile, 0.99)) / max(float(profile.mean()), 1e-9)
        burst = min(max(rate.burst_factor / max(of_profile, 1e-9), 1.0), BURST_MAX)
        if len(rate.profile) < rate.minutes and burst > 1.0:  # a profile of every minute has its bursts in it
            sigma = Z_99 - sqrt(max(Z_99**2 - 2 * log(burst), 0.0))
            noise = self._stream(MINUTES_STREAM).standard_normal(minutes)
            weights = weights * np.exp(sigma * noise) * exp(-(sigma**2) / 2)
        weights = weights + 1e-9  # a share that stands still would give all its minutes to the first
        self._time_bounds = np.concatenate((np.zeros(1), np.cumsum(weights) / weights.sum()))
        self._times_ms: Any = self._first_ms(rate) + np.arange(minutes + 1, dtype=np.float64) * 60_000


def heads_of(workload: Workload, draw: np.random.Generator) -> pa.RecordBatch:
    """Return combinations of properties and headers as columns of the schema; each is as likely as another."""
    counts = [found.messages for found in workload.properties]
    choices: Any = draw.choice(len(counts), HEADS_MAX, p=np.asarray(counts) / sum(counts)) if counts else [None]
    if not counts and workload.headers:
        choices = [None] * HEADS_MAX
    made: list[dict[str, Any]] = []
    for choice in choices:
        row: dict[str, Any] = {} if choice is None else dict(workload.properties[choice].values)
        table = {
            header.name: value_of(header, draw)
            for header in workload.headers
            if draw.random() * workload.sampled < header.messages
        }
        octets = encode_table(table) if table else None
        row["properties_raw"] = encode_properties(row, octets)
        row["headers"] = None if octets is None else table_to_json(octets)
        made.append(row)
    names = sorted({name for row in made for name in row})
    columns = [pa.array([row.get(name) for row in made], ARROW_SCHEMA.field(name).type) for name in names]
    return pa.RecordBatch.from_arrays(columns, names=names)


def value_of(header: Header, draw: np.random.Generator) -> Any:
    """Return a value of a header: a frequent one, or one that stands for the rare ones."""
    at = draw.integers(0, header.messages)
    for value, messages in header.values:
        at -= messages
        if at < 0:
            return value
    rank = int(draw.integers(1, max(header.rare_values, 1) + 1))
    return {"text": f"~{rank}", "number": rank, "fraction": rank / 2, "boolean": rank % 2 == 0}[header.kind]


def encode_properties(values: dict[str, Any], table: bytes | None) -> bytes:
    """Return properties from their flags on. Raises: ValueError for what they cannot hold."""
    octets = {} if table is None else {"headers": table}
    for _, name, kind in KINDS:
        value = values.get(COLUMN_OF.get(name, name))
        if value is not None and kind in ("shortstr", "octet"):
            octets[name] = bytes([value]) if kind == "octet" else encode_short_text(value)
    flags = sum(FLAG_OF[name] for name in octets)
    return FLAGS.pack(flags) + b"".join(octets[name] for _, name, _ in KINDS if name in octets)


def sampler_of(text: str, drawing: Drawing) -> MessageSampler:
    """Return the sampler of a workload's text; made once in a process, however many tasks ask."""
    known = _samplers.get((text, drawing))
    if known is None:
        if len(_samplers) >= SAMPLERS_MAX:
            _samplers.clear()
        known = _samplers[text, drawing] = MessageSampler(Workload.from_json(text), drawing)
    return known


def _fields() -> Iterator[tuple[str, pa.Field]]:
    return ((name, ARROW_SCHEMA.field(name)) for name in ARROW_SCHEMA.names)
