"""The outbox as an app of Django: `"delayd.outbox.django"` in INSTALLED_APPS makes its table.

    from django.db import connection, transaction
    from delayd import outbox

    with transaction.atomic(), connection.cursor() as cursor:
        order.save()
        outbox.put(cursor, "orders", {"order": order.pk})

It has a migration and no model.
"""
