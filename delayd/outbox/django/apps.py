"""The app."""

from django.apps import AppConfig


class OutboxConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    """An app that has a table, made by its migration."""

    name = "delayd.outbox.django"
    label = "delayd_outbox"
    verbose_name = "delayd outbox"
