-- The members of the cluster: fencing, heartbeats, joining, leaving and counting out.

ALTER TABLE cluster ADD COLUMN IF NOT EXISTS clock_ahead_ms bigint NOT NULL DEFAULT 0;  -- added to the server's time

CREATE OR REPLACE FUNCTION server_ms() RETURNS bigint LANGUAGE sql VOLATILE AS
'SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint';

-- Return the time of the cluster, by which messages expire: the server's time, plus the correction by advance_clock.
CREATE OR REPLACE FUNCTION now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS
'SELECT server_ms() + coalesce((SELECT c.clock_ahead_ms FROM cluster c), 0)';

-- Advance the cluster's time to that of a node, because after a fail-over the clock of the new server may be behind.
-- Return by how many ms it was behind, 0 if another node has already corrected it.
CREATE OR REPLACE FUNCTION advance_clock(p_node text, p_epoch bigint, p_now_ms bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_behind_ms bigint;
BEGIN
    PERFORM fence(p_node, p_epoch);
    PERFORM 1 FROM cluster c FOR UPDATE;
    v_behind_ms := greatest(p_now_ms - now_ms(), 0);
    UPDATE cluster c SET clock_ahead_ms = c.clock_ahead_ms + v_behind_ms WHERE v_behind_ms > 0;
    RETURN v_behind_ms;
END $$;

CREATE OR REPLACE FUNCTION fence(p_node text, p_epoch bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM member m WHERE m.node = p_node AND m.epoch = p_epoch FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'node % of epoch % was counted out', p_node, p_epoch USING ERRCODE = 'SQ001';
    END IF;
END $$;

-- Fence a function that finds nothing to do. It writes nothing, so an idle cluster uses no transaction ids.
CREATE OR REPLACE FUNCTION fence_look(p_node text, p_epoch bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM member m WHERE m.node = p_node AND m.epoch = p_epoch) THEN
        PERFORM fence(p_node, p_epoch);             -- raises, with a newer snapshot
    END IF;
END $$;

-- Lock the levels of a call that moves messages between rows, and the counters of levels with limits, in ascending
-- order. Return whether there are counters. All levels share 1,024 advisory locks, because PostgreSQL's lock table has
-- room for a few thousand locks of all sessions together.
CREATE OR REPLACE FUNCTION lock_levels(p_level bigint[]) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_schema bigint := hashtextextended(current_schema(), 0);
BEGIN
    PERFORM pg_advisory_xact_lock(v_schema # s.lock)
        FROM (SELECT DISTINCT (u.level # (u.level >> 10)) & 1023 AS lock FROM unnest(p_level) u(level)
              ORDER BY 1 OFFSET 0) s;
    RETURN lock_counters(p_level);
END $$;

CREATE OR REPLACE FUNCTION lock_counters(p_level bigint[]) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM level c WHERE c.level IN (
        SELECT s.counter FROM level s
        WHERE s.level = ANY (p_level) AND (s.max_length IS NOT NULL OR s.max_bytes IS NOT NULL)
    ) ORDER BY c.level FOR NO KEY UPDATE OF c;
    RETURN FOUND;
END $$;

CREATE OR REPLACE FUNCTION topology_version() RETURNS bigint LANGUAGE sql AS 'SELECT 0::bigint';  -- see topology.sql

-- Take the lock under which changes of the topology are appended and nodes join.
CREATE OR REPLACE FUNCTION lock_topology() RETURNS void LANGUAGE sql AS
$$SELECT pg_advisory_xact_lock(hashtextextended(current_schema() || '.topology', 0))$$;

-- Make a node a member, as a new epoch. Its former epoch must have been counted out.
CREATE OR REPLACE FUNCTION join(
    p_node text, p_url text, p_version int,
    OUT epoch bigint, OUT generation bigint, OUT topology bigint, OUT now_ms bigint
) LANGUAGE plpgsql AS $$
DECLARE
    v_installed int;
BEGIN
    SELECT c.function_version INTO v_installed FROM cluster c;
    IF v_installed > p_version THEN
        RAISE EXCEPTION 'the database speaks version %, this node version %', v_installed, p_version
            USING ERRCODE = 'SQ002';
    END IF;
    PERFORM move_numbers();
    SELECT c.generation INTO generation FROM cluster c;
    PERFORM lock_topology();
    topology := topology_version();
    epoch := nextval('number_of_call');
    INSERT INTO member (node, epoch) VALUES (p_node, epoch) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'node % is a member already', p_node USING ERRCODE = 'SQ003';
    END IF;
    INSERT INTO beat (node, epoch, url, version, applied) VALUES (p_node, epoch, p_url, p_version, topology);
    PERFORM pg_notify(current_schema(), format('joined %s', epoch));  -- arrives before messages of the node
    now_ms := now_ms();
END $$;

-- Record a heartbeat, which is sent six times per lease. It commits asynchronously and locks only the node's own row.
CREATE OR REPLACE FUNCTION beat(p_node text, p_epoch bigint, p_url text, p_applied bigint, p_reports jsonb)
RETURNS TABLE (
    now_ms bigint, generation bigint, newest bigint, topology bigint,
    node text, epoch bigint, beats bigint, applied bigint, url text, reports jsonb
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE beat b SET beats = b.beats + 1, url = p_url, applied = greatest(b.applied, p_applied), reports = p_reports
        WHERE b.node = p_node AND b.epoch = p_epoch;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'node % of epoch % was counted out', p_node, p_epoch USING ERRCODE = 'SQ001';
    END IF;
    RETURN QUERY SELECT m.* FROM members() m;
END $$;

-- Return the members, with the newest number and the version of the topology in this database.
CREATE OR REPLACE FUNCTION members()
RETURNS TABLE (
    now_ms bigint, generation bigint, newest bigint, topology bigint,
    node text, epoch bigint, beats bigint, applied bigint, url text, reports jsonb
) LANGUAGE sql VOLATILE AS $$
    SELECT now_ms(), c.generation, n.last_value, topology_version(), b.node, b.epoch, b.beats, b.applied, b.url, b.reports
    FROM beat b, cluster c, number_of_call n ORDER BY b.node
$$;

-- Free the messages leased to a former member, as possibly delivered, and everything else that it has claimed.
-- An earlier statement has deleted its row in member, and waited for its calls.
CREATE OR REPLACE FUNCTION free_rows(p_node text, p_epoch bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lock_levels(ARRAY(
        SELECT s.level FROM slot s WHERE s.holder = p_node AND s.holder <> ''
        UNION ALL SELECT c.level FROM consumer c WHERE c.node = p_node
    ));
    UPDATE level c SET ready = c.ready + d.ready, bytes = c.bytes + d.bytes
        FROM (SELECT s.counter, sum(bit_count(h.bits)) AS ready, sum(bytes_of(h.bits, h.bytes, h.sizes)) AS bytes
              FROM slot h JOIN level s ON s.level = h.level
              WHERE h.holder = p_node AND h.holder <> '' AND (s.max_length IS NOT NULL OR s.max_bytes IS NOT NULL)
              GROUP BY s.counter) d
        WHERE c.level = d.counter;
    WITH dead AS (DELETE FROM slot s WHERE s.holder = p_node AND s.holder <> '' RETURNING s.*)
    INSERT INTO slot AS f (
        level, number, holder, epoch, generation, ring, count, bytes, due_at, bits, seen, counts, sizes
    ) SELECT d.level, d.number, '', 0, d.generation, d.ring, d.count, d.bytes, d.due_at, d.bits, d.bits, d.counts,
            d.sizes
        FROM dead d
        ON CONFLICT (level, number, holder) DO UPDATE SET
            bits = f.bits | EXCLUDED.bits,
            due_at = least(f.due_at, EXCLUDED.due_at),
            seen = either_bits(f.seen, EXCLUDED.seen),
            counts = merged_counts(f.counts, counts_of(EXCLUDED.counts, EXCLUDED.bits));
    DELETE FROM slot s WHERE s.level = -p_epoch;    -- its mailbox
    PERFORM free_claims(p_node);
    DELETE FROM batch b WHERE b.node = p_node AND b.epoch = p_epoch
        AND b.sequence < (SELECT max(c.sequence) FROM batch c WHERE c.node = p_node AND c.epoch = p_epoch)
        AND b.sequence NOT IN (                     -- two synchronous ones, because the newest may be unanswered
            SELECT c.sequence FROM batch c WHERE c.node = p_node AND c.epoch = p_epoch AND c.synchronous
            ORDER BY c.sequence DESC LIMIT 2
        );
    -- Uses older than the longest expiry time belong to deleted queues. If such a queue exists, because it has had
    -- consumers since, its time starts again at the next queue_unused.
    DELETE FROM queue_use q WHERE q.used_ms < (SELECT now_ms()) - 4294967296;
    DELETE FROM batch b WHERE b.node = p_node AND b.epoch < p_epoch;    -- of former epochs of the name
    DELETE FROM batch b WHERE b.number < (          -- of names that are no longer used
        SELECT c.number FROM batch c WHERE NOT EXISTS (SELECT FROM member m WHERE (m.node, m.epoch) = (c.node, c.epoch))
        ORDER BY c.number DESC OFFSET 300 LIMIT 1
    ) AND NOT EXISTS (SELECT FROM member m WHERE (m.node, m.epoch) = (b.node, b.epoch));
END $$;

-- Declare a member dead whose number of heartbeats is still p_dead_beats. Return false if it has sent another one or is
-- not a member. p_node is null for a broker that starts and declares the former epoch of its own name dead.
CREATE OR REPLACE FUNCTION count_out(
    p_node text, p_epoch bigint, p_dead_node text, p_dead_epoch bigint, p_dead_beats bigint
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM beat b WHERE b.node = p_dead_node AND b.epoch = p_dead_epoch AND b.beats = p_dead_beats;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF p_dead_node < p_node COLLATE "C" THEN        -- lock in ascending order: two nodes may count each other out
        PERFORM 1 FROM member m WHERE m.node = p_dead_node AND m.epoch = p_dead_epoch FOR UPDATE;
    END IF;
    IF p_node IS NOT NULL THEN
        PERFORM fence(p_node, p_epoch);
    END IF;
    DELETE FROM member m WHERE m.node = p_dead_node AND m.epoch = p_dead_epoch;  -- waits for the calls of the dead node
    PERFORM free_rows(p_dead_node, p_dead_epoch);   -- with a newer snapshot, which includes these calls
    RETURN true;
END $$;

CREATE OR REPLACE FUNCTION leave(p_node text, p_epoch bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM member m WHERE m.node = p_node AND m.epoch = p_epoch;
    IF FOUND THEN
        DELETE FROM beat b WHERE b.node = p_node AND b.epoch = p_epoch;
        PERFORM free_rows(p_node, p_epoch);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION held(p_node text, p_epoch bigint)
RETURNS TABLE (level bigint, number bigint, ring int, count int, bits varbit, seen varbit, counts jsonb)
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM fence(p_node, p_epoch);
    RETURN QUERY SELECT s.level, s.number, s.ring, s.count, s.bits, s.seen, s.counts FROM slot s
        WHERE s.holder = p_node AND s.holder <> '' AND s.epoch = p_epoch ORDER BY s.level, s.number;
END $$;
