"""The app, which brings the worker's command and the checks of `TASKS`."""

from importlib import import_module

from django.apps import AppConfig

from delayd.django.contract import LIBRARY


class DelaydConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    """`"delayd.django"` in INSTALLED_APPS. It has no models."""

    name = "delayd.django"
    label = "delayd"

    def ready(self) -> None:
        """Have the library check `TASKS`, and log what becomes of tasks, also if it is no app."""
        import_module(f"{LIBRARY}.checks")
        import_module(f"{LIBRARY}.signals")
