-- Consumers, numbered producers and keepers of levels.

-- Free the claims of a former member: levels as their keeper, producers, MQTT client ids and consumers.
CREATE OR REPLACE FUNCTION free_claims(p_node text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_levels bigint[];
BEGIN
    DELETE FROM keeper k WHERE k.node = p_node;
    UPDATE producer p SET node = NULL, epoch = NULL WHERE p.node = p_node;
    PERFORM lock_clients();
    DELETE FROM mqtt_client c WHERE c.node = p_node;
    WITH gone AS (DELETE FROM consumer c WHERE c.node = p_node RETURNING c.level)
        SELECT array_agg(g.level) INTO v_levels FROM gone g;
    INSERT INTO orphan (level) SELECT s.level FROM unnest(v_levels) s(level)
        WHERE NOT EXISTS (SELECT FROM consumer c WHERE c.level = s.level) ON CONFLICT DO NOTHING;
    PERFORM activate(v_levels);
    UPDATE queue_use q SET used_ms = now_ms() WHERE q.level = ANY (v_levels);     -- they had consumers until now
END $$;

-- Activate the node that has waited longest, on levels with a single active consumer that have no active node.
CREATE OR REPLACE FUNCTION activate(p_level bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE consumer c SET active = true
        FROM (SELECT DISTINCT ON (w.level) w.level, w.node FROM consumer w JOIN level s ON s.level = w.level
              WHERE w.level = ANY (p_level) AND s.single_active
                  AND NOT EXISTS (SELECT FROM consumer a WHERE a.level = w.level AND a.active)
              ORDER BY w.level, w.since) f
        WHERE c.level = f.level AND c.node = f.node;
END $$;

-- Add a consumer of this node. `granted` is false if there is an exclusive consumer, or this one is exclusive and there
-- are others. `active` is whether this node may lease, `total` counts the consumers of all nodes.
-- p_known is the number of consumers that the node knows: if there are more, the answer to this call was lost before.
-- p_room is the room of the consumer; the node's next lease reports that of all its consumers.
CREATE OR REPLACE FUNCTION consumer_add(
    p_node text, p_epoch bigint, p_level bigint, p_exclusive boolean, p_known int DEFAULT NULL,
    p_room bigint DEFAULT 1, OUT granted boolean, OUT active boolean, OUT total int
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM fence(p_node, p_epoch);
    PERFORM lock_levels(ARRAY[p_level]);
    SELECT NOT coalesce(bool_or(c.exclusive OR p_exclusive), false) INTO granted
        FROM consumer c WHERE c.level = p_level;
    IF EXISTS (SELECT FROM consumer c WHERE c.level = p_level AND c.node = p_node AND c.count > p_known) THEN
        granted := true;
    ELSIF granted THEN
        INSERT INTO consumer AS c (level, node, epoch, count, exclusive, since)
            VALUES (p_level, p_node, p_epoch, 1, p_exclusive, nextval('arrival_of_consumer'))
            ON CONFLICT (level, node) DO UPDATE SET count = c.count + 1;
        PERFORM activate(ARRAY[p_level]);
        UPDATE consumer c SET room = c.room + p_room
            FROM level s WHERE c.level = p_level AND c.node = p_node AND NOT (s.single_active AND NOT c.active)
                AND s.level = p_level AND (s.max_length IS NOT NULL OR s.max_bytes IS NOT NULL);
        DELETE FROM orphan o WHERE o.level = p_level;
    END IF;
    active := cardinality(elsewhere(p_node, ARRAY[p_level])) = 0;
    total := (SELECT coalesce(sum(c.count), 0) FROM consumer c WHERE c.level = p_level);
END $$;

-- Remove consumers of this node. `total` counts the remaining ones of all nodes, `active_node` is the node that may now
-- lease a level with a single active consumer. p_known is the former number of the node's consumers.
CREATE OR REPLACE FUNCTION consumer_remove(
    p_node text, p_epoch bigint, p_level bigint, p_count int DEFAULT 1, p_known int DEFAULT NULL,
    OUT total int, OUT active_node text
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM fence(p_node, p_epoch);
    PERFORM lock_levels(ARRAY[p_level]);
    UPDATE consumer c SET count = coalesce(p_known, c.count) - p_count WHERE c.level = p_level AND c.node = p_node;
    DELETE FROM consumer c WHERE c.level = p_level AND c.node = p_node AND c.count <= 0;
    PERFORM drop_excess(ARRAY[p_level]);            -- messages for which the consumer had room
    PERFORM activate(ARRAY[p_level]);
    total := (SELECT coalesce(sum(c.count), 0) FROM consumer c WHERE c.level = p_level);
    active_node := (SELECT c.node FROM consumer c WHERE c.level = p_level AND c.active);
END $$;

-- Return the levels among p_level that only another node may lease, because it has their single active consumer.
CREATE OR REPLACE FUNCTION elsewhere(p_node text, p_level bigint[]) RETURNS bigint[] LANGUAGE sql STABLE AS $$
    SELECT ARRAY(
        SELECT s.level FROM level s JOIN consumer c ON c.level = s.level
        WHERE s.level = ANY (p_level) AND s.single_active AND c.active AND c.node <> p_node
    )
$$;

-- Return the consumers of levels.
CREATE OR REPLACE FUNCTION consumers(p_level bigint[])
RETURNS TABLE (level bigint, total int, exclusive boolean, active_node text, room bigint) LANGUAGE sql STABLE AS $$
    SELECT u.level, coalesce(sum(c.count), 0)::int, coalesce(bool_or(c.exclusive), false),
        max(c.node) FILTER (WHERE c.active), waiting_room(u.level)
    FROM unnest(p_level) u(level) LEFT JOIN consumer c ON c.level = u.level GROUP BY u.level
$$;

-- Return levels whose last consumer died with its node: their queues are deleted if they are auto-delete.
CREATE OR REPLACE FUNCTION orphans() RETURNS SETOF bigint LANGUAGE sql STABLE AS
'SELECT o.level FROM orphan o ORDER BY o.level LIMIT 1000';

CREATE OR REPLACE FUNCTION orphans_done(p_node text, p_epoch bigint, p_level bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM fence(p_node, p_epoch);
    DELETE FROM orphan o WHERE o.level = ANY (p_level);
END $$;

-- Claim a numbered producer unless another node has it. Return the node that has it.
CREATE OR REPLACE FUNCTION producer_claim(p_node text, p_epoch bigint, p_producer text) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM fence(p_node, p_epoch);
    INSERT INTO producer AS p (producer, node, epoch) VALUES (p_producer, p_node, p_epoch)
        ON CONFLICT (producer) DO UPDATE SET node = EXCLUDED.node, epoch = EXCLUDED.epoch WHERE p.node IS NULL;
    RETURN (SELECT p.node FROM producer p WHERE p.producer = p_producer);
END $$;

CREATE OR REPLACE FUNCTION producer_release(p_node text, p_epoch bigint, p_producer text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM fence(p_node, p_epoch);
    UPDATE producer p SET node = NULL, epoch = NULL WHERE p.producer = p_producer AND p.node = p_node;
END $$;

-- Merge the ranges of used numbers of a producer that this node has claimed, and return them.
CREATE OR REPLACE FUNCTION producer_runs(p_node text, p_epoch bigint, p_producer text)
RETURNS TABLE (first bigint, last bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM fence(p_node, p_epoch);
    PERFORM 1 FROM producer p WHERE p.producer = p_producer AND p.node = p_node FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'producer % is not held by %', p_producer, p_node USING ERRCODE = 'SQ003';
    END IF;
    RETURN QUERY
        WITH old AS (
            DELETE FROM producer_run r WHERE r.producer = p_producer RETURNING r.first, r.last
        ), starts AS (                              -- a range that is not adjacent to earlier ones begins an island
            SELECT o.first, o.last, o.first - 1 > max(o.last) OVER (
                ORDER BY o.first, o.last ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS begins FROM old o
        ), islands AS (
            SELECT s.first, s.last, count(*) FILTER (WHERE s.begins) OVER (ORDER BY s.first, s.last) AS island
            FROM starts s
        ), folded AS (
            SELECT min(i.first) AS first, max(i.last) AS last FROM islands i GROUP BY i.island
        ), kept AS (
            INSERT INTO producer_run (producer, first, last) SELECT p_producer, f.first, f.last FROM folded f
        )
        SELECT f.first, f.last FROM folded f ORDER BY 1;
END $$;

-- Lease the free rows with a due message of the levels p_of of which this node is the keeper; null means all levels.
CREATE OR REPLACE FUNCTION lease_due(
    p_node text, p_epoch bigint, p_now_ms bigint, p_limit int DEFAULT 100, p_of bigint[] DEFAULT NULL
)
RETURNS TABLE (level bigint, number bigint, ring int, count int, bits varbit, seen varbit, counts jsonb, due_at bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_levels bigint[];
    v_numbers bigint[];
    r record;
BEGIN
    PERFORM fence(p_node, p_epoch);
    SELECT array_agg(d.level), array_agg(d.number) INTO v_levels, v_numbers FROM (
        SELECT s.level, s.number FROM slot s
        WHERE (SELECT k.node FROM keeper k WHERE k.level = s.level) = p_node AND s.holder = ''
            AND s.due_at <= p_now_ms AND (p_of IS NULL OR s.level = ANY (p_of))
        ORDER BY s.due_at LIMIT p_limit
    ) d;
    IF v_levels IS NULL THEN
        RETURN;
    END IF;
    PERFORM lock_levels(v_levels);
    FOR r IN SELECT * FROM unnest(v_levels, v_numbers) u(level, number) ORDER BY 1, 2 LOOP
        RETURN QUERY SELECT * FROM hold_row(p_node, p_epoch, r.level, r.number);
    END LOOP;
END $$;

-- Lease all free messages of a slot, whose level is locked.
CREATE OR REPLACE FUNCTION hold_row(p_node text, p_epoch bigint, p_level bigint, p_number bigint)
RETURNS TABLE (level bigint, number bigint, ring int, count int, bits varbit, seen varbit, counts jsonb, due_at bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_generation bigint := (SELECT c.generation FROM cluster c);
    r slot;
BEGIN
    DELETE FROM slot s WHERE s.level = p_level AND s.number = p_number AND s.holder = '' RETURNING s.* INTO r;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF r.generation < v_generation THEN
        r.seen := r.bits;
    END IF;
    INSERT INTO slot AS s (
        level, number, holder, epoch, generation, ring, count, bytes, due_at, bits, seen, counts, sizes
    ) VALUES (
        r.level, r.number, p_node, p_epoch, v_generation, r.ring, r.count, r.bytes, r.due_at, r.bits, r.seen,
        r.counts, r.sizes
    ) ON CONFLICT (level, number, holder) DO UPDATE SET
        bits = s.bits | EXCLUDED.bits,
        seen = either_bits(s.seen, EXCLUDED.seen),
        counts = merged_counts(s.counts, EXCLUDED.counts);
    UPDATE level c SET ready = c.ready - bit_count(r.bits), bytes = c.bytes - bytes_of(r.bits, r.bytes, r.sizes)
        FROM level s
        WHERE s.level = p_level AND c.level = s.counter AND (s.max_length IS NOT NULL OR s.max_bytes IS NOT NULL);
    RETURN QUERY SELECT r.level, r.number, r.ring, r.count, r.bits, r.seen, r.counts, r.due_at;
END $$;
