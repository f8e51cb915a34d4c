"""Puts in the transaction of the rest: a table in your database, and a relay that empties it.

    from delayd import outbox

    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders ...")
        outbox.put(cursor, "orders", {"order": 17}, delay="30m")

What was committed is put by `delayd relay`, exactly once; what was rolled back is not. `rows`
writes a row, `schema` has the table. The relay is in `relay`; it uses the table as `table` has it,
in a database (`postgresql`, `sqlite`), and the daemon as `permits` has it, which says why each row
is put exactly once.

It imports `delayd.client` and nothing of the daemon; to put needs neither a driver nor the daemon.
"""

from delayd.outbox.rows import put, statement
from delayd.outbox.schema import schema

__all__ = ["put", "schema", "statement"]
