-- The topology log. A change is one JSON object: an exchange, queue or binding that was created or deleted. A body is
-- an array of changes, which are applied up to the first without effect. Every node applies all bodies in the order of
-- their versions, and whether a change has an effect is decided then.

CREATE TABLE IF NOT EXISTS change (                 -- one append; versions have no gaps
    version   bigint  PRIMARY KEY,
    epoch     bigint  NOT NULL,                     -- of the node that appended it
    sequence  bigint  NOT NULL,                     -- that node's count of appends
    bodies    bytea[] NOT NULL
);

CREATE TABLE IF NOT EXISTS topology_snapshot (      -- the topology at a version, written by a node
    version  bigint PRIMARY KEY,
    body     bytea  NOT NULL
);

CREATE TABLE IF NOT EXISTS dropped_level (          -- of deleted queues; removed once every node has applied `version`
    level    bigint PRIMARY KEY,
    version  bigint NOT NULL
);

CREATE SEQUENCE IF NOT EXISTS level_number INCREMENT BY 1024;   -- a node reserves 1,024 level numbers at a time

CREATE OR REPLACE FUNCTION topology_version() RETURNS bigint LANGUAGE sql AS
'SELECT greatest((SELECT max(c.version) FROM change c), (SELECT max(s.version) FROM topology_snapshot s), 0)';

-- Append changes as the next version, even if other nodes have appended changes meanwhile. A repeated call, with the
-- same (epoch, sequence), appends nothing. A body with a level in p_unused is omitted while that level has consumers.
-- Return the changes after p_known up to this version, and in the last row the members that must apply them.
CREATE OR REPLACE FUNCTION append(
    p_node text, p_epoch bigint, p_sequence bigint, p_known bigint, p_bodies bytea[], p_unused bigint[],
    p_dropped bigint[], p_limits jsonb
) RETURNS TABLE (version bigint, bodies bytea[], epochs bigint[]) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_version bigint;
    v_bodies bytea[];
BEGIN
    PERFORM fence(p_node, p_epoch);
    PERFORM lock_topology();
    SELECT c.version INTO v_version FROM change c
        WHERE c.version > p_known AND c.epoch = p_epoch AND c.sequence = p_sequence;
    IF NOT FOUND THEN
        v_version := topology_version() + 1;
        IF v_version <= p_known THEN
            RAISE EXCEPTION 'the topology has version %, and node % knows version %', v_version - 1, p_node, p_known
                USING ERRCODE = 'SQ005';
        END IF;
        v_bodies := ARRAY(
            SELECT b.body FROM unnest(p_bodies, p_unused) WITH ORDINALITY b(body, unused, place)
            WHERE b.unused IS NULL OR NOT EXISTS (SELECT FROM consumer c WHERE c.level = b.unused)
            ORDER BY b.place
        );
        INSERT INTO change (version, epoch, sequence, bodies) VALUES (v_version, p_epoch, p_sequence, v_bodies);
        INSERT INTO dropped_level (level, version) SELECT d.level, v_version FROM unnest(p_dropped) d(level)
            ON CONFLICT DO NOTHING;
        IF p_limits IS NOT NULL THEN
            PERFORM set_limits(p_limits);
        END IF;
    END IF;
    RETURN QUERY SELECT c.version, c.bodies, CASE WHEN c.version = v_version THEN ARRAY(SELECT m.epoch FROM member m) END
        FROM change c WHERE c.version > p_known AND c.version <= v_version ORDER BY c.version;
END $$;

