-- MQTT: the connections that have client ids, and retained messages.

CREATE TABLE IF NOT EXISTS mqtt_client (
    client  text PRIMARY KEY,                       -- vhost and client id, in JSON
    node    text COLLATE "C" NOT NULL,
    epoch   bigint NOT NULL,
    number  bigint NOT NULL,                        -- of the connection, on its node
    wanted  boolean NOT NULL DEFAULT false          -- by a newer connection
);
CREATE INDEX IF NOT EXISTS mqtt_client_node ON mqtt_client (node);

-- Take the lock under which client ids are changed, because locks of single rows could deadlock.
CREATE OR REPLACE FUNCTION lock_clients() RETURNS void LANGUAGE sql AS
$$SELECT pg_advisory_xact_lock(hashtextextended(current_schema() || '.clients', 0))$$;

-- Release the client ids of ended connections, and claim others, each once in a call. Return the numbers of the
-- connections whose claims were granted, and of those whose client ids newer connections want.
CREATE OR REPLACE FUNCTION claim_clients(
    p_node text, p_epoch bigint, p_ended bigint[], p_client text[], p_number bigint[]
) RETURNS TABLE (number bigint, granted boolean) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM fence(p_node, p_epoch);
    PERFORM lock_clients();
    DELETE FROM mqtt_client c WHERE c.node = p_node AND c.epoch = p_epoch AND c.number = ANY (p_ended);
    INSERT INTO mqtt_client AS c (client, node, epoch, number)
        SELECT u.client, p_node, p_epoch, u.number FROM unnest(p_client, p_number) u(client, number)
        ON CONFLICT (client) DO UPDATE SET wanted = true
            WHERE NOT c.wanted AND (c.node, c.epoch, c.number) <> (EXCLUDED.node, EXCLUDED.epoch, EXCLUDED.number);
    RETURN QUERY SELECT c.number, c.number = ANY (p_number) FROM mqtt_client c
        WHERE c.node = p_node AND c.epoch = p_epoch AND (c.wanted OR c.number = ANY (p_number));
END $$;

-- Retained messages: the last one of each key of a vhost. The row of a deleted or expired message stays for an hour, so
-- that other nodes notice the deletion.

CREATE TABLE IF NOT EXISTS retained (
    vhost       bytea,
    key         bytea,
    version     bigint NOT NULL,                    -- of the call that wrote it
    header      bytea,
    body        bytea,                              -- null if deleted
    size        bigint NOT NULL,
    written_ms  bigint NOT NULL,
    expires_ms  bigint,
    PRIMARY KEY (vhost, key)
) WITH (fillfactor = 70);
CREATE INDEX IF NOT EXISTS retained_version ON retained (vhost, version, key);
CREATE INDEX IF NOT EXISTS retained_expires ON retained (vhost, expires_ms) WHERE expires_ms IS NOT NULL;
CREATE INDEX IF NOT EXISTS retained_deleted ON retained (vhost, written_ms) WHERE body IS NULL;

CREATE TABLE IF NOT EXISTS retained_count (         -- each call locks its row, so that versions ascend with commits
    vhost    bytea PRIMARY KEY,
    version  bigint NOT NULL DEFAULT 0,
    count    bigint NOT NULL DEFAULT 0,
    bytes    bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 20);

