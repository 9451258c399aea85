-- name: lock_running
-- Locks the runs of a dead node (null: of all nodes), always in the same order. A write of an agent that is still under
-- way is waited for, and what follows sees it.
SELECT id
FROM gb_agent_research_runs
WHERE status = 'running' AND (CAST(:owner AS TEXT) IS NULL OR owner = :owner)
ORDER BY id
FOR UPDATE;
