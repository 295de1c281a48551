"""The extent of a run of this benchmark: full, or quick."""

from __future__ import annotations

from dataclasses import dataclass

PARTS = ("sizes", "broker", "hostile", "cache", "claims", "blog")


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes, rounds and limits of each part.

    Units: a `slice` is the time of one contestant in one round; `bound` limits longer steps.
    """

    rounds: int = 5
    slice_s: float = 0.05
    claim_sizes: tuple[int, ...] = (10, 30, 100, 300, 1000, 3000, 10_000)
    claim_keys: int = 30_000
    claim_slice_s: float = 0.03
    blog_patterns: int = 2000
    blog_topics: int = 1_000_000
    blog_sizes: tuple[int, ...] = (250, 500, 1000, 2000, 3500, 5000)
    blog_slice_s: float = 0.15
    binding_sizes: tuple[int, ...] = (5000, 10_000, 20_000, 40_000)
    dfa_bound_bytes: int = 1 << 30
    sizes: tuple[int, ...] = (1000, 10_000, 100_000, 1_000_000)
    size_keys: int = 100_000
    together: int = 100_000
    """Up to this size all engines run at once; above, one at a time."""
    changes: int = 5000
    match_bound_us: float = 120_000.0
    build_bound_s: float = 75.0
    memory_bound_bytes: int = 6 << 30
    hostile_patterns: int = 10_000
    hostile_matches: int = 1000
    hostile_bound_s: float = 1.0
    cache_patterns: int = 10_000
    cache_keys: int = 10_000
    thrash_keys: int = 1_000_000
    broker_sizes: tuple[int, ...] = (10_000, 100_000)
    bind_bound_s: float = 200.0
    broker_rounds: int = 3
    broker_seconds: float = 1.2
    broker_keys: int = 120_000
    """The maximum of new keys per broker and round; a round ends when they are used up."""


WHOLE = Plan()
QUICK = Plan(
    rounds=3,
    slice_s=0.01,
    claim_sizes=(10, 100, 1000),
    claim_keys=5000,
    claim_slice_s=0.01,
    blog_topics=20_000,
    blog_sizes=(250, 2000),
    blog_slice_s=0.03,
    binding_sizes=(5000,),
    dfa_bound_bytes=128 << 20,
    sizes=(1000, 10_000),
    size_keys=20_000,
    changes=1000,
    hostile_patterns=1000,
    hostile_matches=100,
    hostile_bound_s=0.3,
    cache_patterns=1000,
    cache_keys=1000,
    thrash_keys=50_000,
    broker_sizes=(500, 1000),
    broker_rounds=1,
    broker_seconds=0.7,
    broker_keys=30_000,
)
