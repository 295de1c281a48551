-- The tables of the cluster. Each statement may be repeated: schema.py runs all files of this folder at each upgrade.

CREATE TABLE IF NOT EXISTS cluster (                -- one row, read by most calls and rarely written
    one                boolean PRIMARY KEY DEFAULT true CHECK (one),
    schema_version     int     NOT NULL,
    function_version   int     NOT NULL,
    digest             text    NOT NULL,            -- of the installed files
    system_identifier  bigint  NOT NULL,
    timeline           int     NOT NULL,
    generation         bigint  NOT NULL DEFAULT 1,  -- incremented when the database has gone back in time
    ring               int     NOT NULL DEFAULT 0   -- new chunks go into chunk_<ring>
);

CREATE SEQUENCE IF NOT EXISTS number_of_call;       -- of a call, its chunk and its slots; and of an epoch

CREATE TABLE IF NOT EXISTS member (                 -- the fence: written only by join, count_out and leave
    node   text COLLATE "C" PRIMARY KEY,
    epoch  bigint NOT NULL
);

CREATE TABLE IF NOT EXISTS beat (                   -- written twice a second, never locked by a call
    node     text COLLATE "C" PRIMARY KEY,
    epoch    bigint NOT NULL,
    beats    bigint NOT NULL DEFAULT 0,
    url      text   NOT NULL,
    version  int    NOT NULL,                       -- of the functions that the node calls
    applied  bigint NOT NULL,                       -- topology version
    reports  jsonb
) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);

CREATE TABLE IF NOT EXISTS batch (                  -- a committed call, and its result
    node         text COLLATE "C",
    epoch        bigint,
    sequence     bigint,
    number       bigint  NOT NULL,
    ring         int     NOT NULL,
    synchronous  boolean NOT NULL,
    refused      jsonb,                             -- messages that full queues refused, as returned by commit
    repeats      int     NOT NULL DEFAULT 0,
    PRIMARY KEY (node, epoch, sequence)
);

CREATE TABLE IF NOT EXISTS slot (                   -- unsettled messages of one call, level and holder
    level       bigint,
    number      bigint,
    holder      text COLLATE "C",                   -- the node to which they are leased; '' if they are free
    epoch       bigint NOT NULL,                    -- of the holder, 0 if free
    generation  bigint NOT NULL,
    ring        int    NOT NULL,                    -- its records are in chunk_<ring>
    count       int    NOT NULL,
    bytes       bigint NOT NULL,                    -- of all `count` messages
    due_at      bigint,                             -- when the keeper must check the row, in ms
    bits        varbit NOT NULL CHECK (length(bits) = count),
    seen        varbit,                             -- bits that may have been delivered before
    counts      jsonb,                              -- {"index": [all returns, returns for the delivery limit]}
    sizes       bytea,                              -- of each body as int4, if the level has a limit in bytes
    PRIMARY KEY (level, holder, number)             -- the free rows of a level are adjacent
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0.01,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX IF NOT EXISTS slot_held ON slot (holder) WHERE holder <> '';
CREATE INDEX IF NOT EXISTS slot_ring ON slot (ring);
CREATE INDEX IF NOT EXISTS slot_due ON slot (due_at) WHERE due_at IS NOT NULL AND holder = '';

CREATE TABLE IF NOT EXISTS level (                  -- only levels with limits or a single active consumer
    level          bigint PRIMARY KEY,
    vhost          text    NOT NULL,                -- in JSON
    counter        bigint  NOT NULL,                -- the level whose row has the counts of the whole queue
    max_length     bigint,
    max_bytes      bigint,
    overflow       text,
    single_active  boolean NOT NULL DEFAULT false,
    ready          bigint  NOT NULL DEFAULT 0,      -- free messages, counted if there are limits
    bytes          bigint  NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

CREATE TABLE IF NOT EXISTS ring (                   -- the chunk tables
    ring   int PRIMARY KEY,
    used   boolean NOT NULL                         -- false if it is empty and may become the current one
);

CREATE OR REPLACE FUNCTION add_ring_table() RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    v_ring int;
BEGIN
    SELECT coalesce(max(r.ring) + 1, 0) INTO v_ring FROM ring r;
    EXECUTE format(
        'CREATE TABLE chunk_%s (number bigint, part int, bytes bytea NOT NULL, PRIMARY KEY (number, part))', v_ring
    );
    EXECUTE format('ALTER TABLE chunk_%s ALTER bytes SET STORAGE EXTERNAL', v_ring);
    INSERT INTO ring (ring, used) VALUES (v_ring, v_ring = 0);
    RETURN v_ring;
END $$;

CREATE TABLE IF NOT EXISTS consumer (
    level      bigint,
    node       text COLLATE "C",
    epoch      bigint  NOT NULL,
    count      int     NOT NULL,
    exclusive  boolean NOT NULL DEFAULT false,
    active     boolean NOT NULL DEFAULT false,      -- the node with the single active consumer, which alone may lease
    since      bigint  NOT NULL,                    -- order of arrival
    PRIMARY KEY (level, node)
);
CREATE INDEX IF NOT EXISTS consumer_node ON consumer (node);
CREATE SEQUENCE IF NOT EXISTS arrival_of_consumer;

CREATE TABLE IF NOT EXISTS producer (
    producer  text PRIMARY KEY,                     -- vhost and name, in JSON
    node      text COLLATE "C",                     -- that has claimed it; null for none
    epoch     bigint
);

CREATE TABLE IF NOT EXISTS producer_run (           -- ranges of used numbers, which the next claim merges
    producer  text,
    first     bigint,
    last      bigint NOT NULL
);
CREATE INDEX IF NOT EXISTS producer_run_key ON producer_run (producer, first);

CREATE TABLE IF NOT EXISTS keeper (                 -- the node that expires, drops and dead-letters a level's messages
    level   bigint PRIMARY KEY,
    node    text COLLATE "C" NOT NULL,
    epoch   bigint NOT NULL
);
CREATE INDEX IF NOT EXISTS keeper_node ON keeper (node);

CREATE TABLE IF NOT EXISTS orphan (                 -- levels whose last consumers were on a node that is dead
    level   bigint PRIMARY KEY
);

CREATE OR REPLACE FUNCTION current_timeline() RETURNS int LANGUAGE sql AS
$$SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int$$;

CREATE OR REPLACE FUNCTION finish_install(p_schema int, p_function int, p_digest text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO cluster (schema_version, function_version, digest, system_identifier, timeline)
        SELECT p_schema, p_function, p_digest, s.system_identifier, current_timeline() FROM pg_control_system() s
        ON CONFLICT (one) DO UPDATE
            SET schema_version = p_schema, function_version = p_function, digest = p_digest;
    WHILE (SELECT count(*) FROM ring) < 2 LOOP
        PERFORM add_ring_table();
    END LOOP;
END $$;
