-- name: lock_parent
-- The fence for a sub-agent. Whoever ends the run waits until the sub-agent is in, and then ends it too.
SELECT id FROM gb_agent_research_runs WHERE id = :id AND status = 'running' AND owner = :owner FOR UPDATE;
