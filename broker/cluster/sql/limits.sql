-- Queues with limits: what they take, what they drop, and the room that consumers have. The levels of a queue with
-- priorities share the counter of the lowest one, which follow it directly; those of a quorum queue share the counter of
-- the default one, and each has its number with the level's own above 46 bits. Counters are locked.

ALTER TABLE stream ADD COLUMN IF NOT EXISTS buries boolean NOT NULL DEFAULT false;  -- what it drops is dead-lettered
ALTER TABLE consumer ADD COLUMN IF NOT EXISTS room bigint NOT NULL DEFAULT 0;   -- for free messages, where there are limits
ALTER TABLE consumer SET (fillfactor = 50);

-- Return for how many free messages of a queue waiting consumers have room: they are about to be leased.
CREATE OR REPLACE FUNCTION waiting_room(p_counter bigint) RETURNS bigint LANGUAGE sql STABLE AS
'SELECT coalesce(sum(c.room), 0)::bigint FROM consumer c WHERE c.stream = p_counter';

-- Return whether a queue has more free messages than its limits and its waiting consumers allow.
CREATE OR REPLACE FUNCTION exceeds(c stream) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT coalesce(c.ready > c.max_length OR c.bytes > c.max_bytes, false) AND coalesce(
        c.ready > c.max_length + waiting_room(c.stream) OR c.bytes > c.max_bytes AND c.ready > waiting_room(c.stream),
        false
    )
$$;

