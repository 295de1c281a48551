-- The functions of the data path. Lock order: member, levels ascending, slots ascending.

-- Commit a call: its records, its slots, its settlements and its used producer numbers.
-- n_ are messages with a time to live of 0: they are dropped if their queue has no consumer on any node.
-- `refused` are the messages that full queues refuse, as [share, bits, whether to dead-letter them], or null. With
-- p_atomic the call then has no effect, and raises them as SQ004.
-- A repeated call, with the same (node, epoch, sequence), has no effect, and returns the result of the first one.
CREATE OR REPLACE FUNCTION commit(
    p_node text, p_epoch bigint, p_sequence bigint, p_synchronous boolean, p_atomic boolean, p_parts bytea[],
    s_level bigint[], s_count int[], s_bytes bigint[], s_mine varbit[], s_free varbit[], s_due bigint[],
    s_sizes bytea[],
    t_level bigint[], t_number bigint[], t_bits varbit[],
    u_producer text[], u_first bigint[], u_last bigint[],
    n_level bigint[] DEFAULT '{}', n_queue bigint[] DEFAULT '{}', n_bits varbit[] DEFAULT '{}',
    OUT number bigint, OUT ring int, OUT refused jsonb
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_number bigint;
    v_ring int;
    v_generation bigint;
    v_left int;
    v_limited boolean;
    r record;
BEGIN
    IF NOT p_synchronous THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    PERFORM fence(p_node, p_epoch);  -- assigns the transaction id before the call gets its number
    SELECT c.ring, c.generation INTO v_ring, v_generation FROM cluster c;
    INSERT INTO batch AS b (node, epoch, sequence, number, ring, synchronous)
        VALUES (p_node, p_epoch, p_sequence, nextval('number_of_call'), v_ring, p_synchronous)
        ON CONFLICT DO NOTHING RETURNING b.number INTO v_number;
    IF NOT FOUND THEN
        -- this write makes the answer wait until a synchronous standby has also received the first call
        UPDATE batch b SET repeats = b.repeats + 1
            WHERE b.node = p_node AND b.epoch = p_epoch AND b.sequence = p_sequence
            RETURNING b.number, b.ring, b.refused INTO number, ring, refused;
        RETURN;
    END IF;
    number := v_number;
    ring := v_ring;
    FOR r IN
        SELECT s.share, n.bits FROM unnest(n_level, n_queue, n_bits) n(level, queue, bits)
        JOIN unnest(s_level) WITH ORDINALITY s(level, share) USING (level)
        WHERE NOT EXISTS (SELECT FROM consumer c WHERE c.level = n.queue)
    LOOP
        s_free[r.share] := s_free[r.share] & ~r.bits;
    END LOOP;
    v_limited := lock_counters(s_level);
    IF v_limited THEN
        FOR r IN SELECT * FROM count_in(s_level, s_bytes, s_free, s_sizes) LOOP
            s_free[r.share] := r.free;
            IF r.refused IS NOT NULL THEN
                refused := coalesce(refused, '[]') || jsonb_build_array(jsonb_build_array(r.share, r.refused, r.buries));
            END IF;
        END LOOP;
        IF refused IS NOT NULL THEN
            IF p_atomic THEN
                RAISE EXCEPTION 'full queues refuse a part of the call' USING ERRCODE = 'SQ004', DETAIL = refused::text;
            END IF;
            UPDATE batch b SET refused = commit.refused
                WHERE b.node = p_node AND b.epoch = p_epoch AND b.sequence = p_sequence;
        END IF;
    END IF;
    IF cardinality(p_parts) > 0 THEN
        EXECUTE format(
            'INSERT INTO chunk_%s SELECT $1, p.part, p.bytes FROM unnest($2) WITH ORDINALITY p(bytes, part)', v_ring
        ) USING v_number, p_parts;
    END IF;
    INSERT INTO slot (level, number, holder, epoch, generation, ring, count, bytes, due_at, bits, sizes)
        SELECT s.level, v_number, h.holder, h.epoch, v_generation, v_ring, s.count, s.bytes, s.due_at, h.bits, s.sizes
        FROM unnest(s_level, s_count, s_bytes, s_mine, s_free, s_due, s_sizes)
            s(level, count, bytes, mine, free, due_at, sizes)
        CROSS JOIN LATERAL (VALUES (p_node, p_epoch, s.mine), ('', 0, s.free)) h(holder, epoch, bits)
        WHERE bit_count(h.bits) > 0;
    IF v_limited THEN
        PERFORM drop_excess(s_level);
    END IF;
    FOR r IN SELECT t.* FROM unnest(t_level, t_number, t_bits) t(level, number, bits) ORDER BY t.level, t.number LOOP
        DELETE FROM slot s WHERE s.level = r.level AND s.number = r.number AND s.holder = p_node
            AND bit_count(s.bits & ~r.bits) = 0;
        IF NOT FOUND THEN
            UPDATE slot s SET bits = s.bits & ~r.bits
                WHERE s.level = r.level AND s.number = r.number AND s.holder = p_node
                RETURNING bit_count(s.bits) INTO v_left;
            IF v_left = 0 THEN                      -- the other messages were returned meanwhile
                DELETE FROM slot s WHERE s.level = r.level AND s.number = r.number AND s.holder = p_node;
            END IF;
        END IF;
    END LOOP;
    IF cardinality(u_producer) > 0 THEN
        INSERT INTO producer_run (producer, first, last)
            SELECT u.producer, u.first, u.last FROM unnest(u_producer, u_first, u_last) u(producer, first, last);
    END IF;
END $$;

-- Return the lowest transaction id of all running calls, which lock `member` before they get an id.
CREATE OR REPLACE FUNCTION oldest_call() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT pg_current_xact_id()::text::bigint - coalesce(max(t.age), 0) FROM (
        SELECT max(age(l.transactionid)) FILTER (WHERE l.granted) AS age FROM pg_locks l
        GROUP BY l.virtualtransaction HAVING bool_or(l.relation = 'member'::regclass)
    ) t
$$;

-- Return a transaction id that is lower than those of all later calls.
CREATE OR REPLACE FUNCTION newest_call() RETURNS bigint LANGUAGE sql VOLATILE AS
'SELECT pg_current_xact_id()::text::bigint';

-- Lease at most `room` free messages of each level to this node, in order, from slot number `after` on.
-- `more` in the last row of a level is set if others are free; a row without a number means that none was free.
-- With p_keeps the keeper of the levels leases, even if another node has the single active consumer. p_able is the room
-- of all consumers of this node, which is stored for levels with limits.
-- `began` is the transaction id of this lease; all calls with ids below `finished` had ended before it.
-- A call gets its id before its number, and numbers ascend. So every call with a lower number than a slot that an
-- earlier lease of this node returned has an id below `began`. (The xmax of a snapshot cannot replace `began`: it is
-- the first id after the last *completed* transaction, and running calls may have higher ids.)
CREATE OR REPLACE FUNCTION lease(
    p_node text, p_epoch bigint, p_level bigint[], p_room int[], p_after bigint[], p_keeps boolean DEFAULT false,
    p_able bigint[] DEFAULT NULL
) RETURNS TABLE (
    level bigint, number bigint, ring int, count int, bits varbit, seen varbit, counts jsonb, more boolean,
    began bigint, finished bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_began bigint;
    v_finished bigint;
    v_limited boolean;
    v_generation bigint;
    v_elsewhere bigint[];
    v_place tid[];
    v_level bigint[];
    v_number bigint[];
    v_taken varbit[];
    v_kind int[];                                   -- 0: some free bits of the row, 1: all, 2: all bits of the slot
    v_more boolean[];
BEGIN
    IF NOT EXISTS (
        SELECT FROM unnest(p_level, p_after) u(level, after) CROSS JOIN LATERAL (
            SELECT FROM slot s WHERE s.level = u.level AND s.holder = '' AND s.number >= u.after
            ORDER BY s.number LIMIT 1               -- makes the index scan begin at u.after
        ) f
    ) AND NOT EXISTS (                              -- nor has the room of consumers changed: see keep_room
        SELECT FROM (
            SELECT s.counter, max(a.able) AS able FROM unnest(p_level, p_able) a(level, able)
            JOIN level s ON s.level = a.level AND (s.max_length IS NOT NULL OR s.max_bytes IS NOT NULL)
            GROUP BY s.counter
        ) d JOIN consumer c ON c.level = d.counter AND c.node = p_node WHERE c.room <> d.able
    ) THEN                                          -- the usual case for an idle consumer
        PERFORM fence_look(p_node, p_epoch);
        RETURN QUERY SELECT u.level, NULL::bigint, NULL::int, NULL::int, NULL::varbit, NULL::varbit, NULL::jsonb,
            false, 0::bigint, 0::bigint FROM unnest(p_level) u(level);
        RETURN;
    END IF;
    PERFORM fence(p_node, p_epoch);
    v_limited := lock_levels(p_level);              -- from here on the free rows of these levels do not move
    v_began := pg_current_xact_id()::text;
    v_finished := pg_snapshot_xmin(pg_current_snapshot())::text;    -- of an earlier snapshot than that of the search
    IF v_began - v_finished > 1000 AND random() < 0.02 THEN
        v_finished := oldest_call();                -- another application keeps a transaction open
    END IF;
    SELECT c.generation INTO v_generation FROM cluster c;
    v_elsewhere := elsewhere(p_node, p_level);
    SELECT array_agg(f.place), array_agg(f.level), array_agg(f.number), array_agg(f.taken), array_agg(f.kind),
        array_agg(f.more)
        INTO v_place, v_level, v_number, v_taken, v_kind, v_more
        FROM (
            SELECT f.place, f.level, f.number,
                CASE WHEN f.upto <= f.room THEN f.bits ELSE lowest_bits(f.bits, (f.room - f.before)::int) END AS taken,
                CASE WHEN f.upto > f.room THEN 0 WHEN f.free < length(f.bits) THEN 1 ELSE 2 END AS kind,
                f.upto > f.room OR f.is_followed AND (f.upto = f.room OR f.row = 256) AS more
            FROM (
                SELECT u.level, u.room, h.*, sum(h.free) OVER w AS upto, sum(h.free) OVER w - h.free AS before,
                    row_number() OVER w AS row, lead(h.number) OVER w IS NOT NULL AS is_followed
                FROM unnest(p_level, p_room, p_after) u(level, room, after) CROSS JOIN LATERAL (
                    SELECT s.ctid AS place, s.number, s.bits, bit_count(s.bits)::int AS free FROM slot s
                    WHERE s.level = u.level AND s.holder = '' AND s.number >= u.after
                    ORDER BY s.number LIMIT least(u.room, 256) + 1  -- one more than may be leased, for `more`
                ) h WHERE u.room > 0 AND (p_keeps OR u.level <> ALL (v_elsewhere))
                WINDOW w AS (PARTITION BY u.level ORDER BY h.number ROWS UNBOUNDED PRECEDING)
            ) f WHERE f.before < f.room AND f.row <= 256 ORDER BY f.level, f.number
        ) f;
    IF v_limited THEN
        UPDATE level c SET ready = c.ready - d.ready, bytes = c.bytes - d.bytes
            FROM (SELECT r.counter, sum(bit_count(t.taken)) AS ready, sum(bytes_of(t.taken, s.bytes, s.sizes)) AS bytes
                  FROM unnest(v_place, v_level, v_taken) t(place, level, taken)
                  JOIN slot s ON s.ctid = t.place
                  JOIN level r ON r.level = t.level AND (r.max_length IS NOT NULL OR r.max_bytes IS NOT NULL)
                  GROUP BY r.counter) d
            WHERE c.level = d.counter;
    END IF;
    IF 2 = ALL (v_kind) THEN                        -- so this node has no rows of these slots
        RETURN QUERY
            UPDATE slot s SET holder = p_node, epoch = p_epoch, generation = v_generation,
                seen = CASE WHEN s.generation < v_generation THEN s.bits ELSE s.seen END
            FROM unnest(v_place, v_more) t(place, more) WHERE s.ctid = t.place
            RETURNING s.level, s.number, s.ring, s.count, s.bits, s.seen, s.counts, t.more, v_began, v_finished;
    ELSIF v_kind IS NOT NULL THEN
        RETURN QUERY
            WITH taken AS MATERIALIZED (
                SELECT s.*, t.place, t.taken, t.kind, t.more, counts_of(s.counts, t.taken) AS taken_counts,
                    CASE WHEN s.generation < v_generation THEN t.taken ELSE (s.seen & t.taken)::varbit END AS taken_seen
                FROM unnest(v_place, v_taken, v_kind, v_more) t(place, taken, kind, more) JOIN slot s ON s.ctid = t.place
            ), held AS (
                INSERT INTO slot AS s (
                    level, number, holder, epoch, generation, ring, count, bytes, due_at, bits, seen, counts, sizes
                ) SELECT t.level, t.number, p_node, p_epoch, v_generation, t.ring, t.count, t.bytes, t.due_at, t.taken,
                        t.taken_seen, t.taken_counts, t.sizes
                    FROM taken t
                    ON CONFLICT (level, number, holder) DO UPDATE SET
                        generation = least(s.generation, EXCLUDED.generation),
                        bits = s.bits | EXCLUDED.bits,
                        seen = either_bits(s.seen, EXCLUDED.seen),
                        counts = merged_counts(s.counts, EXCLUDED.counts)
            ), moved AS (
                DELETE FROM slot s USING taken t WHERE s.ctid = t.place AND t.kind > 0
            ), parted AS (
                UPDATE slot s SET bits = s.bits & ~t.taken FROM taken t WHERE s.ctid = t.place AND t.kind = 0
            )
            SELECT t.level, t.number, t.ring, t.count, t.taken, t.taken_seen, t.taken_counts, t.more,
                v_began, v_finished FROM taken t;
    END IF;
    IF v_limited AND p_able IS NOT NULL THEN
        PERFORM keep_room(p_node, p_level, p_able, v_level, v_taken);
    END IF;
    RETURN QUERY SELECT u.level, NULL::bigint, NULL::int, NULL::int, NULL::varbit, NULL::varbit, NULL::jsonb,
            u.room = 0 AND EXISTS (
                SELECT FROM slot s WHERE s.level = u.level AND s.holder = '' AND s.number >= u.after
            ), v_began, v_finished
        FROM unnest(p_level, p_room, p_after) u(level, room, after)
        WHERE u.level NOT IN (SELECT t.level FROM unnest(v_level) t(level));
END $$;

-- Free messages leased to this node: those in p_seen may have been delivered, p_counts are their returns, p_due is when
-- the keeper must check each row again.
CREATE OR REPLACE FUNCTION give_back(
    p_node text, p_epoch bigint, p_level bigint[], p_number bigint[], p_bits varbit[], p_seen varbit[],
    p_counts jsonb[], p_due bigint[] DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_limited boolean;
    v_bits varbit;
    q record;
    r slot;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM fence(p_node, p_epoch);
    v_limited := lock_levels(p_level);
    FOR q IN
        SELECT u.*, s.counter FROM unnest(p_level, p_number, p_bits, p_seen, p_counts, p_due)
            u(level, number, bits, seen, counts, due_at)
        LEFT JOIN level s ON s.level = u.level AND (s.max_length IS NOT NULL OR s.max_bytes IS NOT NULL)
        ORDER BY u.level, u.number
    LOOP
        SELECT s.* INTO r FROM slot s
            WHERE s.level = q.level AND s.number = q.number AND s.holder = p_node FOR UPDATE;
        CONTINUE WHEN NOT FOUND;                    -- the messages were settled, or the queue was deleted
        v_bits := r.bits & q.bits;
        CONTINUE WHEN bit_count(v_bits) = 0;
        IF v_bits = r.bits THEN
            DELETE FROM slot s WHERE s.level = q.level AND s.number = q.number AND s.holder = p_node;
        ELSE
            UPDATE slot s SET bits = s.bits & ~v_bits
                WHERE s.level = q.level AND s.number = q.number AND s.holder = p_node;
        END IF;
        INSERT INTO slot AS f (
            level, number, holder, epoch, generation, ring, count, bytes, due_at, bits, seen, counts, sizes
        ) VALUES (
            r.level, r.number, '', 0, r.generation, r.ring, r.count, r.bytes, coalesce(q.due_at, r.due_at),
            v_bits, either_bits(r.seen, q.seen) & v_bits,
            counts_of(merged_counts(r.counts, q.counts), v_bits), r.sizes
        ) ON CONFLICT (level, number, holder) DO UPDATE SET
            generation = least(f.generation, EXCLUDED.generation),
            bits = f.bits | EXCLUDED.bits,
            due_at = least(f.due_at, EXCLUDED.due_at),
            seen = either_bits(f.seen, EXCLUDED.seen),
            counts = merged_counts(f.counts, EXCLUDED.counts);
        IF q.counter IS NOT NULL THEN
            UPDATE level c
                SET ready = c.ready + bit_count(v_bits), bytes = c.bytes + bytes_of(v_bits, r.bytes, r.sizes)
                WHERE c.level = q.counter;
        END IF;
    END LOOP;
    IF v_limited THEN
        UPDATE consumer c SET room = 0 FROM level s      -- its consumers have no room for returned messages
            WHERE s.level = ANY (p_level) AND (s.max_length IS NOT NULL OR s.max_bytes IS NOT NULL)
                AND c.level = s.counter AND c.node = p_node AND c.room <> 0;
        PERFORM drop_excess(p_level);
    END IF;
END $$;

-- Delete the free messages of levels, and return the number for each level.
CREATE OR REPLACE FUNCTION purge(p_node text, p_epoch bigint, p_level bigint[])
RETURNS TABLE (level bigint, messages bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM fence(p_node, p_epoch);
    PERFORM lock_levels(p_level);
    RETURN QUERY
        WITH gone AS (
            DELETE FROM slot s WHERE s.level = ANY (p_level) AND s.holder = ''
            RETURNING s.level, bit_count(s.bits) AS messages, bytes_of(s.bits, s.bytes, s.sizes) AS bytes
        ), sums AS (
            SELECT g.level, sum(g.messages)::bigint AS messages, sum(g.bytes) AS bytes FROM gone g GROUP BY g.level
        ), counted AS (
            UPDATE level c SET ready = c.ready - d.messages, bytes = c.bytes - d.bytes
            FROM (SELECT s.counter, sum(g.messages) AS messages, sum(g.bytes) AS bytes
                  FROM sums g JOIN level s ON s.level = g.level
                  WHERE s.max_length IS NOT NULL OR s.max_bytes IS NOT NULL GROUP BY s.counter) d
            WHERE c.level = d.counter
        )
        SELECT u.level, coalesce(g.messages, 0)
        FROM unnest(p_level) u(level) LEFT JOIN sums g ON g.level = u.level;
END $$;

-- Delete the rows of deleted levels, at most `p_limit`. Return whether all are deleted.
CREATE OR REPLACE FUNCTION sweep(p_node text, p_epoch bigint, p_level bigint[], p_limit int DEFAULT 10000)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_done boolean;
BEGIN
    PERFORM fence(p_node, p_epoch);
    PERFORM lock_levels(p_level);
    WITH gone AS (
        SELECT s.ctid AS place FROM slot s WHERE s.level = ANY (p_level)
        LIMIT p_limit FOR UPDATE SKIP LOCKED        -- so that it cannot deadlock with a settlement
    )
    DELETE FROM slot s USING gone g WHERE s.ctid = g.place;
    v_done := NOT EXISTS (SELECT FROM slot s WHERE s.level = ANY (p_level));
    IF v_done THEN
        DELETE FROM level s WHERE s.level = ANY (p_level);
        DELETE FROM consumer c WHERE c.level = ANY (p_level);
        DELETE FROM keeper k WHERE k.level = ANY (p_level);
        DELETE FROM orphan o WHERE o.level = ANY (p_level);
        DELETE FROM queue_use q WHERE q.level = ANY (p_level);
    END IF;
    RETURN v_done;
END $$;

-- Count the free messages of levels, and their bytes.
CREATE OR REPLACE FUNCTION counts(p_level bigint[]) RETURNS TABLE (level bigint, messages bigint, bytes bigint)
LANGUAGE sql STABLE AS $$
    SELECT u.level, c.messages, c.bytes FROM unnest(p_level) u(level) CROSS JOIN LATERAL (
        SELECT coalesce(sum(bit_count(s.bits)), 0)::bigint AS messages,
            coalesce(sum(bytes_of(s.bits, s.bytes, s.sizes)), 0)::bigint AS bytes
        FROM slot s WHERE s.level = u.level AND s.holder = ''
    ) c
$$;

-- Count the free messages in the first p_rows rows of levels.
CREATE OR REPLACE FUNCTION free_messages(p_level bigint[], p_rows int) RETURNS TABLE (level bigint, messages bigint)
LANGUAGE sql STABLE AS $$
    SELECT u.level, (
        SELECT coalesce(sum(bit_count(h.bits)), 0)::bigint FROM (
            SELECT s.bits FROM slot s WHERE s.level = u.level AND s.holder = '' ORDER BY s.number LIMIT p_rows
        ) h
    ) FROM unnest(p_level) u(level)
$$;

-- Return which table has the records of slots now, for a reader that did not find them in the former table.
CREATE OR REPLACE FUNCTION locate(p_level bigint[], p_number bigint[])
RETURNS TABLE (level bigint, number bigint, ring int) LANGUAGE sql STABLE AS $$
    SELECT u.level, u.number, f.ring FROM unnest(p_level, p_number) u(level, number) CROSS JOIN LATERAL (
        SELECT min(s.ring) AS ring FROM slot s WHERE s.level = u.level AND s.number = u.number
            AND s.holder = ANY (ARRAY(SELECT m.node FROM member m UNION ALL SELECT ''))
    ) f WHERE f.ring IS NOT NULL
$$;

-- Set the rules of a level. The levels of a queue with priorities share a counter. The counts of a level that already
-- has messages are exact after `recount`, which is called once every node has applied the change.
CREATE OR REPLACE FUNCTION set_level(
    p_level bigint, p_vhost text, p_counter bigint, p_max_length bigint, p_max_bytes bigint, p_overflow text,
    p_single_active boolean DEFAULT false, p_buries boolean DEFAULT false
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO level (level, vhost, counter, max_length, max_bytes, overflow, single_active, buries)
        VALUES (
            p_level, p_vhost, coalesce(p_counter, p_level), p_max_length, p_max_bytes, p_overflow, p_single_active,
            p_buries
        ) ON CONFLICT (level) DO UPDATE SET
            counter = EXCLUDED.counter, max_length = EXCLUDED.max_length, max_bytes = EXCLUDED.max_bytes,
            overflow = EXCLUDED.overflow, single_active = EXCLUDED.single_active, buries = EXCLUDED.buries;
END $$;

-- Recount the free messages of levels with limits. Calls that began before the limits were set have ended.
CREATE OR REPLACE FUNCTION recount(p_node text, p_epoch bigint, p_level bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_level bigint[];
BEGIN
    PERFORM fence(p_node, p_epoch);
    v_level := ARRAY(SELECT s.level FROM level s WHERE s.counter IN (
        SELECT c.counter FROM level c WHERE c.level = ANY (p_level)
    ));
    PERFORM lock_levels(v_level);
    UPDATE level c SET ready = d.ready, bytes = d.bytes
        FROM (SELECT s.counter, sum(f.messages) AS ready, sum(f.bytes) AS bytes
              FROM counts(v_level) f JOIN level s ON s.level = f.level GROUP BY s.counter) d
        WHERE c.level = d.counter;
END $$;

-- Return the levels of a quorum queue that have messages, except the default one.
CREATE OR REPLACE FUNCTION levels_of(p_level bigint) RETURNS SETOF bigint LANGUAGE sql STABLE AS $$
    SELECT u.level FROM unnest(level_numbers(p_level)) u(level)
        WHERE EXISTS (SELECT FROM slot s WHERE s.level = u.level)
$$;

-- Return the levels of all quorum queues that have messages, except the default ones. Cost: one look-up per level.
CREATE OR REPLACE FUNCTION levels_in_use() RETURNS SETOF bigint LANGUAGE sql STABLE AS $$
    WITH RECURSIVE found (level) AS (
        SELECT (SELECT min(s.level) FROM slot s WHERE s.level >= 1::bigint << 46)
        UNION ALL SELECT (SELECT min(s.level) FROM slot s WHERE s.level > f.level) FROM found f
            WHERE f.level IS NOT NULL
    ) SELECT f.level FROM found f WHERE f.level IS NOT NULL
$$;
