-- Arithmetic on bits, delivery counts and sizes. Bit 0 is the leftmost.

CREATE OR REPLACE FUNCTION either_bits(p_one varbit, p_other varbit) RETURNS varbit
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
'SELECT CASE WHEN p_one IS NULL THEN p_other WHEN p_other IS NULL THEN p_one ELSE p_one | p_other END';

CREATE OR REPLACE FUNCTION lowest_bits(p_bits varbit, p_count int) RETURNS varbit
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE                                             -- binary search for the shortest prefix with p_count bits
    v_low int := p_count;
    v_high int := length(p_bits);
    v_middle int;
BEGIN
    WHILE v_low < v_high LOOP
        v_middle := (v_low + v_high) / 2;
        IF bit_count(substring(p_bits FROM 1 FOR v_middle)) < p_count THEN
            v_low := v_middle + 1;
        ELSE
            v_high := v_middle;
        END IF;
    END LOOP;
    RETURN (p_bits >> (length(p_bits) - v_low)) << (length(p_bits) - v_low);
END $$;

CREATE OR REPLACE FUNCTION counts_of(p_counts jsonb, p_bits varbit) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF p_counts IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN (SELECT jsonb_object_agg(c.key, c.value) FROM jsonb_each(p_counts) c WHERE get_bit(p_bits, c.key::int) = 1);
END $$;

CREATE OR REPLACE FUNCTION merged_counts(p_older jsonb, p_newer jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
'SELECT CASE WHEN p_older IS NULL THEN p_newer WHEN p_newer IS NULL THEN p_older ELSE p_older || p_newer END';

CREATE OR REPLACE FUNCTION size_at(p_sizes bytea, p_index int) RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$SELECT ('x' || encode(substring(p_sizes FROM p_index * 4 + 1 FOR 4), 'hex'))::bit(32)::int$$;

CREATE OR REPLACE FUNCTION bytes_of(p_bits varbit, p_bytes bigint, p_sizes bytea) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$      -- exact if the sizes are known, otherwise an estimate
DECLARE
    v_count int := bit_count(p_bits);
BEGIN
    IF v_count = 0 THEN
        RETURN 0;
    ELSIF v_count = length(p_bits) OR p_sizes IS NULL THEN
        RETURN p_bytes * v_count / length(p_bits);
    END IF;
    RETURN (SELECT sum(size_at(p_sizes, i)) FROM generate_series(0, length(p_bits) - 1) i WHERE get_bit(p_bits, i) = 1);
END $$;

-- Return how many of the messages set in p_bits, from the first on, fit into p_room bytes. p_bytes is the size of all
-- messages, set or not.
CREATE OR REPLACE FUNCTION fitting(p_bits varbit, p_bytes bigint, p_sizes bytea, p_room bigint) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF bytes_of(p_bits, p_bytes, p_sizes) <= p_room THEN
        RETURN bit_count(p_bits);
    ELSIF p_room <= 0 THEN
        RETURN 0;
    ELSIF p_sizes IS NULL THEN
        RETURN p_room * length(p_bits) / p_bytes;
    END IF;
    RETURN (SELECT count(*) FROM (
        SELECT sum(size_at(p_sizes, i)) OVER (ORDER BY i) AS total FROM generate_series(0, length(p_bits) - 1) i
        WHERE get_bit(p_bits, i) = 1
    ) s WHERE s.total <= p_room);
END $$;

-- Return the numbers of the levels that a quorum queue creates at their first use, beside its default level p_level.
CREATE OR REPLACE FUNCTION level_numbers(p_level bigint) RETURNS bigint[] LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
'SELECT array_agg(p::bigint << 46 | p_level) FROM generate_series(1, 32) p WHERE p_level < 1::bigint << 46';

-- Return the rank of a level among those of its queue: the default level of a quorum queue has priority 4.
CREATE OR REPLACE FUNCTION level_rank(p_level bigint) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
'SELECT CASE WHEN p_level >> 46 > 0 THEN p_level >> 46 ELSE 5 END';
