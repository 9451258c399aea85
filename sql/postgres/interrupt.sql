-- name: lock_running
-- Locks the runs of a dead node, always in the same order. Waits for a write of an agent that is still under way, so that
-- the next statement sees it.
SELECT id, user_id
FROM gb_agent_research_runs
WHERE {of_owner}
ORDER BY id
FOR UPDATE;

-- name: lock_subtree
-- As lock_running, for a run and its sub-agents.
WITH RECURSIVE {below}
SELECT id, user_id
FROM gb_agent_research_runs
WHERE status = 'running' AND owner = :owner AND id IN (SELECT id FROM below)
ORDER BY id
FOR UPDATE;
