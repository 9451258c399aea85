-- name: ping
-- Does the database answer?
SELECT 1 AS answer;

-- name: schema_version
-- The newest migration that was applied.
SELECT COALESCE(MAX(version), 0) AS version FROM gb_schema;

-- name: insert_schema_version
-- Notes that a migration was applied, in the same transaction.
INSERT INTO gb_schema (version, applied_at) VALUES (:version, :applied_at);
