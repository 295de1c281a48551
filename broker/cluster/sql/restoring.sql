-- The history of the schema: restoring a backup begins a new one.

ALTER TABLE cluster ADD COLUMN IF NOT EXISTS history uuid NOT NULL DEFAULT gen_random_uuid();
