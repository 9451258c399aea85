-- name: find_schema_table
-- Was this database ever migrated?
SELECT name FROM sqlite_master WHERE type = 'table' AND name = 'gb_schema';

-- name: lock_schema
-- Nothing to do: a transaction that writes is alone already.
SELECT 1 AS locked;

-- name: lock_start
-- Nothing to do: a transaction that writes is alone already.
SELECT :owner AS locked;

-- name: lock_start_of_user
-- Nothing to do: a transaction that writes is alone already.
SELECT :owner AS locked, :user_id AS user_id;

-- name: lock_starts
-- Nothing to do: a start is over before another transaction begins.
SELECT :owner AS locked;

-- name: list_starts
-- None: a start is over before a later query reads.
SELECT :owner AS start WHERE 0;
