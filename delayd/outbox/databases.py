"""Which database a url names."""

from delayd.outbox.table import Database, TableUnfit


def connected(url: str) -> Database:
    """Return the database of a url; nothing is connected yet. Raises TableUnfit."""
    scheme, _, rest = url.partition(":")
    if scheme in {"postgresql", "postgres"}:
        try:
            from delayd.outbox.postgresql import PostgresqlOutbox  # noqa: PLC0415 - needs a driver
        except ImportError:
            advice = "needs psycopg: pip install 'delayd[postgres]'"
            raise TableUnfit(f"an outbox in PostgreSQL {advice}") from None
        return PostgresqlOutbox(url)
    if scheme == "sqlite" and rest.startswith("///") and len(rest) > len("///"):
        from delayd.outbox.sqlite import SqliteOutbox  # noqa: PLC0415 - where it is used

        return SqliteOutbox(rest.removeprefix("///"))
    rule = (
        "must be postgresql://USER@HOST/DATABASE or sqlite:///PATH (sqlite:////PATH from the root)"
    )
    raise TableUnfit(f"the url of the database {rule}")
