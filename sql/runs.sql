-- fragment: run_columns
-- What a run is read as: the fields of records.Run, in any order.
id, user_id, parent_id, name, reason, topic, status, state, model, max_steps, steps, tool_calls, input_tokens,
    output_tokens, cost_usd, report, error, stop_reason, created_at, finished_at

-- fragment: figures
-- What a run has used so far.
steps = :steps, tool_calls = :tool_calls, input_tokens = :input_tokens, output_tokens = :output_tokens,
    cost_usd = :cost_usd

-- fragment: fence
-- Only the owner of a run writes to it, and only while it is at work. No row means that the agent must stop.
id = :id AND status = 'running' AND owner = :owner

-- fragment: state_columns
-- All columns of a state, to insert it.
run_id, seq, step, state, detail, error, started_at, finished_at

-- fragment: end_once
-- A state is entered once and ended once. Saving it again changes nothing, so after a failure it is safe to save it again.
ON CONFLICT (run_id, seq) DO UPDATE SET error = excluded.error, finished_at = excluded.finished_at
    WHERE gb_agent_research_states.finished_at IS NULL

-- name: count_working
-- How many researches of a user are at work. Sub-agents do not count.
SELECT COUNT(*) AS working
FROM gb_agent_research_runs
WHERE user_id = :user_id AND status = 'running' AND parent_id IS NULL;

-- name: insert_run
-- A run starts at work, with nothing used yet. A cost that cannot be known is null from the start.
INSERT INTO gb_agent_research_runs (
    user_id, parent_id, name, reason, topic, status, state, model, max_steps, steps, tool_calls, input_tokens,
    output_tokens, cost_usd, report, error, stop_reason, owner, created_at, finished_at
)
VALUES (
    :user_id, :parent_id, :name, :reason, :topic, 'running', 'starting', :model, :max_steps, 0, 0, 0,
    0, :cost_usd, '', '', NULL, :owner, :created_at, NULL
)
RETURNING {run_columns};

-- name: lock_parent
-- The fence for a sub-agent: it cannot be added to a run that has ended or is another node's. SQLite has the lock already.
SELECT id FROM gb_agent_research_runs WHERE {fence};

-- name: lock_parent_now
-- The same. Postgres has its own, which does not wait for the lock.
SELECT id FROM gb_agent_research_runs WHERE {fence};

-- name: save_state
-- One state, entered or ended.
INSERT INTO gb_agent_research_states ({state_columns})
VALUES (:run_id, :seq, :step, :state, :detail, :error, :started_at, :finished_at)
{end_once};

-- name: end_run
-- The fence again. After this no query changes the run. Returns its user for the announcement of the end.
UPDATE gb_agent_research_runs
SET status = :status, state = :state, {figures}, report = :report, error = :error,
    stop_reason = :stop_reason, finished_at = :finished_at
WHERE {fence}
RETURNING user_id;

-- name: get_run
-- One run, if it is this user's.
SELECT {run_columns}
FROM gb_agent_research_runs
WHERE id = :id AND user_id = :user_id;

-- name: get_run_with_states
-- A run, if it is this user's, and its states as JSON in the order entered. One statement sees one moment.
SELECT {run_columns}, ({states_as_json}) AS states
FROM gb_agent_research_runs
WHERE id = :id AND user_id = :user_id;

-- name: list_runs
-- The runs of a user, newest first. Each filter has its own query, so that each walks along an index.
SELECT {run_columns}
FROM gb_agent_research_runs
WHERE user_id = :user_id AND id < :before
ORDER BY id DESC
LIMIT :limit;

-- name: list_runs_by_status
-- The runs of a user with one status.
SELECT {run_columns}
FROM gb_agent_research_runs
WHERE user_id = :user_id AND status = :status AND id < :before
ORDER BY id DESC
LIMIT :limit;

-- name: list_children
-- The sub-agents of a run, newest first. Without the ||, Postgres reads all runs of the user to find those with that
-- parent, as soon as it uses a plan made without looking at the values.
SELECT {run_columns}
FROM gb_agent_research_runs
WHERE parent_id = :parent_id AND user_id || '' = :user_id AND id < :before
ORDER BY id DESC
LIMIT :limit;

-- name: list_children_by_status
-- The sub-agents of a run with one status. The || as in list_children.
SELECT {run_columns}
FROM gb_agent_research_runs
WHERE parent_id = :parent_id AND user_id || '' = :user_id AND status = :status AND id < :before
ORDER BY id DESC
LIMIT :limit;

-- name: list_started
-- The sub-agents of a run in the order they were started, of any user.
SELECT {run_columns}
FROM gb_agent_research_runs
WHERE parent_id = :parent_id
ORDER BY id;

-- name: list_running
-- The runs that a node has at work, oldest first. Without the plus, SQLite reads the whole table to get that order.
SELECT {run_columns}
FROM gb_agent_research_runs
WHERE status = 'running' AND owner = :owner
ORDER BY +id;
