"""Make the table, as `delayd relay --schema` prints it for the database of the project."""

from typing import Any, ClassVar

from django.db import migrations

from delayd.outbox.schema import TABLE, VENDORS, schema


def make(_apps: object, editor: Any) -> None:  # noqa: ANN401 - Django has no types
    """Make the table; nothing in a database of another kind."""
    vendor = editor.connection.vendor
    if vendor not in VENDORS:
        return
    if vendor == "sqlite":
        for statement in schema(vendor).split(";\n"):
            if statement.strip():
                editor.execute(statement)
    else:
        editor.execute(schema(vendor), params=None)


def remove(_apps: object, editor: Any) -> None:  # noqa: ANN401 - the same
    """Remove the table, and with it what was not put."""
    vendor = editor.connection.vendor
    if vendor not in VENDORS:
        return
    editor.execute(f"DROP TABLE {TABLE}")
    if vendor == "postgresql":
        editor.execute(f"DROP FUNCTION {TABLE}_notify()")


class Migration(migrations.Migration):  # type: ignore[misc]  # Django has no types
    """The table and its trigger."""

    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[Any]] = [migrations.RunPython(make, remove)]
