-- fragment: of_owner
-- At work at that node; null: at any node.
status = 'running' AND (CAST(:owner AS TEXT) IS NULL OR owner = :owner)

-- fragment: below
-- A run and its sub-agents of all generations.
below (id) AS (
    SELECT id FROM gb_agent_research_runs WHERE id = :run_id
    UNION ALL
    SELECT run.id FROM below JOIN gb_agent_research_runs AS run ON run.parent_id = below.id
)

-- fragment: marked
-- Being ended by this transaction: see mark_interrupted.
status = 'running' AND finished_at IS NOT NULL

-- name: lock_running
-- The runs of a dead node. Without an order, for which SQLite would read the whole table.
SELECT id, user_id
FROM gb_agent_research_runs
WHERE {of_owner};

-- name: mark_interrupted
-- From here until end_interrupted, a run that is at work and has an end is one that this transaction is ending.
UPDATE gb_agent_research_runs
SET finished_at = :at
WHERE {of_owner};

-- name: lock_subtree
-- Those of a run and its sub-agents that are at work.
WITH RECURSIVE {below}
SELECT id, user_id
FROM gb_agent_research_runs
WHERE status = 'running' AND owner = :owner AND id IN (SELECT id FROM below);

-- name: mark_subtree
-- As mark_interrupted, for a run and its sub-agents.
WITH RECURSIVE {below}
UPDATE gb_agent_research_runs
SET finished_at = :at
WHERE status = 'running' AND owner = :owner AND id IN (SELECT id FROM below);

-- name: align_interrupted
-- One end for a whole tree of agents, so that no parent ends before its children. It is not before anything that an
-- agent of the tree has done, even if the clock was set back since.
WITH RECURSIVE climb (id, top, above) AS (
    SELECT id, id, parent_id
    FROM gb_agent_research_runs
    WHERE {marked}
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
-- The states that the agents were in get the error too.
UPDATE gb_agent_research_states
SET error = :error, finished_at = run.finished_at
FROM gb_agent_research_runs AS run
WHERE run.status = 'running' AND run.finished_at IS NOT NULL
    AND gb_agent_research_states.run_id = run.id AND gb_agent_research_states.finished_at IS NULL;

-- name: insert_interrupted_states
-- The terminal state of each run.
INSERT INTO gb_agent_research_states ({state_columns})
SELECT
    id, (SELECT COALESCE(MAX(seq), 0) + 1 FROM gb_agent_research_states WHERE run_id = id),
    0, 'failed', '', :error, finished_at, finished_at
FROM gb_agent_research_runs
WHERE {marked};

-- name: end_interrupted
-- Last, because the queries before look for the status.
UPDATE gb_agent_research_runs
SET status = 'failed', state = 'failed', error = :error, stop_reason = :stop_reason
WHERE {marked};
