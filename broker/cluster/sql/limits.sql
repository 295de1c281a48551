-- Queues with limits: the messages that they accept and drop, and the room of their consumers. The levels of a queue
-- with priorities have consecutive numbers and share the counter of the lowest one. The levels of a quorum queue share
-- the counter of the default one; each has its number with the priority above 46 bits. Counters are locked before use.

ALTER TABLE level ADD COLUMN IF NOT EXISTS buries boolean NOT NULL DEFAULT false;  -- dropped messages are dead-lettered
ALTER TABLE consumer ADD COLUMN IF NOT EXISTS room bigint NOT NULL DEFAULT 0;  -- for free messages, if there are limits
ALTER TABLE consumer SET (fillfactor = 50);

-- Return the total room of waiting consumers of a queue: this many free messages are about to be leased.
CREATE OR REPLACE FUNCTION waiting_room(p_counter bigint) RETURNS bigint LANGUAGE sql STABLE AS
'SELECT coalesce(sum(c.room), 0)::bigint FROM consumer c WHERE c.level = p_counter';

-- Return whether a queue has more free messages than its limits and its waiting consumers allow.
CREATE OR REPLACE FUNCTION exceeds(c level) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT coalesce(c.ready > c.max_length OR c.bytes > c.max_bytes, false) AND coalesce(
        c.ready > c.max_length + waiting_room(c.level) OR c.bytes > c.max_bytes AND c.ready > waiting_room(c.level),
        false
    )
$$;

