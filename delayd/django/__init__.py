"""Tasks of Django on delayd: a backend for `TASKS`, and `manage.py delayd_worker`.

    INSTALLED_APPS = [..., "delayd.django"]
    TASKS = {"default": {"BACKEND": "delayd.django.DelaydBackend", "OPTIONS": {"url": "http://..."}}}

    contract     what Django and django-tasks ask of a backend: the same names from either
    options      the settings, and what is wrong with them
    bodies       a task with its arguments and its outcome, as the JSON of a job
    results      results that are kept for a while
    backend      `DelaydBackend`: enqueue, look at results
    runner       one attempt at a task; `drain`, for tests
    management/  the worker

It is a client of the daemon: it imports `delayd.client`, `delayd.outbox` and Django. Importing this
package imports none of them, so that settings may name it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from delayd.django.backend import DelaydBackend as DelaydBackend
    from delayd.django.runner import drain as drain


def __getattr__(name: str) -> object:
    if name == "DelaydBackend":
        from delayd.django import backend  # noqa: PLC0415 - when it is first used

        return backend.DelaydBackend
    if name == "drain":
        from delayd.django import runner  # noqa: PLC0415

        return runner.drain
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
