-- The keeper's turn: messages that are due or exceed a limit are leased to the one node that keeps the level.

-- Make this node the keeper of levels that need one and have none, and lease messages that are due or exceed a limit.
-- The row of kind 'now' has the time of the database, that of kind 'next' the time at which the next message is due.
CREATE OR REPLACE FUNCTION keep(p_node text, p_epoch bigint)
RETURNS TABLE (
    kind text, level bigint, number bigint, ring int, count int, bits varbit, seen varbit, counts jsonb, at_ms bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now_ms bigint := now_ms();
    v_levels bigint[];
    v_is_due boolean := EXISTS (SELECT FROM slot s WHERE s.holder = '' AND s.due_at <= v_now_ms) OR EXISTS (
        SELECT FROM level s JOIN level c ON c.level = s.counter
        WHERE NOT starts_with(s.overflow, 'reject-publish') AND exceeds(c)
    );
BEGIN
    IF v_is_due THEN
        PERFORM fence(p_node, p_epoch);
        INSERT INTO keeper (level, node, epoch)
            SELECT n.level, p_node, p_epoch FROM (
                SELECT d.level FROM (
                    SELECT s.level FROM slot s WHERE s.holder = '' AND s.due_at <= v_now_ms ORDER BY s.due_at LIMIT 1000
                ) d
                UNION
                SELECT s.level FROM level s JOIN level c ON c.level = s.counter
                    WHERE NOT starts_with(s.overflow, 'reject-publish') AND exceeds(c)
                ORDER BY 1
            ) n
            WHERE NOT EXISTS (SELECT FROM keeper k WHERE k.level = n.level)
            ON CONFLICT DO NOTHING;
        v_levels := ARRAY(
            (SELECT s.level FROM slot s
                WHERE (SELECT k.node FROM keeper k WHERE k.level = s.level) = p_node AND s.holder = ''
                    AND s.due_at <= v_now_ms ORDER BY s.due_at LIMIT 100)
            UNION ALL
            SELECT s.level FROM keeper k JOIN level s ON s.level = k.level JOIN level c ON c.level = s.counter
                WHERE k.node = p_node AND NOT starts_with(s.overflow, 'reject-publish') AND exceeds(c)
        );
        IF lock_levels(v_levels) THEN               -- all in order, because the two leases below lock some each
            PERFORM drop_excess(v_levels);
        END IF;
        RETURN QUERY SELECT 'due'::text, l.level, l.number, l.ring, l.count, l.bits, l.seen, l.counts, v_now_ms
            FROM lease_due(p_node, p_epoch, v_now_ms, 100, v_levels) l;
        RETURN QUERY SELECT 'excess'::text, l.level, l.number, l.ring, l.count, l.bits, l.seen, l.counts, v_now_ms
            FROM lease_excess(p_node, p_epoch, 1000, v_levels) l;
    ELSE
        PERFORM fence_look(p_node, p_epoch);
    END IF;
    RETURN QUERY SELECT 'now'::text, NULL::bigint, NULL::bigint, NULL::int, NULL::int, NULL::varbit, NULL::varbit,
        NULL::jsonb, v_now_ms;
    RETURN QUERY SELECT 'next'::text, NULL::bigint, NULL::bigint, NULL::int, NULL::int, NULL::varbit, NULL::varbit,
        NULL::jsonb, s.due_at
        FROM slot s WHERE s.holder = '' AND s.due_at IS NOT NULL
            AND NOT EXISTS (SELECT FROM keeper k WHERE k.level = s.level AND k.node <> p_node)
        ORDER BY s.due_at LIMIT 1;
END $$;

ALTER TABLE producer ADD COLUMN IF NOT EXISTS owner text;

-- Return the user who owns a producer: the first one who used it.
CREATE OR REPLACE FUNCTION producer_own(p_node text, p_epoch bigint, p_producer text, p_user text) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM fence(p_node, p_epoch);
    UPDATE producer p SET owner = p_user WHERE p.producer = p_producer AND p.owner IS NULL;
    RETURN (SELECT p.owner FROM producer p WHERE p.producer = p_producer);
END $$;

CREATE TABLE IF NOT EXISTS queue_use (              -- the last use on any node of a queue that expires when unused
    level    bigint PRIMARY KEY,
    used_ms  bigint NOT NULL
);

CREATE OR REPLACE FUNCTION queues_used(p_node text, p_epoch bigint, p_level bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM fence(p_node, p_epoch);
    INSERT INTO queue_use AS q (level, used_ms) SELECT DISTINCT u.level, now_ms() FROM unnest(p_level) u(level) ORDER BY 1
        ON CONFLICT (level) DO UPDATE SET used_ms = EXCLUDED.used_ms;
END $$;

-- Return the ms until a queue expires, 0 if it has expired. A queue with consumers has its full time.
CREATE OR REPLACE FUNCTION queue_unused(p_node text, p_epoch bigint, p_level bigint, p_expires_ms bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_left_ms bigint;
BEGIN
    PERFORM fence(p_node, p_epoch);
    IF EXISTS (SELECT FROM consumer c WHERE c.level = p_level) THEN
        RETURN p_expires_ms;
    END IF;
    INSERT INTO queue_use (level, used_ms) VALUES (p_level, now_ms()) ON CONFLICT DO NOTHING;
    v_left_ms := (SELECT q.used_ms FROM queue_use q WHERE q.level = p_level) + p_expires_ms - now_ms();
    IF v_left_ms <= 0 THEN
        DELETE FROM queue_use q WHERE q.level = p_level;
    END IF;
    RETURN greatest(v_left_ms, 0);
END $$;
