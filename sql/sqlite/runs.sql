-- fragment: states_as_json
-- The states of a run after one of them.
SELECT json_group_array(json_object(
        'seq', seq, 'state', state, 'step', step, 'detail', detail, 'error', error, 'started_at', started_at,
        'finished_at', finished_at
    ))
    FROM (
        SELECT * FROM gb_agent_research_states WHERE run_id = :id AND seq > :after ORDER BY seq
    )

-- name: save_progress
-- The figures and the newest state of a run at work; the states themselves follow, in the same transaction.
UPDATE gb_agent_research_runs
SET state = COALESCE(CAST(:state AS TEXT), state), {figures}
WHERE {fence};
