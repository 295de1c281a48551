"""The invariants of the shared store, recomputed from its tables.

The fifth one, that no topology version is answered before every member has applied it, is not visible in the tables.
"""

from __future__ import annotations

from typing import Final

import asyncpg

_CHECKS: Final = (
    (  # 1: every unsettled message has its bit in exactly one row
        "message in more than one row",
        """SELECT s.level, s.number, sum(bit_count(s.bits)) AS bits, bit_count(bit_or(s.bits)) AS messages FROM slot s
           GROUP BY s.level, s.number HAVING count(*) > 1 AND sum(bit_count(s.bits)) <> bit_count(bit_or(s.bits))""",
    ),
    ("row without a message", "SELECT s.level, s.number, s.holder FROM slot s WHERE bit_count(s.bits) = 0"),
    (
        "numbers of a node do not ascend",
        """SELECT b.* FROM (SELECT b.node, b.epoch, b.sequence, b.number,
               lag(b.number) OVER (PARTITION BY b.node, b.epoch ORDER BY b.sequence) AS former FROM batch b) b
           WHERE b.former >= b.number""",
    ),
    (  # 2: a row's holder is free or a member
        "holder is not a member",
        """SELECT s.level, s.number, s.holder, s.epoch FROM slot s WHERE s.holder <> ''
           AND NOT EXISTS (SELECT FROM member m WHERE m.node = s.holder AND m.epoch = s.epoch)""",
    ),
    (
        "claim of a node that is not a member",
        """SELECT c.* FROM (
               SELECT 'keeper' AS claim, k.level::text AS name, k.node, k.epoch FROM keeper k
               UNION ALL SELECT 'consumer', c.level::text, c.node, c.epoch FROM consumer c
               UNION ALL SELECT 'producer', p.producer, p.node, p.epoch FROM producer p WHERE p.node IS NOT NULL
           ) c WHERE NOT EXISTS (SELECT FROM member m WHERE m.node = c.node AND m.epoch = c.epoch)""",
    ),
    (
        "member without a beat",
        "SELECT m.node, m.epoch FROM member m LEFT JOIN beat b USING (node, epoch) WHERE b.node IS NULL",
    ),
    (  # 3: bits move between rows of one slot only, so these agree in all of them
        "rows of a slot differ",
        """SELECT s.level, s.number FROM slot s GROUP BY s.level, s.number
           HAVING count(DISTINCT (s.ring, s.count, s.bytes)) > 1""",
    ),
    (
        "row is malformed",
        """SELECT s.level, s.number, s.holder FROM slot s WHERE length(s.seen) <> s.count
           OR octet_length(s.sizes) <> 4 * s.count OR (s.holder = '') <> (s.epoch = 0)
           OR s.number > (SELECT n.last_value FROM number_of_call n)
           OR EXISTS (SELECT FROM jsonb_object_keys(s.counts) k WHERE k::int NOT BETWEEN 0 AND s.count - 1)""",
    ),
    (  # 4: where a queue has limits, its counter counts its free messages
        "counter is wrong",
        """SELECT c.level, c.ready, c.bytes, coalesce(sum(bit_count(f.bits)), 0) AS messages,
               coalesce(sum(bytes_of(f.bits, f.bytes, f.sizes)), 0) AS message_bytes
           FROM level c JOIN level s ON s.counter = c.level AND (s.max_length IS NOT NULL OR s.max_bytes IS NOT NULL)
           LEFT JOIN slot f ON f.level = s.level AND f.holder = '' GROUP BY c.level
           HAVING c.ready <> coalesce(sum(bit_count(f.bits)), 0) OR (
               c.bytes <> coalesce(sum(bytes_of(f.bits, f.bytes, f.sizes)), 0) AND bool_and(s.max_bytes IS NOT NULL)
           )""",
    ),
    (  # 6: a call is committed once
        "number of two calls",
        "SELECT b.number FROM batch b GROUP BY b.number HAVING count(*) > 1",
    ),
    (
        "several active or exclusive consumers",
        """SELECT c.level FROM consumer c GROUP BY c.level
           HAVING count(*) FILTER (WHERE c.active) > 1 OR bool_or(c.exclusive) AND sum(c.count) > 1""",
    ),
)


async def violations(connection: asyncpg.Connection) -> list[str]:
    """Return a line for each violation of the invariants.

    The connection's search path is the cluster's schema. Cost: reads all slots and the keys of all chunks.
    """
    found: list[str] = []
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        for name, query in _CHECKS:
            rows = await connection.fetch(f"{query} LIMIT 20")
            found += [f"{name}: {', '.join(f'{key}={value}' for key, value in row.items())}" for row in rows]
    lost = await connection.fetch("SELECT l.* FROM lost_records() l LIMIT 20")
    found += [f"records are lost: level={row['level']}, number={row['number']}, ring={row['ring']}" for row in lost]
    return found
