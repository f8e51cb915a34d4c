-- A table of jobs with SKIP LOCKED, as guides show it. Each statement is a transaction of its own.
-- A line "-- name: what it takes" begins a statement; the benchmark sends them as they stand here.

-- table: every job is in it from its put to its acknowledgement
CREATE TABLE jobs (
    id    bigserial PRIMARY KEY,
    key   text,
    due   timestamptz NOT NULL,
    state text NOT NULL DEFAULT 'ready',
    body  bytea NOT NULL
);
CREATE INDEX jobs_due ON jobs (due) WHERE state = 'ready';
CREATE UNIQUE INDEX jobs_key ON jobs (key) WHERE key IS NOT NULL;

-- tuned: room on each page for the update of its jobs, and what is deleted cleared away soon
ALTER TABLE jobs SET (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0
);

-- put: $1 the delay in ms, $2 the body
INSERT INTO jobs (due, body) VALUES (now() + $1 * interval '1 millisecond', $2);

-- keyed_put: $1 the delay in ms, $2 the body, $3 the key; takes the place of the job that has it
INSERT INTO jobs (due, body, key) VALUES (now() + $1 * interval '1 millisecond', $2, $3)
ON CONFLICT (key) WHERE key IS NOT NULL
DO UPDATE SET due = excluded.due, state = 'ready', body = excluded.body;

-- take: nothing
UPDATE jobs SET state = 'taken'
WHERE id = (
    SELECT id FROM jobs
    WHERE state = 'ready' AND due <= now()
    ORDER BY due
    FOR UPDATE SKIP LOCKED
    LIMIT 1
)
RETURNING id, body;

-- acknowledge: $1 the id
DELETE FROM jobs WHERE id = $1;

-- fill: $1 the delay in ms, $2 the end of each body, $3 and $4 the first number and the last
INSERT INTO jobs (due, body)
SELECT now() + $1 * interval '1 millisecond',
       convert_to(lpad(number::text, 10, '0') || $2, 'UTF8')
FROM generate_series($3, $4) AS number;
