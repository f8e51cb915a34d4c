"""The log in PostgreSQL: one statement for each group commit, and a lease that says who owns it.

    postgres_log.py the log: follow, take over, append, settle     statements.py   its SQL
    connection.py   one connection, with deadlines of our own      rows.py         bytes in rows
    snapshots.py    snapshots, in parts                            place.py        where it is
    reserve.py      space for removals, when the database is full  copies.py       copied logs
    standbys.py     who follows the log, and how far they are

docs/two-machines.md says what it promises. Needs psycopg, which `delayd[postgres]` brings along, so
nothing here is imported unless the configuration names a database.
"""