-- Keep for how many more messages a node's consumers have room, after it leased some of v_stream.
CREATE OR REPLACE FUNCTION keep_room(
    p_node text, p_stream bigint[], p_able bigint[], v_stream bigint[], v_taken varbit[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE consumer c SET room = d.room
        FROM (SELECT s.counter, greatest(max(a.able) - coalesce(sum(t.messages), 0), 0) AS room
              FROM unnest(p_stream, p_able) a(stream, able)
              JOIN stream s ON s.stream = a.stream AND (s.max_length IS NOT NULL OR s.max_bytes IS NOT NULL)
              LEFT JOIN (
                  SELECT u.stream, sum(bit_count(u.taken)) AS messages FROM unnest(v_stream, v_taken) u(stream, taken)
                  GROUP BY u.stream
              ) t ON t.stream = a.stream
              GROUP BY s.counter) d
        WHERE c.stream = d.counter AND c.node = p_node AND c.room <> d.room;
    IF FOUND THEN
        PERFORM drop_excess(p_stream);
    END IF;
END $$;

-- Count the shares of streams with limits. Return what is left free of each, and what a full queue refuses, if anything.
-- What its publisher's node leases from the start has been delivered by now, so it is taken.
CREATE OR REPLACE FUNCTION count_in(s_stream bigint[], s_bytes bigint[], s_free varbit[], s_sizes bytea[])
RETURNS TABLE (share int, free varbit, refused varbit, buries boolean) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    r record;
    v_ready bigint;
    v_bytes bigint;
    v_room bigint;
    v_taken bigint;
BEGIN
    FOR r IN
        SELECT u.share::int, s.counter, s.max_length, s.max_bytes, s.overflow
        FROM unnest(s_stream) WITH ORDINALITY u(stream, share) JOIN stream s ON s.stream = u.stream
        WHERE s.max_length IS NOT NULL OR s.max_bytes IS NOT NULL ORDER BY u.share
    LOOP
        share := r.share;
        free := s_free[share];
        refused := NULL;
        buries := r.overflow = 'reject-publish-dlx';
        IF starts_with(r.overflow, 'reject-publish') THEN
            SELECT c.ready, c.bytes, waiting_room(c.stream) INTO v_ready, v_bytes, v_room
                FROM stream c WHERE c.stream = r.counter;
            v_taken := greatest(least(bit_count(free), r.max_length + v_room - v_ready), 0);
            IF r.max_bytes IS NOT NULL AND v_ready + v_taken > v_room THEN
                v_taken := least(v_taken, fitting(free, s_bytes[share], s_sizes[share], r.max_bytes - v_bytes));
            END IF;
            IF v_taken < bit_count(free) THEN
                free := lowest_bits(free, v_taken::int);
                refused := s_free[share] & ~free;
            END IF;
        END IF;
        UPDATE stream c SET ready = c.ready + bit_count(free),
            bytes = c.bytes + bytes_of(free, s_bytes[share], s_sizes[share])
            WHERE c.stream = r.counter AND bit_count(free) > 0;
        RETURN NEXT;
    END LOOP;
END $$;

-- Drop from the heads of streams what exceeds their limits, where the overflow is drop-head and nothing is
-- dead-lettered. The highest level of a queue loses first, as in a single broker. At most p_limit rows of each stream
-- are touched: the keeper drops the rest.
CREATE OR REPLACE FUNCTION drop_excess(p_stream bigint[], p_limit int DEFAULT 1000) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_counter bigint := 0;
    v_messages bigint;
    v_bytes bigint;
    v_bits varbit;
    v_dropped bigint;
    v_dropped_bytes bigint;
    q record;
    r record;
BEGIN
    FOR q IN
        SELECT s.stream, c.stream AS counter, greatest(c.ready - c.max_length - waiting_room(c.stream), 0) AS messages,
            CASE WHEN c.ready > waiting_room(c.stream) THEN greatest(c.bytes - c.max_bytes, 0) END AS bytes
        FROM stream c CROSS JOIN LATERAL (
            SELECT l.stream FROM stream l WHERE l.stream BETWEEN c.stream AND c.stream + 255 AND l.counter = c.stream
            UNION ALL SELECT l.stream FROM stream l WHERE l.stream = ANY (level_numbers(c.stream))
        ) s
        WHERE c.stream IN (SELECT n.counter FROM stream n WHERE n.stream = ANY (p_stream))
            AND NOT c.buries AND NOT starts_with(c.overflow, 'reject-publish') AND exceeds(c)
        ORDER BY c.stream, level_rank(s.stream) DESC, s.stream DESC
    LOOP
        IF q.counter <> v_counter THEN
            v_counter := q.counter;
            v_messages := coalesce(q.messages, 0);
            v_bytes := coalesce(q.bytes, 0);
        END IF;
        CONTINUE WHEN v_messages <= 0 AND v_bytes <= 0;
        v_dropped := 0;
        v_dropped_bytes := 0;
        FOR r IN
            SELECT f.number, f.bits, f.bytes, f.sizes FROM slot f WHERE f.stream = q.stream AND f.holder = ''
            ORDER BY f.number LIMIT p_limit
        LOOP
            EXIT WHEN v_messages <= 0 AND v_bytes <= 0;
            v_bits := exceeding_bits(r.bits, v_messages, v_bytes, r.bytes, r.sizes);
            IF v_bits = r.bits THEN
                DELETE FROM slot f WHERE f.stream = q.stream AND f.number = r.number AND f.holder = '';
            ELSE
                UPDATE slot f SET bits = f.bits & ~v_bits
                    WHERE f.stream = q.stream AND f.number = r.number AND f.holder = '';
            END IF;
            v_dropped := v_dropped + bit_count(v_bits);
            v_dropped_bytes := v_dropped_bytes + bytes_of(r.bits, r.bytes, r.sizes)
                - bytes_of(r.bits & ~v_bits, r.bytes, r.sizes);
            v_messages := v_messages - bit_count(v_bits);
            v_bytes := v_bytes - bytes_of(v_bits, r.bytes, r.sizes);
        END LOOP;
        UPDATE stream c SET ready = c.ready - v_dropped, bytes = c.bytes - v_dropped_bytes WHERE c.stream = q.counter;
    END LOOP;
END $$;

-- Return the lowest bits that make up p_messages and p_bytes, all of them if they are fewer.
CREATE OR REPLACE FUNCTION exceeding_bits(
    p_bits varbit, p_messages bigint, p_bytes bigint, p_size bigint, p_sizes bytea
) RETURNS varbit LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    v_count int := bit_count(p_bits);
    v_messages bigint := p_messages;
BEGIN
    IF p_bytes > 0 AND v_messages < v_count THEN
        IF p_sizes IS NULL THEN
            v_messages := greatest(v_messages, p_bytes * length(p_bits) / greatest(p_size, 1) + 1);
        ELSE
            v_messages := greatest(v_messages, (
                SELECT count(*) + 1 FROM (
                    SELECT sum(size_at(p_sizes, i)) OVER (ORDER BY i) AS total
                    FROM generate_series(0, length(p_bits) - 1) i WHERE get_bit(p_bits, i) = 1
                ) b WHERE b.total < p_bytes
            ));
        END IF;
    END IF;
    IF v_messages >= v_count THEN
        RETURN p_bits;
    END IF;
    RETURN lowest_bits(p_bits, v_messages::int);
END $$;

-- Lease from the heads of kept streams what exceeds their limits, where the overflow is drop-head. The highest level of
-- a queue with priorities loses first, as in a single broker.
CREATE OR REPLACE FUNCTION lease_excess(
    p_node text, p_epoch bigint, p_limit int DEFAULT 1000, p_of bigint[] DEFAULT NULL
)
RETURNS TABLE (stream bigint, number bigint, ring int, count int, bits varbit, seen varbit, counts jsonb, more boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_counter bigint := 0;
    v_messages bigint;
    v_bytes bigint;
    v_streams bigint[];
    v_kept bigint[];
    v_rooms int[];
    q record;
    e record;
BEGIN
    PERFORM fence(p_node, p_epoch);
    v_streams := ARRAY(
        SELECT s.stream FROM keeper k JOIN stream s ON s.stream = k.stream JOIN stream c ON c.stream = s.counter
        WHERE k.node = p_node AND NOT starts_with(s.overflow, 'reject-publish') AND exceeds(c)
            AND (p_of IS NULL OR k.stream = ANY (p_of))
    );
    IF cardinality(v_streams) = 0 THEN
        RETURN;
    END IF;
    PERFORM lock_streams(v_streams);
    FOR q IN
        SELECT s.stream, s.counter, c.ready - s.max_length - waiting_room(c.stream) AS messages,
            CASE WHEN c.ready > waiting_room(c.stream) THEN c.bytes - s.max_bytes END AS bytes
        FROM stream s JOIN stream c ON c.stream = s.counter WHERE s.stream = ANY (v_streams)
        ORDER BY s.counter, level_rank(s.stream) DESC, s.stream DESC
    LOOP
        IF q.counter <> v_counter THEN
            v_counter := q.counter;
            v_messages := coalesce(q.messages, 0);
            v_bytes := coalesce(q.bytes, 0);
        END IF;
        SELECT x.* INTO e FROM excess(q.stream, v_messages, v_bytes, p_limit) x;
        v_messages := v_messages - e.messages;
        v_bytes := v_bytes - e.bytes;
        v_rooms := v_rooms || e.messages;
        v_kept := v_kept || q.stream;
    END LOOP;
    RETURN QUERY SELECT l.stream, l.number, l.ring, l.count, l.bits, l.seen, l.counts, l.more FROM lease(
        p_node, p_epoch, v_kept, v_rooms, array_fill(0::bigint, ARRAY[cardinality(v_rooms)]), true
    ) l WHERE l.number IS NOT NULL;
END $$;

-- How many of a stream's first free messages make up p_messages and p_bytes, or are all; at most p_limit.
CREATE OR REPLACE FUNCTION excess(
    p_stream bigint, p_messages bigint, p_bytes bigint, p_limit int, OUT messages int, OUT bytes bigint
) LANGUAGE plpgsql AS $$
BEGIN
    bytes := 0;
    SELECT greatest(least(p_messages, p_limit, sum(bit_count(h.bits))), 0) INTO messages FROM (
        SELECT f.bits FROM slot f WHERE f.stream = p_stream AND f.holder = '' ORDER BY f.number LIMIT p_limit
    ) h;
    IF p_bytes > 0 THEN                             -- message by message; the keeper comes again for the rest
        SELECT max(m.place), max(m.total) INTO messages, bytes FROM (
            SELECT row_number() OVER w AS place, sum(b.size) OVER w AS total, sum(b.size) OVER w - b.size AS before
            FROM (
                SELECT h.number, i,
                    CASE WHEN h.sizes IS NULL THEN h.bytes / length(h.bits) ELSE size_at(h.sizes, i) END AS size
                FROM (SELECT f.* FROM slot f WHERE f.stream = p_stream AND f.holder = '' ORDER BY f.number LIMIT 20) h
                CROSS JOIN LATERAL generate_series(0, length(h.bits) - 1) i WHERE get_bit(h.bits, i) = 1
            ) b WINDOW w AS (ORDER BY b.number, b.i)
        ) m WHERE m.place <= p_limit AND (m.place <= p_messages OR m.before < p_bytes);
        messages := coalesce(messages, 0);
        bytes := coalesce(bytes, 0);
    END IF;
END $$;
