CREATE TABLE gb_schema (
    version INTEGER PRIMARY KEY,
    applied_at TIMESTAMPTZ(3) NOT NULL
);

CREATE TABLE gb_agent_research_runs (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    user_id TEXT NOT NULL,
    parent_id BIGINT REFERENCES gb_agent_research_runs (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    reason TEXT NOT NULL,
    topic TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('running', 'completed', 'failed')),
    state TEXT NOT NULL,
    model TEXT NOT NULL,
    max_steps INTEGER NOT NULL,
    steps INTEGER NOT NULL,
    tool_calls INTEGER NOT NULL,
    input_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    cost_usd DOUBLE PRECISION,
    report TEXT NOT NULL,
    error TEXT NOT NULL,
    stop_reason TEXT,
    owner TEXT NOT NULL,
    created_at TIMESTAMPTZ(3) NOT NULL,
    finished_at TIMESTAMPTZ(3),
    CHECK (status = 'running' OR (finished_at IS NOT NULL AND stop_reason IS NOT NULL))
);

CREATE INDEX gb_agent_research_runs_user ON gb_agent_research_runs (user_id, id DESC);
CREATE INDEX gb_agent_research_runs_status ON gb_agent_research_runs (user_id, status, id DESC);
CREATE INDEX gb_agent_research_runs_running ON gb_agent_research_runs (user_id, id DESC) WHERE status = 'running';
CREATE INDEX gb_agent_research_runs_parent ON gb_agent_research_runs (parent_id, id) WHERE parent_id IS NOT NULL;
CREATE UNIQUE INDEX gb_agent_research_runs_name ON gb_agent_research_runs (parent_id, name) WHERE parent_id IS NOT NULL;

CREATE TABLE gb_agent_research_states (
    run_id BIGINT NOT NULL REFERENCES gb_agent_research_runs (id) ON DELETE CASCADE,
    seq INTEGER NOT NULL,
    step INTEGER NOT NULL,
    state TEXT NOT NULL,
    detail TEXT NOT NULL,
    error TEXT NOT NULL,
    started_at TIMESTAMPTZ(3) NOT NULL,
    finished_at TIMESTAMPTZ(3),
    PRIMARY KEY (run_id, seq)
);
