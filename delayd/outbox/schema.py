"""The table, for each database.

    id       the order in which rows are put; never used twice
    uid      with `id` the row's name for ever, also in copies of the database
    topic, body, options     of the job: `options` is JSON, as over HTTP
    put_at   from when a delay counts, by the clock of the database
    permit   what the relay has decided to put it with; see `permits`
    error    why it cannot be put; such a row is kept, and left out

`PRIMARY KEY` and `id` beside `error` are all that the relay looks for.
"""

from types import MappingProxyType
from typing import Final

TABLE: Final = "delayd_outbox"
CHANNEL: Final = "delayd_outbox"
"""What the trigger notifies, and the relay listens to."""

POSTGRESQL: Final = f"""\
CREATE TABLE {TABLE} (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    uid text NOT NULL DEFAULT replace(gen_random_uuid()::text, '-', ''),
    topic text NOT NULL,
    body bytea NOT NULL,
    options text NOT NULL DEFAULT '{{}}',
    put_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    permit text,
    error text
);
CREATE INDEX {TABLE}_waiting ON {TABLE} (id) WHERE error IS NULL;
CREATE FUNCTION {TABLE}_notify() RETURNS trigger LANGUAGE plpgsql AS
$$BEGIN PERFORM pg_notify('{CHANNEL}', ''); RETURN NULL; END$$;
CREATE TRIGGER {TABLE}_notify AFTER INSERT ON {TABLE}
    FOR EACH STATEMENT EXECUTE FUNCTION {TABLE}_notify();
"""

SQLITE: Final = f"""\
CREATE TABLE {TABLE} (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    uid TEXT NOT NULL DEFAULT (lower(hex(randomblob(16)))),
    topic TEXT NOT NULL,
    body BLOB NOT NULL,
    options TEXT NOT NULL DEFAULT '{{}}',
    put_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    permit TEXT,
    error TEXT
);
CREATE INDEX {TABLE}_waiting ON {TABLE} (id) WHERE error IS NULL;
"""

_SCHEMAS: Final = MappingProxyType({"postgresql": POSTGRESQL, "sqlite": SQLITE})
VENDORS: Final = tuple(_SCHEMAS)


def schema(vendor: str) -> str:
    """Return the statements that make the table in `"postgresql"` or `"sqlite"`. ValueError."""
    if vendor not in _SCHEMAS:
        raise ValueError(f"there is an outbox for {' and '.join(VENDORS)}, and not for {vendor!r}")
    return _SCHEMAS[vendor]
