"""The figures of the two articles, as printed or as read from their charts."""

from __future__ import annotations

WSO2 = "Fast Topic Matching Algorithm Implementation for WSO2 Message Broker (2015)"
RABBIT_1 = "Very fast and scalable topic routing, part 1 (2010)"
RABBIT_2 = "Very fast and scalable topic routing, part 2 (2011)"

BITMAP_RATIO, BITMAP_SUBSCRIPTIONS = 3.0, 1000
SPLIT_ONCE_RATIO = 3.0
"""... in all cases."""

TRIE_TO_NAIVE = 15.0
"""The naive matcher is the one that splits once."""
MILLION_S = {
    "trie": 11.7,
    "DFA, compiled NFA": 15.2,
    "NFA, compiled": 21.9,
    "lazy DFA": 26.7,
    "NFA": 37.0,
}
"""Seconds for 1,000,000 topics against 2,000 patterns."""
PATTERNS_S = {"trie": {250: 29.0, 5000: 42.0}, "dfa": {250: 50.0, 5000: 96.0}}
"""Seconds for 3,000,000 topics, read from the chart."""
PATTERNS_TOPICS = 3_000_000
MEMORY_BYTES = {"trie": {1_000_000: 1.44e6, 20_000_000: 1.44e6}, "dfa": {20_000_000: 50e6}}
"""2,000 patterns: 0.18 million and 6.3 million words of 8 bytes, read from the chart."""
BINDINGS_S = {"2.4.0 (trie)": {5000: 34.0, 40_000: 66.0}, "2.3.1 (before)": {5000: 1000.0, 40_000: 7700.0}}
"""Seconds, read from the chart, for an unstated number of messages; 25 to 145 times, says the text."""

TARGET_MATCH_US = {1000: 2.0, 10_000: 4.0, 100_000: 8.0, 1_000_000: 15.0}
TARGET_BYTES_PER_PATTERN = 500
TARGET_CHANGE_US = 20.0
TARGET_HIT_US = 0.3
TARGET_HOSTILE_P99_US = 1000.0
TARGET_BROKER_RATIO = 10.0
