-- name: ping
-- Does the database answer?
SELECT 1 AS answer;

-- name: schema_version
-- The number of the newest migration that was applied, 0 for none.
SELECT COALESCE(MAX(version), 0) AS version FROM gb_schema;

-- name: insert_schema_version
-- Records a migration, in the transaction that applies it.
INSERT INTO gb_schema (version, applied_at) VALUES (:version, :applied_at);
