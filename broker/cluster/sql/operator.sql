-- Operations of an operator on the messages of a queue: peek at free ones, and move them to other queues.

-- Return free messages of a level in order, from message p_index of slot p_number on, up to slot p_last; at most
-- p_limit messages, and no further slot once p_bytes are reached. Nothing is leased.
CREATE OR REPLACE FUNCTION look(
    p_level bigint, p_number bigint, p_index int, p_last bigint, p_limit int, p_bytes bigint
) RETURNS TABLE (level bigint, number bigint, ring int, count int, bits varbit, seen varbit, counts jsonb)
LANGUAGE sql STABLE AS $$
    SELECT f.level, f.number, f.ring, f.count,
        CASE WHEN f.upto <= p_limit THEN f.bits ELSE lowest_bits(f.bits, (p_limit - f.before)::int) END, f.seen, f.counts
    FROM (
        SELECT h.*, sum(bit_count(h.bits)) OVER w AS upto, sum(bit_count(h.bits)) OVER w - bit_count(h.bits) AS before,
            sum(h.bytes) OVER w - h.bytes AS bytes_before
        FROM (
            SELECT s.level, s.number, s.ring, s.count, s.bytes, s.counts,
                CASE WHEN s.number = p_number THEN ((s.bits << p_index) >> p_index)::varbit ELSE s.bits END AS bits,
                CASE WHEN s.generation < (SELECT c.generation FROM cluster c) THEN s.bits ELSE s.seen END AS seen
            FROM slot s WHERE s.level = p_level AND s.holder = '' AND s.number >= p_number AND s.number <= p_last
            ORDER BY s.number LIMIT 256
        ) h
        WINDOW w AS (ORDER BY h.number ROWS UNBOUNDED PRECEDING)
    ) f
    WHERE f.before < p_limit AND f.bytes_before < p_bytes AND f.upto > f.before ORDER BY f.number
$$;

-- Return the newest number: everything committed before has at most this number.
CREATE OR REPLACE FUNCTION newest_number() RETURNS bigint LANGUAGE sql VOLATILE AS
'SELECT n.last_value FROM number_of_call n';

-- Lease these messages of a level if they are free, and return those that were.
CREATE OR REPLACE FUNCTION hold(p_node text, p_epoch bigint, p_level bigint, p_number bigint[], p_bits varbit[])
RETURNS TABLE (number bigint, bits varbit) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_limited boolean;
    v_generation bigint;
    v_bits varbit;
    q record;
    r slot;
BEGIN
    PERFORM fence(p_node, p_epoch);
    v_limited := lock_levels(ARRAY[p_level]);
    SELECT c.generation INTO v_generation FROM cluster c;
    FOR q IN SELECT u.* FROM unnest(p_number, p_bits) u(number, bits) ORDER BY u.number LOOP
        SELECT s.* INTO r FROM slot s
            WHERE s.level = p_level AND s.number = q.number AND s.holder = '' FOR UPDATE;
        CONTINUE WHEN NOT FOUND;
        v_bits := r.bits & q.bits;
        CONTINUE WHEN bit_count(v_bits) = 0;
        IF v_bits = r.bits THEN
            DELETE FROM slot s WHERE s.level = p_level AND s.number = q.number AND s.holder = '';
        ELSE
            UPDATE slot s SET bits = s.bits & ~v_bits
                WHERE s.level = p_level AND s.number = q.number AND s.holder = '';
        END IF;
        INSERT INTO slot AS s (
            level, number, holder, epoch, generation, ring, count, bytes, due_at, bits, seen, counts, sizes
        ) VALUES (
            r.level, r.number, p_node, p_epoch, v_generation, r.ring, r.count, r.bytes, r.due_at, v_bits,
            CASE WHEN r.generation < v_generation THEN v_bits ELSE (r.seen & v_bits)::varbit END,
            counts_of(r.counts, v_bits), r.sizes
        ) ON CONFLICT (level, number, holder) DO UPDATE SET
            generation = least(s.generation, EXCLUDED.generation),
            bits = s.bits | EXCLUDED.bits,
            seen = either_bits(s.seen, EXCLUDED.seen),
            counts = merged_counts(s.counts, EXCLUDED.counts);
        IF v_limited THEN
            UPDATE level c SET ready = c.ready - bit_count(v_bits),
                bytes = c.bytes - bytes_of(v_bits, r.bytes, r.sizes)
                FROM level s WHERE s.level = p_level AND c.level = s.counter;
        END IF;
        number := q.number;
        bits := v_bits;
        RETURN NEXT;
    END LOOP;
END $$;

-- Return for each level the number of free messages, of consumers on other nodes, and of messages leased to these.
CREATE OR REPLACE FUNCTION queue_counts(p_node text, p_level bigint[])
RETURNS TABLE (level bigint, messages bigint, consumers int, held bigint) LANGUAGE sql STABLE AS $$
    SELECT f.level, f.messages,
        (SELECT coalesce(sum(c.count), 0)::int FROM consumer c WHERE c.level = f.level AND c.node <> p_node),
        (SELECT coalesce(sum(bit_count(s.bits)), 0)::bigint FROM slot s
            WHERE s.level = f.level AND s.holder > '' AND s.holder <> p_node)
    FROM counts(p_level) f
$$;