-- Set the limits of levels, in ascending order.
CREATE OR REPLACE FUNCTION set_limits(p_limits jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_level(l.level, l.vhost, l.counter, l.max_length, l.max_bytes, l.overflow, l.single_active,
        coalesce(l.buries, true))
        FROM (SELECT * FROM jsonb_to_recordset(p_limits)
              x(level bigint, vhost text, counter bigint, max_length bigint, max_bytes bigint, overflow text,
                single_active boolean, buries boolean)
              ORDER BY level OFFSET 0) l;
END $$;

-- Replace the limits of all queues of a vhost, whose policies have changed on every node, and recount their messages.
CREATE OR REPLACE FUNCTION replace_limits(p_node text, p_epoch bigint, p_vhost text, p_limits jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_level bigint[];
BEGIN
    PERFORM fence(p_node, p_epoch);
    PERFORM lock_topology();
    v_level := ARRAY(SELECT x.level FROM jsonb_to_recordset(p_limits) x(level bigint));
    PERFORM lock_levels(v_level || ARRAY(SELECT s.level FROM level s WHERE s.vhost = p_vhost));
    UPDATE level s SET max_length = NULL, max_bytes = NULL, overflow = NULL WHERE s.vhost = p_vhost
        AND (s.max_length IS NOT NULL OR s.max_bytes IS NOT NULL)
        AND NOT EXISTS (SELECT FROM jsonb_to_recordset(p_limits) x(level bigint) WHERE x.level = s.level);
    PERFORM set_limits(p_limits);
    PERFORM recount(p_node, p_epoch, v_level);
END $$;

-- Return the changes after p_known; if some of them were removed, a snapshot is the first row.
CREATE OR REPLACE FUNCTION changes_since(p_known bigint)
RETURNS TABLE (version bigint, snapshot bytea, bodies bytea[]) LANGUAGE sql AS $$
    WITH start AS (
        SELECT s.version, s.body FROM topology_snapshot s
        WHERE s.version > p_known AND NOT EXISTS (SELECT FROM change c WHERE c.version = p_known + 1)
        ORDER BY s.version DESC LIMIT 1
    )
    SELECT s.version, s.body, NULL::bytea[] FROM start s
    UNION ALL
    SELECT c.version, NULL, c.bodies FROM change c
        WHERE c.version > p_known AND c.version > coalesce((SELECT s.version FROM start s), 0)
    ORDER BY 1
$$;

-- Record that a node has applied a version, and that all messages that it routed before are committed.
CREATE OR REPLACE FUNCTION report(p_node text, p_epoch bigint, p_applied bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE beat b SET applied = p_applied WHERE b.node = p_node AND b.epoch = p_epoch AND b.applied < p_applied;
    PERFORM pg_notify(current_schema(), format('applied %s %s', p_applied, p_epoch));
END $$;

-- Return the members and what they have applied.
CREATE OR REPLACE FUNCTION applied() RETURNS TABLE (node text, epoch bigint, applied bigint) LANGUAGE sql AS
'SELECT m.node, m.epoch, b.applied FROM member m JOIN beat b USING (node, epoch)';

-- Record levels whose queues were deleted by this version, for sweep_dropped.
CREATE OR REPLACE FUNCTION drop_levels(p_node text, p_epoch bigint, p_version bigint, p_levels bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM fence(p_node, p_epoch);
    INSERT INTO dropped_level (level, version) SELECT d.level, p_version FROM unnest(p_levels) d(level)
        ON CONFLICT DO NOTHING;
END $$;

-- Store a snapshot, and remove the changes that it includes, except those that a member has not applied.
CREATE OR REPLACE FUNCTION put_snapshot(p_node text, p_epoch bigint, p_version bigint, p_body bytea) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM fence(p_node, p_epoch);
    PERFORM lock_topology();
    INSERT INTO topology_snapshot (version, body) VALUES (p_version, p_body) ON CONFLICT DO NOTHING;
    DELETE FROM topology_snapshot s WHERE s.version < p_version;
    DELETE FROM change c WHERE c.version <= least(p_version, (SELECT min(a.applied) FROM applied() a));
END $$;

-- Remove rows of queues whose deletion every member has applied. Return whether more may be left.
CREATE OR REPLACE FUNCTION sweep_dropped(p_node text, p_epoch bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_level bigint[] := ARRAY(
        SELECT d.level FROM dropped_level d WHERE d.version <= (SELECT min(a.applied) FROM applied() a)
        ORDER BY d.level LIMIT 100 FOR UPDATE SKIP LOCKED
    );
BEGIN
    IF cardinality(v_level) = 0 THEN
        PERFORM fence_look(p_node, p_epoch);
        RETURN false;
    END IF;
    PERFORM fence(p_node, p_epoch);
    IF sweep(p_node, p_epoch, v_level) THEN
        DELETE FROM dropped_level d WHERE d.level = ANY (v_level);
    END IF;
    RETURN true;
END $$;
