-- Consumers, numbered producers and keepers of streams.

-- Free what a former member claimed.
CREATE OR REPLACE FUNCTION free_claims(p_node text, p_epoch bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM keeper k WHERE k.node = p_node;
    UPDATE producer p SET node = NULL, epoch = NULL WHERE p.node = p_node;
    DELETE FROM consumer c WHERE c.node = p_node;
END $$;