-- Store the remaining room of a node's consumers, after it has leased the messages v_taken of v_level.
CREATE OR REPLACE FUNCTION keep_room(
    p_node text, p_level bigint[], p_able bigint[], v_level bigint[], v_taken varbit[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE consumer c SET room = d.room
        FROM (SELECT s.counter, greatest(max(a.able) - coalesce(sum(t.messages), 0), 0) AS room
              FROM unnest(p_level, p_able) a(level, able)
              JOIN level s ON s.level = a.level AND (s.max_length IS NOT NULL OR s.max_bytes IS NOT NULL)
              LEFT JOIN (
                  SELECT u.level, sum(bit_count(u.taken)) AS messages FROM unnest(v_level, v_taken) u(level, taken)
                  GROUP BY u.level
              ) t ON t.level = a.level
              GROUP BY s.counter) d
        WHERE c.level = d.counter AND c.node = p_node AND c.room <> d.room;
    IF FOUND THEN
        PERFORM drop_excess(p_level);
    END IF;
END $$;

-- Count the shares of levels with limits. Return the messages of each that become free, and those that a full queue
-- refuses, or null. Messages leased to the publisher's node from the start are accepted, because they are delivered.
CREATE OR REPLACE FUNCTION count_in(s_level bigint[], s_bytes bigint[], s_free varbit[], s_sizes bytea[])
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
        FROM unnest(s_level) WITH ORDINALITY u(level, share) JOIN level s ON s.level = u.level
        WHERE s.max_length IS NOT NULL OR s.max_bytes IS NOT NULL ORDER BY u.share
    LOOP
        share := r.share;
        free := s_free[share];
        refused := NULL;
        buries := r.overflow = 'reject-publish-dlx';
        IF starts_with(r.overflow, 'reject-publish') THEN
            SELECT c.ready, c.bytes, waiting_room(c.level) INTO v_ready, v_bytes, v_room
                FROM level c WHERE c.level = r.counter;
            v_taken := greatest(least(bit_count(free), r.max_length + v_room - v_ready), 0);
            IF r.max_bytes IS NOT NULL AND v_ready + v_taken > v_room THEN
                v_taken := least(v_taken, fitting(free, s_bytes[share], s_sizes[share], r.max_bytes - v_bytes));
            END IF;
            IF v_taken < bit_count(free) THEN
                free := lowest_bits(free, v_taken::int);
                refused := s_free[share] & ~free;
            END IF;
        END IF;
        UPDATE level c SET ready = c.ready + bit_count(free),
            bytes = c.bytes + bytes_of(free, s_bytes[share], s_sizes[share])
            WHERE c.level = r.counter AND bit_count(free) > 0;
        RETURN NEXT;
    END LOOP;
END $$;

-- Drop messages that exceed limits from the heads of levels whose overflow is drop-head without dead-lettering. The
-- highest level of a queue is first, as in a standalone broker. At most p_limit rows of each level are changed; the
-- keeper drops further messages.
CREATE OR REPLACE FUNCTION drop_excess(p_level bigint[], p_limit int DEFAULT 1000) RETURNS void
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
        SELECT s.level, c.level AS counter, greatest(c.ready - c.max_length - waiting_room(c.level), 0) AS messages,
            CASE WHEN c.ready > waiting_room(c.level) THEN greatest(c.bytes - c.max_bytes, 0) END AS bytes
        FROM level c CROSS JOIN LATERAL (
            SELECT l.level FROM level l WHERE l.level BETWEEN c.level AND c.level + 255 AND l.counter = c.level
            UNION ALL SELECT l.level FROM level l WHERE l.level = ANY (level_numbers(c.level))
        ) s
        WHERE c.level IN (SELECT n.counter FROM level n WHERE n.level = ANY (p_level))
            AND NOT c.buries AND NOT starts_with(c.overflow, 'reject-publish') AND exceeds(c)
        ORDER BY c.level, level_rank(s.level) DESC, s.level DESC
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
            SELECT f.number, f.bits, f.bytes, f.sizes FROM slot f WHERE f.level = q.level AND f.holder = ''
            ORDER BY f.number LIMIT p_limit
        LOOP
            EXIT WHEN v_messages <= 0 AND v_bytes <= 0;
            v_bits := exceeding_bits(r.bits, v_messages, v_bytes, r.bytes, r.sizes);
            IF v_bits = r.bits THEN
                DELETE FROM slot f WHERE f.level = q.level AND f.number = r.number AND f.holder = '';
            ELSE
                UPDATE slot f SET bits = f.bits & ~v_bits
                    WHERE f.level = q.level AND f.number = r.number AND f.holder = '';
            END IF;
            v_dropped := v_dropped + bit_count(v_bits);
            v_dropped_bytes := v_dropped_bytes + bytes_of(r.bits, r.bytes, r.sizes)
                - bytes_of(r.bits & ~v_bits, r.bytes, r.sizes);
            v_messages := v_messages - bit_count(v_bits);
            v_bytes := v_bytes - bytes_of(v_bits, r.bytes, r.sizes);
        END LOOP;
        UPDATE level c SET ready = c.ready - v_dropped, bytes = c.bytes - v_dropped_bytes WHERE c.level = q.counter;
    END LOOP;
END $$;

-- Return the lowest bits with at least p_messages messages and p_bytes bytes, or all bits if they have less.
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

-- Lease messages that exceed limits from the heads of levels whose overflow is drop-head and of which this node is the
-- keeper. The highest level of a queue is first, as in a standalone broker.
CREATE OR REPLACE FUNCTION lease_excess(
    p_node text, p_epoch bigint, p_limit int DEFAULT 1000, p_of bigint[] DEFAULT NULL
)
RETURNS TABLE (level bigint, number bigint, ring int, count int, bits varbit, seen varbit, counts jsonb, more boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_counter bigint := 0;
    v_messages bigint;
    v_bytes bigint;
    v_levels bigint[];
    v_kept bigint[];
    v_rooms int[];
    q record;
    e record;
BEGIN
    PERFORM fence(p_node, p_epoch);
    v_levels := ARRAY(
        SELECT s.level FROM keeper k JOIN level s ON s.level = k.level JOIN level c ON c.level = s.counter
        WHERE k.node = p_node AND NOT starts_with(s.overflow, 'reject-publish') AND exceeds(c)
            AND (p_of IS NULL OR k.level = ANY (p_of))
    );
    IF cardinality(v_levels) = 0 THEN
        RETURN;
    END IF;
    PERFORM lock_levels(v_levels);
    FOR q IN
        SELECT s.level, s.counter, c.ready - s.max_length - waiting_room(c.level) AS messages,
            CASE WHEN c.ready > waiting_room(c.level) THEN c.bytes - s.max_bytes END AS bytes
        FROM level s JOIN level c ON c.level = s.counter WHERE s.level = ANY (v_levels)
        ORDER BY s.counter, level_rank(s.level) DESC, s.level DESC
    LOOP
        IF q.counter <> v_counter THEN
            v_counter := q.counter;
            v_messages := coalesce(q.messages, 0);
            v_bytes := coalesce(q.bytes, 0);
        END IF;
        SELECT x.* INTO e FROM excess(q.level, v_messages, v_bytes, p_limit) x;
        v_messages := v_messages - e.messages;
        v_bytes := v_bytes - e.bytes;
        v_rooms := v_rooms || e.messages;
        v_kept := v_kept || q.level;
    END LOOP;
    RETURN QUERY SELECT l.level, l.number, l.ring, l.count, l.bits, l.seen, l.counts, l.more FROM lease(
        p_node, p_epoch, v_kept, v_rooms, array_fill(0::bigint, ARRAY[cardinality(v_rooms)]), true
    ) l WHERE l.number IS NOT NULL;
END $$;

-- Return how many of a level's first free messages make up p_messages and p_bytes, at most p_limit.
CREATE OR REPLACE FUNCTION excess(
    p_level bigint, p_messages bigint, p_bytes bigint, p_limit int, OUT messages int, OUT bytes bigint
) LANGUAGE plpgsql AS $$
BEGIN
    bytes := 0;
    SELECT greatest(least(p_messages, p_limit, sum(bit_count(h.bits))), 0) INTO messages FROM (
        SELECT f.bits FROM slot f WHERE f.level = p_level AND f.holder = '' ORDER BY f.number LIMIT p_limit
    ) h;
    IF p_bytes > 0 THEN                             -- in 20 rows; the next turn of the keeper continues
        SELECT max(m.place), max(m.total) INTO messages, bytes FROM (
            SELECT row_number() OVER w AS place, sum(b.size) OVER w AS total, sum(b.size) OVER w - b.size AS before
            FROM (
                SELECT h.number, i,
                    CASE WHEN h.sizes IS NULL THEN h.bytes / length(h.bits) ELSE size_at(h.sizes, i) END AS size
                FROM (SELECT f.* FROM slot f WHERE f.level = p_level AND f.holder = '' ORDER BY f.number LIMIT 20) h
                CROSS JOIN LATERAL generate_series(0, length(h.bits) - 1) i WHERE get_bit(h.bits, i) = 1
            ) b WINDOW w AS (ORDER BY b.number, b.i)
        ) m WHERE m.place <= p_limit AND (m.place <= p_messages OR m.before < p_bytes);
        messages := coalesce(messages, 0);
        bytes := coalesce(bytes, 0);
    END IF;
END $$;
