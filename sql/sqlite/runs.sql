-- name: save_progress
-- The fence: only the owner writes, and only while the run is at work. No row means stop.
UPDATE gb_agent_research_runs
SET state = COALESCE(CAST(:state AS TEXT), state), steps = :steps, tool_calls = :tool_calls,
    input_tokens = :input_tokens, output_tokens = :output_tokens, cost_usd = :cost_usd
WHERE id = :id AND status = 'running' AND owner = :owner;

-- name: get_run_with_states
-- A run of its user and its states in the order entered, as JSON. One statement sees one moment.
SELECT id, user_id, parent_id, name, reason, topic, status, state, model, max_steps, steps, tool_calls,
    input_tokens, output_tokens, cost_usd, report, error, stop_reason, created_at, finished_at,
    (
        SELECT json_group_array(json_object(
            'seq', seq, 'state', state, 'step', step, 'detail', detail, 'error', error, 'started_at', started_at,
            'finished_at', finished_at
        ))
        FROM (
            SELECT * FROM gb_agent_research_states WHERE run_id = :id AND seq > :after ORDER BY seq
        )
    ) AS states
FROM gb_agent_research_runs
WHERE id = :id AND user_id = :user_id;
