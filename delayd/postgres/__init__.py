"""The log in PostgreSQL: one statement for each group commit, and a lease that says who owns it.

    postgres_log.py   the log: follow, take over, append, settle     statements.py   its SQL
    lease.py          who may own the log, and for how long          rows.py         bytes in rows
    standbys.py       who follows it, and how far they are           place.py        where it is
    snapshots.py      snapshots, in parts                            copies.py       copied logs
    connection.py     one connection, with deadlines of our own      errors.py       what goes wrong
    space.py          space for removals, when the database is full
    database_time.py  the database's clock, which all daemons of a log go by

docs/two-machines.md says what it promises. Needs psycopg, which `delayd[postgres]` brings along, so
nothing here is imported unless the configuration names a database.
"""
