-- The definitions: one document with users, vhosts, permissions, policies and parameters. A change replaces it.

CREATE TABLE IF NOT EXISTS definitions (            -- one row, none before the first change
    one      boolean PRIMARY KEY DEFAULT true CHECK (one),
    version  bigint NOT NULL,
    body     bytea  NOT NULL                        -- JSON, but jsonb would refuse NUL characters
);

-- The version whose policies determine the stored limits of queues. If it is older than the definitions, their writer
-- is about to replace the limits, or has died: see SharedDefinitions.
ALTER TABLE definitions ADD COLUMN IF NOT EXISTS limits_version bigint NOT NULL DEFAULT 0;

CREATE TABLE IF NOT EXISTS definitions_follower (   -- which version a node follows
    node     text COLLATE "C",
    epoch    bigint,
    version  bigint NOT NULL,
    PRIMARY KEY (node, epoch)
);

CREATE TABLE IF NOT EXISTS deleted_vhost (          -- its topology is deleted once every node follows `version`
    vhost    bytea PRIMARY KEY,
    version  bigint NOT NULL,
    body     bytea NOT NULL,                        -- the change of the topology log that deletes it
    levels   bigint[] NOT NULL DEFAULT '{}'         -- of its queues, as far as any node has reported them
);

CREATE OR REPLACE FUNCTION definitions_read() RETURNS TABLE (version bigint, body bytea) LANGUAGE sql AS
'SELECT d.version, d.body FROM definitions d';

-- Return the version, 0 before the first change; whether the topology of a deleted vhost must still be deleted; and
-- whether limits must still be replaced.
CREATE OR REPLACE FUNCTION definitions_look() RETURNS TABLE (version bigint, pending boolean, unlimited boolean)
LANGUAGE sql AS $$
    SELECT coalesce(max(d.version), 0), EXISTS (SELECT FROM deleted_vhost),
        coalesce(bool_or(d.limits_version < d.version), false) FROM definitions d
$$;

-- Record that the stored limits of queues result from the policies of a version.
CREATE OR REPLACE FUNCTION definitions_limited(p_node text, p_epoch bigint, p_version bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM fence(p_node, p_epoch);
    UPDATE definitions d SET limits_version = p_version WHERE d.limits_version < p_version;
END $$;

-- Replace the document, and return its new version, or null if its version is not the expected one. Every node follows
-- the expected version.
CREATE OR REPLACE FUNCTION definitions_write(
    p_node text, p_epoch bigint, p_expected bigint, p_body bytea, p_deleted bytea[], p_changes bytea[],
    p_limits boolean                                -- whether policies change, and so the limits of queues
) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    PERFORM fence(p_node, p_epoch);
    IF p_expected = 0 THEN
        INSERT INTO definitions (version, body, limits_version) VALUES (1, p_body, CASE WHEN p_limits THEN 0 ELSE 1 END)
            ON CONFLICT DO NOTHING;
    ELSE
        UPDATE definitions d SET version = d.version + 1, body = p_body, limits_version = d.limits_version +
            CASE WHEN p_limits OR d.limits_version < d.version THEN 0 ELSE 1 END WHERE d.version = p_expected;
    END IF;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    PERFORM forget_vhosts(p_node, p_epoch);         -- before a vhost of the same name gets new queues
    INSERT INTO deleted_vhost (vhost, version, body)
        SELECT u.vhost, p_expected + 1, u.body FROM unnest(p_deleted, p_changes) u(vhost, body);
    RETURN p_expected + 1;
END $$;

-- Record the levels of the queues of a deleted vhost.
CREATE OR REPLACE FUNCTION definitions_dropped(p_node text, p_epoch bigint, p_vhost bytea, p_levels bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM fence(p_node, p_epoch);
    UPDATE deleted_vhost v SET levels = ARRAY(SELECT DISTINCT s.level FROM unnest(v.levels || p_levels) s(level))
        WHERE v.vhost = p_vhost;
END $$;

-- Record that a node follows a version, and that all messages that it routed before are committed.
CREATE OR REPLACE FUNCTION definitions_follow(p_node text, p_epoch bigint, p_version bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM fence(p_node, p_epoch);
    DELETE FROM definitions_follower f WHERE NOT EXISTS (SELECT FROM member m WHERE (m.node, m.epoch) = (f.node, f.epoch));
    INSERT INTO definitions_follower AS f (node, epoch, version) VALUES (p_node, p_epoch, p_version)
        ON CONFLICT (node, epoch) DO UPDATE SET version = EXCLUDED.version;
END $$;

-- Return the members that do not follow a version yet.
CREATE OR REPLACE FUNCTION definitions_behind(p_version bigint) RETURNS TABLE (node text) LANGUAGE sql AS $$
    SELECT m.node FROM member m LEFT JOIN definitions_follower f ON (f.node, f.epoch) = (m.node, m.epoch)
        WHERE f.version IS NULL OR f.version < p_version
$$;

-- Delete the topology of deleted vhosts that no member has any longer: earlier changes of them have no effect.
CREATE OR REPLACE FUNCTION forget_vhosts(p_node text, p_epoch bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_vhost deleted_vhost;
    v_version bigint;
BEGIN
    PERFORM fence(p_node, p_epoch);
    FOR v_vhost IN SELECT * FROM deleted_vhost v ORDER BY v.vhost FOR UPDATE LOOP
        CONTINUE WHEN EXISTS (SELECT FROM definitions_behind(v_vhost.version));
        PERFORM lock_topology();
        v_version := topology_version() + 1;
        INSERT INTO change (version, epoch, sequence, bodies) VALUES (v_version, 0, v_version, ARRAY[v_vhost.body]);
        INSERT INTO dropped_level (level, version) SELECT s.level, v_version FROM unnest(v_vhost.levels) s(level)
            ON CONFLICT DO NOTHING;
        DELETE FROM retained r WHERE r.vhost = v_vhost.vhost;
        DELETE FROM retained_count c WHERE c.vhost = v_vhost.vhost;
        DELETE FROM deleted_vhost v WHERE v.vhost = v_vhost.vhost;
    END LOOP;
END $$;
