-- name: find_schema_table
-- Was this database ever migrated?
SELECT name FROM sqlite_master WHERE type = 'table' AND name = 'gb_schema';

-- name: lock_schema
-- Nothing to do: a transaction that writes is alone already.
SELECT 1 AS locked;

-- name: lock_user
-- Nothing to do: a transaction that writes is alone already.
SELECT :user_id AS locked;
