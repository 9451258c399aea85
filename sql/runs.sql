-- name: count_working
-- The researches a user has at work. Sub-agents do not count.
SELECT COUNT(*) AS working
FROM gb_agent_research_runs
WHERE user_id = :user_id AND status = 'running' AND parent_id IS NULL;

-- name: insert_run
-- A run begins at work, with nothing used yet. A cost that cannot be known is null from the start.
INSERT INTO gb_agent_research_runs (
    user_id, parent_id, name, reason, topic, status, state, model, max_steps, steps, tool_calls, input_tokens,
    output_tokens, cost_usd, report, error, stop_reason, owner, created_at, finished_at
)
VALUES (
    :user_id, :parent_id, :name, :reason, :topic, 'running', 'starting', :model, :max_steps, 0, 0, 0,
    0, :cost_usd, '', '', NULL, :owner, :created_at, NULL
)
RETURNING id, user_id, parent_id, name, reason, topic, status, state, model, max_steps, steps, tool_calls,
    input_tokens, output_tokens, cost_usd, report, error, stop_reason, created_at, finished_at;

-- name: lock_parent
-- The fence for a sub-agent: none is added to a run that has ended, or is another node's. SQLite has the lock already.
SELECT id FROM gb_agent_research_runs WHERE id = :id AND status = 'running' AND owner = :owner;

-- name: lock_parent_now
-- The same, where Postgres must not wait for the lock.
SELECT id FROM gb_agent_research_runs WHERE id = :id AND status = 'running' AND owner = :owner;

-- name: save_state
-- A state is entered once and ended once. Sent again it changes nothing, so whoever doubts that it arrived sends it again.
INSERT INTO gb_agent_research_states (run_id, seq, step, state, detail, error, started_at, finished_at)
VALUES (:run_id, :seq, :step, :state, :detail, :error, :started_at, :finished_at)
ON CONFLICT (run_id, seq) DO UPDATE SET error = excluded.error, finished_at = excluded.finished_at
WHERE gb_agent_research_states.finished_at IS NULL;

-- name: end_run
-- The fence again. After this no query touches the run.
UPDATE gb_agent_research_runs
SET status = :status, state = :state, steps = :steps, tool_calls = :tool_calls, input_tokens = :input_tokens,
    output_tokens = :output_tokens, cost_usd = :cost_usd, report = :report, error = :error,
    stop_reason = :stop_reason, finished_at = :finished_at
WHERE id = :id AND status = 'running' AND owner = :owner;

-- name: get_run
-- One run, of its user only.
SELECT id, user_id, parent_id, name, reason, topic, status, state, model, max_steps, steps, tool_calls,
    input_tokens, output_tokens, cost_usd, report, error, stop_reason, created_at, finished_at
FROM gb_agent_research_runs
WHERE id = :id AND user_id = :user_id;

-- name: list_runs
-- The runs of a user, newest first. Each filter has a query of its own, so that each walks along an index.
SELECT id, user_id, parent_id, name, reason, topic, status, state, model, max_steps, steps, tool_calls,
    input_tokens, output_tokens, cost_usd, report, error, stop_reason, created_at, finished_at
FROM gb_agent_research_runs
WHERE user_id = :user_id AND id < :before
ORDER BY id DESC
LIMIT :limit;

-- name: list_runs_by_status
-- The runs of a user that have one status.
SELECT id, user_id, parent_id, name, reason, topic, status, state, model, max_steps, steps, tool_calls,
    input_tokens, output_tokens, cost_usd, report, error, stop_reason, created_at, finished_at
FROM gb_agent_research_runs
WHERE user_id = :user_id AND status = :status AND id < :before
ORDER BY id DESC
LIMIT :limit;

-- name: list_children
-- The sub-agents that a run spawned. The || keeps Postgres, once it plans without looking at the values, from reading all
-- runs of the user to see which of them have that parent.
SELECT id, user_id, parent_id, name, reason, topic, status, state, model, max_steps, steps, tool_calls,
    input_tokens, output_tokens, cost_usd, report, error, stop_reason, created_at, finished_at
FROM gb_agent_research_runs
WHERE parent_id = :parent_id AND user_id || '' = :user_id AND id < :before
ORDER BY id DESC
LIMIT :limit;

-- name: list_children_by_status
-- The sub-agents that a run spawned and that have one status. The || as above.
SELECT id, user_id, parent_id, name, reason, topic, status, state, model, max_steps, steps, tool_calls,
    input_tokens, output_tokens, cost_usd, report, error, stop_reason, created_at, finished_at
FROM gb_agent_research_runs
WHERE parent_id = :parent_id AND user_id || '' = :user_id AND status = :status AND id < :before
ORDER BY id DESC
LIMIT :limit;

-- name: list_started
-- The sub-agents of a run in the order they were started, whoever's they are.
SELECT id, user_id, parent_id, name, reason, topic, status, state, model, max_steps, steps, tool_calls,
    input_tokens, output_tokens, cost_usd, report, error, stop_reason, created_at, finished_at
FROM gb_agent_research_runs
WHERE parent_id = :parent_id
ORDER BY id;

-- name: list_running
-- The runs that a node has at work, oldest first. The plus keeps SQLite from reading the whole table for the order.
SELECT id, user_id, parent_id, name, reason, topic, status, state, model, max_steps, steps, tool_calls,
    input_tokens, output_tokens, cost_usd, report, error, stop_reason, created_at, finished_at
FROM gb_agent_research_runs
WHERE status = 'running' AND owner = :owner
ORDER BY +id;
