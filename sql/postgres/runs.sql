-- name: lock_parent
-- The fence for a sub-agent. Whoever ends the run waits until the sub-agent is in, and then ends it too.
SELECT id FROM gb_agent_research_runs WHERE id = :id AND status = 'running' AND owner = :owner FOR UPDATE;

-- name: lock_parent_now
-- The same for whoever asks what was started: it fails at once, and holds no connection, while a start is under way.
SELECT id FROM gb_agent_research_runs WHERE id = :id AND status = 'running' AND owner = :owner FOR UPDATE NOWAIT;

-- name: save_progress_and_states
-- The fence: only the owner writes, and only while the run is at work. No row means stop. The states are entered once and
-- ended once, as in save_state. A save whose client gave it up may still be done, after newer ones: then figures do not
-- go down, and the state stays that of the newest row.
WITH run AS (
    SELECT id FROM gb_agent_research_runs WHERE id = :id AND status = 'running' AND owner = :owner FOR UPDATE
),
figures AS (
    UPDATE gb_agent_research_runs AS stored
    SET steps = :steps, tool_calls = :tool_calls, input_tokens = :input_tokens, output_tokens = :output_tokens,
        cost_usd = :cost_usd,
        state = CASE
            WHEN EXISTS (SELECT FROM gb_agent_research_states WHERE run_id = :id AND seq > :newest) THEN stored.state
            ELSE COALESCE(CAST(:state AS TEXT), stored.state)
        END
    FROM run
    WHERE stored.id = run.id AND stored.steps <= :steps AND stored.tool_calls <= :tool_calls
        AND stored.input_tokens <= :input_tokens AND stored.output_tokens <= :output_tokens
),
saved AS (
    INSERT INTO gb_agent_research_states (run_id, seq, step, state, detail, error, started_at, finished_at)
    SELECT run.id, given.seq, given.step, given.state, given.detail, given.error, given.started_at, given.finished_at
    FROM run, jsonb_to_recordset(CAST(:states AS JSONB)) AS given (
        seq INTEGER, step INTEGER, state TEXT, detail TEXT, error TEXT, started_at TIMESTAMPTZ, finished_at TIMESTAMPTZ
    )
    ON CONFLICT (run_id, seq) DO UPDATE SET error = excluded.error, finished_at = excluded.finished_at
    WHERE gb_agent_research_states.finished_at IS NULL
)
SELECT id FROM run;

-- name: get_run_with_states
-- A run of its user and its states in the order entered, as JSON. One statement sees one moment.
SELECT id, user_id, parent_id, name, reason, topic, status, state, model, max_steps, steps, tool_calls,
    input_tokens, output_tokens, cost_usd, report, error, stop_reason, created_at, finished_at,
    (
        SELECT CAST(COALESCE(json_agg(json_build_object(
            'seq', seq, 'state', state, 'step', step, 'detail', detail, 'error', error,
            'started_at', to_char(started_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
            'finished_at', to_char(finished_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
        ) ORDER BY seq), '[]') AS TEXT)
        FROM gb_agent_research_states
        WHERE run_id = :id AND seq > :after
    ) AS states
FROM gb_agent_research_runs
WHERE id = :id AND user_id = :user_id;
