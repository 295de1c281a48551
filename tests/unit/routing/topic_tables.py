"""Patterns and the keys that they match, from tests, specifications and issues of other brokers."""

from __future__ import annotations

# rabbitmq-server, routing_SUITE (topic_matching), with t24 from before patterns were limited to two `#`
SUITE_BINDINGS = {
    1: "a.b.c",
    2: "a.*.c",
    3: "a.#.b",
    4: "a.b.b.c",
    5: "#",
    6: "#.#",
    7: "#.b",
    8: "*.*",
    9: "a.*",
    10: "*.b.c",
    11: "a.#",
    12: "a.#.#",
    13: "b.b.c",
    14: "a.b.b",
    15: "a.b",
    16: "b.c",
    17: "",
    18: "*.*.*",
    19: "vodka.martini",
    20: "a.b.c",
    21: "*.#",
    22: "#.*.#",
    23: "*.#.#",
    24: "#.#.#",
    25: "*",
    26: "#.b.#",
    27: "args-test",
}
SUITE_EXPECTED = {
    "a.b.c": {1, 2, 5, 6, 10, 11, 12, 18, 20, 21, 22, 23, 24, 26},
    "a.b": {3, 5, 6, 7, 8, 9, 11, 12, 15, 21, 22, 23, 24, 26},
    "a.b.b": {3, 5, 6, 7, 11, 12, 14, 18, 21, 22, 23, 24, 26},
    "": {5, 6, 17, 24},
    "b.c.c": {5, 6, 18, 21, 22, 23, 24, 26},
    "a.a.a.a.a": {5, 6, 11, 12, 21, 22, 23, 24},
    "vodka.gin": {5, 6, 8, 21, 22, 23, 24},
    "vodka.martini": {5, 6, 8, 19, 21, 22, 23, 24},
    "b.b.c": {5, 6, 10, 13, 18, 21, 22, 23, 24, 26},
    "nothing.here.at.all": {5, 6, 21, 22, 23, 24},
    "oneword": {5, 6, 21, 22, 23, 24, 25},
    "args-test": {5, 6, 21, 22, 23, 24, 25, 27},
}

AMQP_TABLES: dict[str, tuple[list[str], dict[str, set[str]]]] = {
    # rabbitmq-server, rabbit_db_topic_exchange_SUITE
    "empty segments": ([".#", ".*", ".*.a.b.c"], {".0.a.b.c": {".#", ".*.a.b.c"}, ".": {".#", ".*"}, "": set()}),
    # rabbitmq-server issue 1383, rabbitmq-website issue 317
    "#1383": (["a.#.b"], {"a.b": {"a.#.b"}, "a..b": {"a.#.b"}, "a.x.b": {"a.#.b"}, "ab": set()}),
    "#317": (["#.*"], {"..": {"#.*"}, "": set()}),
    "overlap": (  # the words before and after a `#` must not share a word of the key
        ["a.#.a", "a.b.#.b.a", "a.a.#.a", "*.#.*", "a.#.a.#.a"],
        {
            "a": set(),
            "a.a": {"a.#.a", "*.#.*"},
            "a.b.a": {"a.#.a", "*.#.*"},
            "a.a.a": {"a.#.a", "a.a.#.a", "*.#.*", "a.#.a.#.a"},
            "a.b.b.a": {"a.#.a", "a.b.#.b.a", "*.#.*"},
            "a.b.a.b.a": {"a.#.a", "a.b.#.b.a", "*.#.*", "a.#.a.#.a"},
        },
    ),
    # words are compared, not bytes, letter case or similar glyphs
    "unicode": (
        ["straße.*.日本", "*.é", "*.e\u0301", "#.\U0001f407"],
        {
            "straße.x.日本": {"straße.*.日本"},
            "Straße.x.日本": set(),
            "strasse.x.日本": set(),
            "x.é": {"*.é"},
            "x.e\u0301": {"*.e\u0301"},
            "\U0001f407": {"#.\U0001f407"},
            "\ud83d.\udc07": set(),
        },
    ),
    # wildcard characters are ordinary in a published key, and within a longer word of a pattern
    "published wildcards": (
        ["a.*", "a.b", "#.c", "a#b.*", "**.#", "*.##"],
        {
            "a.*": {"a.*"},
            "a.#": {"a.*"},
            "*.b": set(),
            "#": set(),
            "*.c": {"#.c"},
            "#.c": {"#.c"},
            "a#b.x": {"a#b.*"},
            "a.x.b": set(),
            "**": {"**.#"},
            "x": set(),
            "a.##": {"a.*", "*.##"},
        },
    ),
    "empty words": (
        ["", "*", "*.*", ".", "#..#", "a..b", "a.*.b"],
        {
            "": {""},
            ".": {"*.*", ".", "#..#"},
            "..": {"#..#"},
            "a": {"*"},
            "a.": {"*.*", "#..#"},
            ".a": {"*.*", "#..#"},
            "a..b": {"#..#", "a..b", "a.*.b"},
            "a.b": {"*.*"},
        },
    ),
}

