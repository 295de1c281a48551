-- The history of the schema: a restored backup begins another one.

ALTER TABLE cluster ADD COLUMN IF NOT EXISTS history uuid NOT NULL DEFAULT gen_random_uuid();
