-- Space is freed by emptying the chunk tables, which form a ring.

-- Delete the results of calls that will not be repeated. p_answered is the newest answered call, p_synchronous the
-- newest answered synchronous one, which stays for come_back. Those below p_known were deleted before: while another
-- application keeps a transaction open, a search for them would read all their dead rows.
CREATE OR REPLACE FUNCTION forget(
    p_node text, p_epoch bigint, p_answered bigint, p_synchronous bigint, p_known bigint DEFAULT 0
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM fence(p_node, p_epoch);
    DELETE FROM batch b WHERE b.node = p_node AND b.epoch = p_epoch
        AND b.sequence >= p_known AND b.sequence < p_answered
        AND b.sequence <> coalesce(p_synchronous, 0);
END $$;

-- Begin the next table when the current one is full, and empty old ones. Every node calls it once a second, but only
-- one at a time acts. Return what was done, null for nothing.
CREATE OR REPLACE FUNCTION turn_ring(
    p_node text, p_epoch bigint, p_limit_bytes bigint DEFAULT 268435456, p_copy_bytes bigint DEFAULT 16777216
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_ring int;
    v_next int;
    v_done text;
BEGIN
    PERFORM fence_look(p_node, p_epoch);            -- no lock is needed: chunks of existing slots are never deleted
    IF NOT pg_try_advisory_xact_lock(hashtextextended(current_schema() || '.ring', 0)) THEN
        RETURN NULL;
    END IF;
    DELETE FROM slot s WHERE s.level < 0            -- the mailboxes of former members
        AND NOT EXISTS (SELECT FROM member m WHERE m.epoch = -s.level);
    SELECT c.ring INTO v_ring FROM cluster c;
    IF pg_table_size(format('chunk_%s', v_ring)::regclass) >= p_limit_bytes THEN
        SELECT min(r.ring) INTO v_next FROM ring r WHERE NOT r.used;
        IF v_next IS NULL THEN
            v_next := add_ring_table();
        END IF;
        UPDATE ring r SET used = true WHERE r.ring = v_next;
        UPDATE cluster c SET ring = v_next;
        RETURN format('took chunk_%s', v_next);
    END IF;
    PERFORM set_config('lock_timeout', '50ms', true);
    FOR v_next IN SELECT r.ring FROM ring r WHERE r.used AND r.ring <> v_ring ORDER BY random() LIMIT 4 LOOP
        BEGIN
            v_done := concat_ws(', ', v_done, empty_table(v_next, v_ring, p_copy_bytes));
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            v_done := concat_ws(', ', v_done, format('chunk_%s is in use', v_next));
        END;
    END LOOP;
    RETURN nullif(v_done, '');
END $$;

-- Empty a table to which no slot refers; if few slots refer to it, copy their records to the current table.
CREATE OR REPLACE FUNCTION empty_table(p_ring int, p_current int, p_copy_bytes bigint) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    v_numbers bigint[];
    v_bytes bigint;
BEGIN
    IF NOT EXISTS (SELECT FROM slot s WHERE s.ring = p_ring) THEN
        EXECUTE format('LOCK TABLE chunk_%s IN ACCESS EXCLUSIVE MODE', p_ring);  -- waits for calls that write to it
        IF EXISTS (SELECT FROM slot s WHERE s.ring = p_ring) THEN   -- a newer snapshot includes these calls
            RETURN NULL;
        END IF;
        EXECUTE format('TRUNCATE chunk_%s', p_ring);
        UPDATE ring r SET used = false WHERE r.ring = p_ring;
        RETURN format('emptied chunk_%s', p_ring);
    END IF;
    IF (SELECT count(*) FROM (SELECT FROM slot s WHERE s.ring = p_ring LIMIT 10001) f) > 10000 THEN
        RETURN NULL;
    END IF;
    v_numbers := ARRAY(SELECT DISTINCT s.number FROM slot s WHERE s.ring = p_ring);
    EXECUTE format('SELECT sum(octet_length(bytes)) FROM chunk_%s WHERE number = ANY ($1)', p_ring)
        INTO v_bytes USING v_numbers;
    IF v_bytes > p_copy_bytes THEN
        RETURN NULL;
    END IF;
    -- While the levels are locked, no messages are moved between rows, so no row can get the old ring from another one.
    PERFORM lock_levels(ARRAY(SELECT DISTINCT s.level FROM slot s WHERE s.ring = p_ring));
    EXECUTE format(
        'INSERT INTO chunk_%s SELECT * FROM chunk_%s WHERE number = ANY ($1) ON CONFLICT DO NOTHING', p_current, p_ring
    ) USING v_numbers;
    UPDATE slot s SET ring = p_current WHERE s.ring = p_ring AND s.number = ANY (v_numbers);
    RETURN format('copied %s chunks of chunk_%s', cardinality(v_numbers), p_ring);
END $$;

-- Return slots whose records are missing. There must be none; tests check this.
CREATE OR REPLACE FUNCTION lost_records() RETURNS TABLE (level bigint, number bigint, ring int) LANGUAGE plpgsql AS $$
DECLARE
    v_ring int;
BEGIN
    FOR v_ring IN SELECT r.ring FROM ring r ORDER BY r.ring LOOP
        EXECUTE format('LOCK TABLE chunk_%s IN ACCESS SHARE MODE', v_ring);  -- not emptied before the next snapshot
        RETURN QUERY EXECUTE format(
            'SELECT s.level, s.number, s.ring FROM slot s
             WHERE s.ring = %1$s AND NOT EXISTS (SELECT FROM chunk_%1$s c WHERE c.number = s.number)', v_ring
        );
    END LOOP;
END $$;
