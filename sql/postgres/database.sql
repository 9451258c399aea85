-- name: find_schema_table
-- Was this database ever migrated? Not by to_regclass: its cache may miss a table that another node made while this one
-- waited for lock_schema.
SELECT tablename AS name FROM pg_catalog.pg_tables WHERE schemaname = current_schema() AND tablename = 'gb_schema';

-- name: lock_schema
-- Two nodes that start at once migrate one after the other. The second may wait long, so it has no time limit.
SELECT set_config('lock_timeout', '0', true), pg_advisory_xact_lock(724061, 0);

-- name: lock_start
-- Each start holds this lock until it is committed or rolled back: list_starts shows it, and lock_starts waits for it.
SELECT pg_advisory_xact_lock_shared(724063, hashtext(:owner));

-- name: lock_start_of_user
-- The same, and a lock on the user: two starts must not count what the user has at work and add to it at once.
SELECT pg_advisory_xact_lock_shared(724063, hashtext(:owner)), pg_advisory_xact_lock(724062, hashtext(:user_id));

-- name: list_starts
-- The starts of that owner that are under way. One whose client is gone may still be committed, much later. This only
-- reads: all later starts would queue behind a lock that waits.
SELECT virtualtransaction AS start FROM pg_locks
WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND classid = 724063 AND objid = CAST(hashtext(:owner) AS oid);

-- name: lock_starts
-- Waits until no start of that owner is under way.
SELECT set_config('lock_timeout', '60s', true), pg_advisory_xact_lock(724063, hashtext(:owner));
