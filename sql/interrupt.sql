-- name: lock_running
-- The runs of a dead node (null: of all nodes). Without an order, for which SQLite would read the whole table.
SELECT id
FROM gb_agent_research_runs
WHERE status = 'running' AND (CAST(:owner AS TEXT) IS NULL OR owner = :owner);

-- name: mark_interrupted
-- From here until end_interrupted, a run at work that has an end is one that this transaction is ending.
UPDATE gb_agent_research_runs
SET finished_at = :at
WHERE status = 'running' AND (CAST(:owner AS TEXT) IS NULL OR owner = :owner);

-- name: lock_subtree
-- A run and its sub-agents of all generations, as far as they are at work.
WITH RECURSIVE below (id) AS (
    SELECT id FROM gb_agent_research_runs WHERE id = :run_id
    UNION ALL
    SELECT run.id FROM below JOIN gb_agent_research_runs AS run ON run.parent_id = below.id
)
SELECT id
FROM gb_agent_research_runs
WHERE status = 'running' AND owner = :owner AND id IN (SELECT id FROM below);

-- name: mark_subtree
-- The same mark for a run and its sub-agents.
WITH RECURSIVE below (id) AS (
    SELECT id FROM gb_agent_research_runs WHERE id = :run_id
    UNION ALL
    SELECT run.id FROM below JOIN gb_agent_research_runs AS run ON run.parent_id = below.id
)
UPDATE gb_agent_research_runs
SET finished_at = :at
WHERE status = 'running' AND owner = :owner AND id IN (SELECT id FROM below);

-- name: align_interrupted
-- One end for a whole tree of agents, so that no parent ends before its children; and not before anything that one of
-- the tree has done, also when the clock was set back since.
WITH RECURSIVE climb (id, top, above) AS (
    SELECT id, id, parent_id
    FROM gb_agent_research_runs
    WHERE status = 'running' AND finished_at IS NOT NULL
    UNION ALL
    SELECT climb.id, run.id, run.parent_id
    FROM climb JOIN gb_agent_research_runs AS run ON run.id = climb.above
),
tree (root, id) AS (
    SELECT DISTINCT top, top FROM climb WHERE above IS NULL
    UNION ALL
    SELECT tree.root, run.id
    FROM tree JOIN gb_agent_research_runs AS run ON run.parent_id = tree.id
),
moment (root, at) AS (
    SELECT tree.root, run.created_at FROM tree JOIN gb_agent_research_runs AS run ON run.id = tree.id
    UNION ALL
    SELECT tree.root, run.finished_at FROM tree JOIN gb_agent_research_runs AS run ON run.id = tree.id
    UNION ALL
    SELECT tree.root, state.started_at FROM tree JOIN gb_agent_research_states AS state ON state.run_id = tree.id
    UNION ALL
    SELECT tree.root, state.finished_at FROM tree JOIN gb_agent_research_states AS state ON state.run_id = tree.id
),
ending (root, at) AS (
    SELECT root, MAX(at) FROM moment GROUP BY root
)
UPDATE gb_agent_research_runs
SET finished_at = ending.at
FROM climb JOIN ending ON ending.root = climb.top
WHERE climb.above IS NULL AND gb_agent_research_runs.id = climb.id;

-- name: end_interrupted_states
-- The states that the agents were in carry the error too.
UPDATE gb_agent_research_states
SET error = :error, finished_at = run.finished_at
FROM gb_agent_research_runs AS run
WHERE run.status = 'running' AND run.finished_at IS NOT NULL
    AND gb_agent_research_states.run_id = run.id AND gb_agent_research_states.finished_at IS NULL;

-- name: insert_interrupted_states
-- The terminal state of each.
INSERT INTO gb_agent_research_states (run_id, seq, step, state, detail, error, started_at, finished_at)
SELECT
    id, (SELECT COALESCE(MAX(seq), 0) + 1 FROM gb_agent_research_states WHERE run_id = id),
    0, 'failed', '', :error, finished_at, finished_at
FROM gb_agent_research_runs
WHERE status = 'running' AND finished_at IS NOT NULL;

-- name: end_interrupted
-- Last, because the status is what the queries before look for.
UPDATE gb_agent_research_runs
SET status = 'failed', state = 'failed', error = :error, stop_reason = :stop_reason
WHERE status = 'running' AND finished_at IS NOT NULL;