# topic filters, each with topics that it matches and topics that it does not match
# sources: mosquitto's topic_test.c, EMQX's emqx_topic_SUITE, MQTT 5.0, 4.7
MQTT_FILTERS: dict[str, tuple[list[str], list[str]]] = {
    "foo/#": (["foo", "foo/", "foo/bar", "foo/bar/baz"], ["fo", "foobar", "/foo"]),
    "foo//+": (["foo//bar", "foo//"], ["foo/bar", "foo//bar/"]),
    "foo/+": (["foo/bar", "foo/"], ["foo/bar/baz", "foo", "Foo/bar"]),
    "foo/+/+/baz": (["foo///baz", "foo/a/b/baz"], ["foo/a/baz"]),
    "foo/bar/+": (["foo/bar/"], ["foo/bar"]),
    "foo/+/#": (["foo/bar", "foo/bar/baz", "foo/"], ["foo"]),
    "A/B/+/#": (["A/B/B/C", "A/B/B"], ["A/B", "a/B/B"]),
    "test/6/#": (["test/6", "test/6/a"], ["test/3", "test/6a"]),
    "#": (["/foo/bar", "a", "/", ""], ["$SYS/bar", "$SYS", "$"]),
    "/#": (["/foo/bar", "/", ""], ["foo/bar", "$SYS/bar"]),
    "+": (["finance", ""], ["/finance", "$finance"]),
    "+/#": (["a", "a/b", "/"], ["$SYS", "$SYS/a"]),
    "+/+": (["/finance", "/", "a/$b"], ["finance", "$SYS/a"]),
    "sport/+": (["sport/"], ["sport"]),
    "+/monitor/Clients": (["x/monitor/Clients"], ["$SYS/monitor/Clients"]),
    "$SYS/#": (["$SYS", "$SYS/a/b"], ["SYS/a", "$BOB/a"]),
    "$SYS/+": (["$SYS/a"], ["$SYS", "$SYS/a/b"]),
    "$BOB/bar": (["$BOB/bar"], ["$SYS/bar", "BOB/bar"]),
    "a/$b/+": (["a/$b/c"], ["a/b/c"]),
    "a/+/c": (["a//c", "a/$/c"], ["a//c/", "a/c"]),
    "a/+/c/#": (["a//c/", "a/b/c"], ["a/b/d"]),
    "a.b/+": (["a.b/c"], ["a/b", "a/b/c", "a.b.c"]),
    "a/*": (["a/*"], ["a/b"]),
    "*/+": (["*/b"], ["a/b", "b"]),
    "+/*/#": (["a/*", "a/*/b"], ["a/b", "a"]),
    "日本/+": (["日本/é"], ["日/本"]),
}
