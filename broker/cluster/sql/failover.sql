-- Checks of a node that has reconnected: whether the database still has its history.

-- Leave a gap in the numbers if another server or timeline has taken over, because its sequences may be behind.
CREATE OR REPLACE FUNCTION move_numbers() RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_system bigint := (SELECT s.system_identifier FROM pg_control_system() s);
    v_timeline int := current_timeline();
BEGIN
    PERFORM 1 FROM cluster c WHERE (c.system_identifier, c.timeline) <> (v_system, v_timeline);
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE cluster c SET system_identifier = v_system, timeline = v_timeline    -- a second node waits here
        WHERE (c.system_identifier, c.timeline) <> (v_system, v_timeline);
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM setval('number_of_call', n.last_value + 1000000) FROM number_of_call n;
    PERFORM setval('level_number', s.last_value + 1024 * 1024) FROM level_number s;
    RETURN true;
END $$;

-- Check the database; the first call on new connections. p_sequence is the newest answered synchronous batch, null for
-- none; p_number is the newest number that this node knows to be committed by any node; p_generation is that of its
-- join; p_changed is set if the server or its timeline has changed. If the batch is missing, or the number was not
-- assigned yet, the database has gone back in time. The batch of a node that was counted out may be missing.
CREATE OR REPLACE FUNCTION come_back(
    p_node text, p_epoch bigint, p_sequence bigint, p_number bigint, p_generation bigint, p_changed boolean,
    OUT generation bigint, OUT is_member boolean, OUT has_all boolean, OUT was_moved boolean
) LANGUAGE plpgsql AS $$
BEGIN
    has_all := p_number <= (SELECT n.last_value FROM number_of_call n);
    IF NOT has_all THEN                             -- no number is assigned twice
        PERFORM setval('number_of_call', p_number);
    END IF;
    was_moved := move_numbers();
    PERFORM nextval('number_of_call') FROM generate_series(1, 10000);   -- a crash may have lost this many calls
    is_member := EXISTS (SELECT FROM member m WHERE m.node = p_node AND m.epoch = p_epoch);
    has_all := has_all AND (p_sequence IS NULL OR NOT (is_member OR p_changed) OR EXISTS (
        SELECT FROM batch b WHERE b.node = p_node AND b.epoch = p_epoch AND b.sequence = p_sequence
    ) OR p_sequence > 0 AND EXISTS (                -- a later epoch of the node's name has deleted its batches
        SELECT FROM batch b WHERE b.node = p_node AND b.epoch > p_epoch
    ));
    IF NOT has_all THEN                             -- once, however many nodes find data missing
        UPDATE cluster c SET generation = p_generation + 1 WHERE c.generation <= p_generation;
        IF FOUND THEN                               -- messages may have been added to levels of the lost history
            PERFORM setval('level_number', nextval('level_number') + 1024 * 1024);
        END IF;
    END IF;
    SELECT c.generation INTO generation FROM cluster c;
END $$;
