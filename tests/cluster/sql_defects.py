"""Defects that someone might make in the functions in PostgreSQL, and the tests that must catch them."""

from __future__ import annotations

from typing import Final

from tests.cluster.defect import Defect, defects

CALLS: Final = "broker/cluster/sql/calls.sql"
MEMBERS: Final = "broker/cluster/sql/members.sql"
FAILOVER: Final = "broker/cluster/sql/failover.sql"
FEATURES: Final = "broker/cluster/sql/features.sql"
SPACE: Final = "broker/cluster/sql/space.sql"
LIMITS: Final = "broker/cluster/sql/limits.sql"
SQL_TESTS: Final = (
    "tests/cluster/test_sql_calls.py",
    "tests/cluster/test_sql_fences.py",
    "tests/cluster/test_sql_members.py",
)
LIMITS_TESTS: Final = ("tests/cluster/test_sql_limits.py",)
SPACE_TESTS: Final = ("tests/cluster/test_sql_space.py",)
ORDER_TESTS: Final = ("tests/cluster/test_sql_order.py",)
FEATURES_TESTS: Final = ("tests/cluster/test_sql_features.py",)

SQL_DEFECTS: Final = (
    *defects(
        CALLS,
        SQL_TESTS,
        (
            "a commit without the fence",
            """    PERFORM fence(p_node, p_epoch);  -- assigns the transaction id before the call gets its number
    SELECT c.ring, c.generation INTO v_ring, v_generation FROM cluster c;
    INSERT INTO batch""",
            """    SELECT c.ring, c.generation INTO v_ring, v_generation FROM cluster c;
    INSERT INTO batch""",
        ),
        (
            "a leased message stays free",
            "UPDATE slot s SET bits = s.bits & ~t.taken FROM",
            "UPDATE slot s SET bits = s.bits FROM",
        ),
        (
            "a second lease of a slot replaces the first",
            "                        bits = s.bits | EXCLUDED.bits,\n",
            "                        bits = EXCLUDED.bits,\n",
        ),
        (
            "a settlement deletes the whole row",
            """            AND bit_count(s.bits & ~r.bits) = 0;
        IF NOT FOUND""",
            """            AND bit_count(s.bits & r.bits) > 0;
        IF NOT FOUND""",
        ),
        (
            "a settlement clears the messages of other nodes",
            """            UPDATE slot s SET bits = s.bits & ~r.bits
                WHERE s.level = r.level AND s.number = r.number AND s.holder = p_node
""",
            """            UPDATE slot s SET bits = s.bits & ~r.bits
                WHERE s.level = r.level AND s.number = r.number
""",
        ),
        (
            "a returned message is lost where the slot has free ones",
            """            bits = f.bits | EXCLUDED.bits,
            due_at = least(f.due_at, EXCLUDED.due_at),
            seen = either_bits(f.seen, EXCLUDED.seen),
            counts = merged_counts(f.counts, EXCLUDED.counts);
        IF q.counter""",
            """            due_at = least(f.due_at, EXCLUDED.due_at),
            seen = either_bits(f.seen, EXCLUDED.seen),
            counts = merged_counts(f.counts, EXCLUDED.counts);
        IF q.counter""",
        ),
        (
            "a call that is sent again is applied again",
            "    IF NOT FOUND THEN\n        -- this write",
            "    v_number := coalesce(v_number, nextval('number_of_call'));\n    IF false THEN\n        -- this write",
        ),
        (
            "two nodes lease from a level at once",
            "    v_limited := lock_levels(p_level); ",
            "    v_limited := lock_counters(p_level); ",
        ),
        (
            "a lease forgets that a message may have been delivered",
            "THEN t.taken ELSE (s.seen & t.taken)::varbit END AS taken_seen",
            "THEN t.taken END AS taken_seen",
        ),
        (
            "messages of before a fail-over are not redelivered",
            "CASE WHEN s.generation < v_generation THEN t.taken ELSE",
            "CASE WHEN false THEN t.taken ELSE",
        ),
        (
            "whole slots of before a fail-over are not redelivered",
            "CASE WHEN s.generation < v_generation THEN s.bits ELSE",
            "CASE WHEN false THEN s.bits ELSE",
        ),
        (
            "a lease takes a whole slot of which this node has another part",
            "WHEN f.free < length(f.bits) THEN 1 ELSE 2",
            "ELSE 2",
        ),
        (
            "a lease takes higher messages first",
            "ORDER BY s.number LIMIT least(",
            "ORDER BY s.number DESC LIMIT least(",
        ),
        (
            "a return brings the counts of other messages",
            "            counts_of(merged_counts(r.counts, q.counts), v_bits), r.sizes",
            "            merged_counts(r.counts, q.counts), r.sizes",
        ),
        (
            "an empty row stays where a return and a settlement met",
            "            IF v_left = 0 THEN ",
            "            IF false THEN ",
        ),
    ),
    *defects(
        MEMBERS,
        SQL_TESTS,
        (
            "a lease without the epoch",
            "PERFORM 1 FROM member m WHERE m.node = p_node AND m.epoch = p_epoch FOR SHARE;",
            "PERFORM 1 FROM member m WHERE m.node = p_node FOR SHARE;",
        ),
        (
            "a fence that no count-out waits for",
            "PERFORM 1 FROM member m WHERE m.node = p_node AND m.epoch = p_epoch FOR SHARE;",
            "PERFORM 1 FROM member m WHERE m.node = p_node AND m.epoch = p_epoch;",
        ),
        (
            "reclaim in one statement: the rows are freed with a snapshot from before the dead node's last call",
            """    DELETE FROM member m WHERE m.node = p_dead_node AND m.epoch = p_dead_epoch;  -- waits""",
            """    PERFORM free_rows(p_dead_node, p_dead_epoch);
    DELETE FROM member m WHERE m.node = p_dead_node AND m.epoch = p_dead_epoch;
    RETURN true;  -- waits""",
        ),
        (
            "what a dead node held is not marked redelivered",
            "d.due_at, d.bits, d.bits, d.counts,",
            "d.due_at, d.bits, d.seen, d.counts,",
        ),
        (
            "a row of a dead node replaces the free row of its slot",
            "bits = f.bits | EXCLUDED.bits,",
            "bits = EXCLUDED.bits,",
        ),
        (
            "a node is counted out although it has beaten again",
            "WHERE b.node = p_dead_node AND b.epoch = p_dead_epoch AND b.beats = p_dead_beats;",
            "WHERE b.node = p_dead_node AND b.epoch = p_dead_epoch;",
        ),
        (
            "two nodes fill a queue beyond its limit",
            "    ) ORDER BY c.level FOR NO KEY UPDATE OF c;",
            "    ) ORDER BY c.level;",
        ),
        (
            "nodes that count each other out lock their rows in two orders",
            """    IF p_dead_node < p_node COLLATE "C" THEN """,
            "    IF false THEN ",
        ),
    ),
    *defects(
        FAILOVER,
        SQL_TESTS,
        (
            "the database went back in time and nobody notices",
            "    IF NOT has_all THEN                             -- once",
            "    IF false THEN -- once",
        ),
        (
            "two nodes move the numbers after a fail-over",
            """-- a second node waits here
        WHERE (c.system_identifier, c.timeline) <> (v_system, v_timeline);""",
            ";  -- a second node waits here",
        ),
        ("the numbers stay after a fail-over", "n.last_value + 1000000", "n.last_value"),
        ("the numbers of levels stay after a fail-over", "s.last_value + 1024 * 1024", "s.last_value"),
        ("each node that misses a batch starts a generation", " WHERE c.generation <= p_generation;", ";"),
    ),
    Defect(
        "the database went back, and nobody notices because the publisher is gone",
        FAILOVER,
        "has_all := p_number <= (SELECT n.last_value FROM number_of_call n);",
        "has_all := true;",
        (*SQL_TESTS, "tests/cluster/test_restored_database.py"),
    ),
    *defects(
        SPACE,
        SPACE_TESTS,
        (
            "a ring table is emptied without a second look at the slots",
            "        IF EXISTS (SELECT FROM slot s WHERE s.ring = p_ring) THEN   -- a newer",
            "        IF false THEN   -- a newer",
        ),
        (
            "a ring table is emptied while calls write to it",
            "        EXECUTE format('LOCK TABLE chunk_%s IN ACCESS EXCLUSIVE MODE', p_ring);",
            "",
        ),
        (
            "survivors are copied while their bits move",
            "    PERFORM lock_levels(ARRAY(SELECT DISTINCT s.level FROM slot s WHERE s.ring = p_ring));\n",
            "",
        ),
        (
            "survivors are moved without their records",
            "WHERE number = ANY ($1) ON CONFLICT DO NOTHING', p_current",
            "WHERE number < 0 AND number = ANY ($1) ON CONFLICT DO NOTHING', p_current",
        ),
        ("the emptying waits for a backup", "'lock_timeout', '50ms'", "'lock_timeout', '0'"),
    ),
    Defect(
        "a queue that rejects publishes takes one too many",
        LIMITS,
        "r.max_length + v_room - v_ready)",
        "r.max_length + v_room - v_ready + 1)",
        SQL_TESTS,
    ),
    Defect(
        "a node forgets its newest synchronous batch",
        SPACE,
        "        AND b.sequence <> coalesce(p_synchronous, 0);",
        "        ;",
        SQL_TESTS,
    ),
    Defect(
        "a node leases what another one consumes alone",
        CALLS,
        " AND (p_keeps OR u.level <> ALL (v_elsewhere))\n",
        "\n",
        FEATURES_TESTS,
    ),
    *defects(
        CALLS,
        ORDER_TESTS,
        (
            "a call has its number before its transaction id",
            "    PERFORM fence(p_node, p_epoch);  -- assigns",
            "    PERFORM nextval('number_of_call');\n    PERFORM fence(p_node, p_epoch);  -- assigns",
        ),
        (
            "a lease takes the next id after the last completed transaction for its own",
            "v_began := pg_current_xact_id()::text;",
            "v_began := pg_snapshot_xmax(pg_current_snapshot())::text;",
        ),
        (
            "a transaction of others lets leases pass the calls in flight",
            "v_finished := oldest_call();",
            "v_finished := v_began;",
        ),
        ("a transaction of others stops the bound of leases", "AND random() < 0.02 THEN", "AND false THEN"),
    ),
    *defects(
        FEATURES,
        FEATURES_TESTS,
        (
            "an exclusive consumer is granted beside another",
            "bool_or(c.exclusive OR p_exclusive)",
            "bool_or(c.exclusive AND p_exclusive)",
        ),
        ("a producer is taken from its node", " WHERE p.node IS NULL;", ";"),
    ),
    Defect(
        "levels of a queue lose their heads twice",
        LIMITS,
        "        v_messages := v_messages - e.messages;\n",
        "",
        FEATURES_TESTS,
    ),
    *defects(
        CALLS,
        LIMITS_TESTS,
        ("a commit does not drop what is too much", "        PERFORM drop_excess(s_level);\n", "        NULL;\n"),
        (
            "a time to live of nothing ends though a consumer waits",
            "        WHERE NOT EXISTS (SELECT FROM consumer c WHERE c.level = n.queue)\n",
            "",
        ),
    ),
    *defects(
        LIMITS,
        LIMITS_TESTS,
        (
            "a commit drops what should be dead-lettered",
            "            AND NOT c.buries AND NOT starts_with",
            "            AND NOT starts_with",
        ),
        (
            "a commit drops the lowest level first",
            "        ORDER BY c.level, level_rank(s.level) DESC, s.level DESC\n",
            "        ORDER BY c.level, level_rank(s.level), s.level\n",
        ),
        (
            "messages that were leased leave room for more",
            "greatest(max(a.able) - coalesce(sum(t.messages), 0), 0) AS room",
            "max(a.able) AS room",
        ),
    ),
)
