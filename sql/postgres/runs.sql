-- fragment: states_as_json
-- The states of a run after one of them.
SELECT CAST(COALESCE(json_agg(json_build_object(
        'seq', seq, 'state', state, 'step', step, 'detail', detail, 'error', error,
        'started_at', to_char(started_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
        'finished_at', to_char(finished_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
    ) ORDER BY seq), '[]') AS TEXT)
    FROM gb_agent_research_states
    WHERE run_id = :id AND seq > :after

-- name: lock_parent
-- The fence for a sub-agent. An end of the run waits until the sub-agent is in, and then ends it too.
SELECT id FROM gb_agent_research_runs WHERE {fence} FOR UPDATE;

-- name: lock_parent_now
-- The same to ask what was started: while a start is under way it fails at once, instead of holding a connection.
SELECT id FROM gb_agent_research_runs WHERE {fence} FOR UPDATE NOWAIT;

-- name: save_progress_and_states
-- Progress in one statement. A save that its client gave up may still be carried out, after newer ones: so figures never
-- go down, and the run keeps the state of the newest row.
WITH run AS (
    SELECT id FROM gb_agent_research_runs WHERE {fence} FOR UPDATE
),
figures AS (
    UPDATE gb_agent_research_runs AS stored
    SET {figures},
        state = CASE
            WHEN EXISTS (SELECT FROM gb_agent_research_states WHERE run_id = :id AND seq > :newest) THEN stored.state
            ELSE COALESCE(CAST(:state AS TEXT), stored.state)
        END
    FROM run
    WHERE stored.id = run.id AND stored.steps <= :steps AND stored.tool_calls <= :tool_calls
        AND stored.input_tokens <= :input_tokens AND stored.output_tokens <= :output_tokens
),
saved AS (
    INSERT INTO gb_agent_research_states ({state_columns})
    SELECT run.id, given.seq, given.step, given.state, given.detail, given.error, given.started_at, given.finished_at
    FROM run, jsonb_to_recordset(CAST(:states AS JSONB)) AS given (
        seq INTEGER, step INTEGER, state TEXT, detail TEXT, error TEXT, started_at TIMESTAMPTZ, finished_at TIMESTAMPTZ
    )
    {end_once}
)
SELECT id FROM run;