-- Retain messages in order; an empty one deletes that of its key. Return the places of the messages for which there is
-- no room, with the number and size of the retained ones.
CREATE OR REPLACE FUNCTION retain(
    p_node text, p_epoch bigint, p_vhost bytea, p_key bytea[], p_header bytea[], p_body bytea[], p_written_ms bigint[],
    p_expires_ms bigint[], p_max bigint, p_max_bytes bigint
) RETURNS TABLE (place int, count bigint, bytes bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now_ms bigint := now_ms();
    v_count retained_count;
    v_old retained;
    v_size bigint;
BEGIN
    PERFORM fence(p_node, p_epoch);
    INSERT INTO retained_count (vhost) VALUES (p_vhost) ON CONFLICT DO NOTHING;
    UPDATE retained_count c SET version = c.version + 1 WHERE c.vhost = p_vhost RETURNING * INTO v_count;
    FOR v_old IN SELECT * FROM retained r WHERE r.vhost = p_vhost AND r.expires_ms <= v_now_ms LIMIT 1000 LOOP
        v_count := drop_retained(v_count, v_old, v_now_ms);
    END LOOP;
    FOR v_place IN 1..cardinality(p_key) LOOP
        SELECT * INTO v_old FROM retained r WHERE r.vhost = p_vhost AND r.key = p_key[v_place];
        IF p_body[v_place] = '' THEN
            IF v_old.body IS NOT NULL THEN
                v_count := drop_retained(v_count, v_old, v_now_ms);
            END IF;
            CONTINUE;
        END IF;
        v_size := octet_length(p_key[v_place]) + octet_length(p_header[v_place]) + octet_length(p_body[v_place]);
        IF v_old.body IS NOT NULL THEN
            v_count.count := v_count.count - 1;
            v_count.bytes := v_count.bytes - v_old.size;
        END IF;
        IF v_count.count >= p_max OR v_count.bytes + v_size > p_max_bytes THEN
            IF v_old.body IS NOT NULL THEN
                v_count.count := v_count.count + 1;
                v_count.bytes := v_count.bytes + v_old.size;
            END IF;
            RETURN QUERY SELECT v_place, v_count.count, v_count.bytes;
            CONTINUE;
        END IF;
        INSERT INTO retained (vhost, key, version, header, body, size, written_ms, expires_ms)
            VALUES (p_vhost, p_key[v_place], v_count.version, p_header[v_place], p_body[v_place], v_size,
                p_written_ms[v_place], p_expires_ms[v_place])
            ON CONFLICT (vhost, key) DO UPDATE SET version = EXCLUDED.version, header = EXCLUDED.header,
                body = EXCLUDED.body, size = EXCLUDED.size, written_ms = EXCLUDED.written_ms,
                expires_ms = EXCLUDED.expires_ms;
        v_count.count := v_count.count + 1;
        v_count.bytes := v_count.bytes + v_size;
    END LOOP;
    UPDATE retained_count c SET count = v_count.count, bytes = v_count.bytes WHERE c.vhost = p_vhost;
    DELETE FROM retained r WHERE r.vhost = p_vhost AND r.body IS NULL AND r.written_ms < v_now_ms - 3600000;
END $$;

-- Delete a retained message, and return the new counts.
CREATE OR REPLACE FUNCTION drop_retained(p_count retained_count, p_old retained, p_now_ms bigint) RETURNS retained_count
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE retained r SET version = p_count.version, header = NULL, body = NULL, size = 0, written_ms = p_now_ms,
        expires_ms = NULL WHERE r.vhost = p_old.vhost AND r.key = p_old.key;
    p_count.count := p_count.count - 1;
    p_count.bytes := p_count.bytes - p_old.size;
    RETURN p_count;
END $$;

-- Return the keys that were retained or deleted after a version and key, in order.
CREATE OR REPLACE FUNCTION retained_since(p_vhost bytea, p_version bigint, p_key bytea, p_rows int)
RETURNS TABLE (version bigint, key bytea, deleted boolean) LANGUAGE sql STABLE AS $$
    SELECT r.version, r.key, r.body IS NULL FROM retained r
        WHERE r.vhost = p_vhost AND (r.version, r.key) > (p_version, p_key) ORDER BY r.version, r.key LIMIT p_rows
$$;

-- Return the retained messages of keys.
CREATE OR REPLACE FUNCTION retained_of(p_vhost bytea, p_key bytea[])
RETURNS TABLE (key bytea, header bytea, body bytea, written_ms bigint) LANGUAGE sql STABLE AS $$
    SELECT r.key, r.header, r.body, r.written_ms FROM retained r
        WHERE r.vhost = p_vhost AND r.key = ANY (p_key) AND r.body IS NOT NULL
$$;
