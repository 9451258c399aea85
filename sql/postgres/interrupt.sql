-- name: lock_running
-- Locks the runs of a dead node (null: of all nodes), always in the same order. A write of an agent that is still under
-- way is waited for, and what follows sees it.
SELECT id
FROM gb_agent_research_runs
WHERE status = 'running' AND (CAST(:owner AS TEXT) IS NULL OR owner = :owner)
ORDER BY id
FOR UPDATE;

-- name: lock_subtree
-- As lock_running, for a run and its sub-agents of all generations.
WITH RECURSIVE below (id) AS (
    SELECT id FROM gb_agent_research_runs WHERE id = :run_id
    UNION ALL
    SELECT run.id FROM below JOIN gb_agent_research_runs AS run ON run.parent_id = below.id
)
SELECT id
FROM gb_agent_research_runs
WHERE status = 'running' AND owner = :owner AND id IN (SELECT id FROM below)
ORDER BY id
FOR UPDATE;
