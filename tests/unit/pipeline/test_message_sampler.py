"""Messages drawn from a workload."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

from broker.amqp.content_header import decode_properties  # noqa: E402 - what it stands on may be missing
from broker.pipeline.source.schema import ARROW_SCHEMA  # noqa: E402
from broker.pipeline.synth.anonymiser import Anonymiser  # noqa: E402
from broker.pipeline.synth.key_tree import build_tree  # noqa: E402
from broker.pipeline.synth.message_sampler import Drawing, MessageSampler  # noqa: E402
from broker.pipeline.synth.traffic import rate_of, vocabulary_of  # noqa: E402
from broker.pipeline.synth.workload import BadWorkload, Header, Properties, Rate, Source, Workload  # noqa: E402

STEADY = Rate(1_790_000_000_000 // 60_000 * 60_000, 60, 1000.0, 1000.0, 1000, 1.0, (1.0,) * 60)
WORKLOAD = Workload(
    messages=1000,
    sources=(
        Source("/", "ex", 900, build_tree([("a.b", 600), ("a.c", 300)])),
        Source("v", "amq.topic", 100, build_tree([("x", 100)])),
    ),
    sizes=(0, 100, 200),
    rate=STEADY,
    sampled=100,
    properties=(Properties({"content_type": "text/plain", "type": "t"}, 75), Properties({"delivery_mode": 2}, 25)),
    headers=(
        Header("kind", "text", 50, (("one", 30), ("two", 10)), 5, 10),
        Header("n", "number", 100, ((7, 100),), 0, 0),
    ),
    bindings=({"exchange": "ex", "pattern": "a.*", "queue": "q"},),
)


def rows(workload: Workload, drawing: Drawing) -> list[dict[str, Any]]:
    """Return all rows."""
    sampler = MessageSampler(workload, drawing)
    return [row for batch in sampler.rows(range(sampler.blocks)) for row in batch.to_pylist()]


def test_a_block_is_the_same_whoever_makes_it_and_another_for_another_seed() -> None:
    """In whatever order, and beside whichever others."""
    drawing = Drawing(12_000, seed=3)
    one, other = MessageSampler(WORKLOAD, drawing), MessageSampler(WORKLOAD, drawing)
    assert one.blocks == 3
    backwards = [other.block(number) for number in (2, 1, 0)]
    assert [one.block(number) for number in range(3)] == backwards[::-1]
    assert one.block(0) != MessageSampler(WORKLOAD, replace(drawing, seed=4)).block(0)


def test_messages_have_the_statistics_of_the_workload() -> None:
    """Keys, sizes, properties and headers, each as often as it should be, give or take what chance gives."""
    found = rows(WORKLOAD, Drawing(8_000, seed=1))
    assert len(found) == 8_000
    keys = Counter((row["vhost"], row["exchange"], row["routing_key"]) for row in found)
    assert {key: round(count / 8_000, 1) for key, count in keys.items()} == {
        ("/", "ex", "a.b"): 0.6,
        ("/", "ex", "a.c"): 0.3,
        ("v", "amq.topic", "x"): 0.1,
    }
    sizes = sorted(len(row["body"]) for row in found)
    assert (sizes[0], sizes[-1]) == (0, 200)
    assert 90 < sizes[4_000] < 110
    shares = {name: sum(row[name] is not None for row in found) / 8_000 for name in ("content_type", "delivery_mode")}
    assert shares == {"content_type": pytest.approx(0.75, abs=0.04), "delivery_mode": pytest.approx(0.25, abs=0.04)}
    kinds = Counter((decode_properties(bytes(12) + row["properties_raw"]).headers or {}).get("kind") for row in found)
    assert kinds["one"] / 8_000 == pytest.approx(0.3, abs=0.04)
    assert kinds[None] / 8_000 == pytest.approx(0.5, abs=0.05)
    assert {kind for kind in kinds if kind not in ("one", "two", None)} == {f"~{rank}" for rank in range(1, 6)}


def test_columns_say_what_the_octets_say() -> None:
    """Properties are in their columns and encoded; ids are dense, slots have seals, times rise."""
    sampler = MessageSampler(WORKLOAD, Drawing(60_000, seed=1))
    whole = pa.Table.from_batches(sampler.rows(range(sampler.blocks)))
    for row in whole.slice(0, 200).to_pylist():
        decoded = decode_properties(bytes(12) + row["properties_raw"])
        said = (decoded.content_type, decoded.message_type, decoded.delivery_mode)
        assert said == (row["content_type"], row["type"], row["delivery_mode"])
        assert row["headers"] is not None
    assert whole.column("offset").to_pylist() == list(range(1, 60_001))
    slots = whole.group_by(["seal", "slot"]).aggregate([([], "count_all")]).to_pylist()
    assert {(slot["seal"], slot["slot"]): slot["count_all"] for slot in slots} == {(1, 1): 50_000, (2, 50_001): 10_000}
    times = whole.column("ts").cast(pa.int64()).to_pylist()
    assert times == sorted(times)
    assert 59 <= (times[-1] - times[0]) / 60_000_000 <= 60
    assert MessageSampler(WORKLOAD, Drawing(1)).block(0).schema == ARROW_SCHEMA


def test_large_bodies_make_small_blocks() -> None:
    """A block's bodies are some megabytes, whatever a message has."""
    sampler = MessageSampler(replace(WORKLOAD, sizes=(4 << 20, 4 << 20)), Drawing(5))
    assert (sampler.block_rows, sampler.blocks) == (2, 3)
    assert sum(len(body) for body in sampler.block(0).column("body").to_pylist()) == 8 << 20


def test_minutes_follow_the_profile_of_a_day() -> None:
    """A day with one busy hour has it at the same time, whenever generation begins."""
    profile = tuple(13.0 if 8 * 60 <= minute < 9 * 60 else 0.5 for minute in range(1440))
    busy = replace(
        WORKLOAD, rate=replace(STEADY, minutes=2880, mean_per_minute=10.0, profile=profile, burst_factor=13.0)
    )
    noon_ms = 1_790_000_000_000 // 86_400_000 * 86_400_000 + 12 * 3_600_000
    found = rows(busy, Drawing(14_400, seed=1, first_ms=noon_ms))
    hours = Counter(row["ts"].hour for row in found)
    assert hours.most_common(1)[0][0] == 8
    assert hours[8] > 14_400 / 2 > 10 * hours[20]


def test_a_rate_says_mean_burst_and_profile() -> None:
    """Minutes without messages count; a history of a day or more folds into one day."""
    short = rate_of({100: 10, 103: 30})
    assert (short.first_ms, short.minutes, short.mean_per_minute, short.max_per_minute) == (6_000_000, 4, 10.0, 30)
    assert short.profile == (1.0, 0.0, 0.0, 3.0)
    long = rate_of({minute: 4 if minute % 1440 == 5 else 1 for minute in range(2880)})
    assert len(long.profile) == 1440
    assert long.profile.index(max(long.profile)) == 5
    assert max(long.profile) / min(long.profile) == pytest.approx(4.0, abs=0.01)


def test_a_vocabulary_counts_combinations_and_plain_headers() -> None:
    """What the broker acts on, and tables, are left out; octets that are no properties are passed over."""
    from tests.unit.pipeline.encoded import properties

    sample = [
        *[properties({"kind": "a", "CC": ["x"], "deep": {"a": 1}}, content_type="t")] * 3,
        *[properties({"kind": "b"})] * 2,
        None,
        b"\xff",
    ]
    found = vocabulary_of(sample)
    assert {tuple(each.values.items()): each.messages for each in found.properties} == {
        (("content_type", "t"),): 3,
        (): 3,
    }
    assert found.headers == (Header("kind", "text", 5, (("a", 3), ("b", 2)), 0, 0),)


def test_a_workload_survives_its_file_and_loses_its_words_when_anonymous() -> None:
    """Nothing of words, names and values is left but types of content; patterns go with the keys."""
    assert Workload.from_json(WORKLOAD.to_json()) == WORKLOAD
    made = Anonymiser(b"salt")
    anonymous = WORKLOAD.anonymised(made)
    text = anonymous.to_json()
    assert Workload.from_json(text) == anonymous
    assert not [word for word in ('"a"', '"b"', '"one"', '"two"', '"name": "kind"', '"ex"', '"q"') if word in text]
    assert anonymous.bindings[0]["pattern"] == f"{made.word('a')}.*"
    assert anonymous.sources[1].exchange == "amq.topic"
    assert [source.messages for source in anonymous.sources] == [900, 100]


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"kind": "slotmq-workload", "format": 2}', WORKLOAD.to_json()[:-40]]
)
def test_what_is_no_workload_is_said(text: str) -> None:
    """In one line."""
    with pytest.raises(BadWorkload, match=r"^[^\n]*$"):
        Workload.from_json(text)
