import os
from typing import Any, Final

SECRET_KEY: Final = "for tests"  # noqa: S105 - of nothing
USE_TZ: Final = True
LOGGING_CONFIG: Final = None
INSTALLED_APPS: Final = ["delayd.django", "delayd.outbox.django"]
DATABASES: Final = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
TASKS: Final[dict[str, Any]] = {
    "default": {
        "BACKEND": "delayd.django.DelaydBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"url": os.environ.get("PROJECT_URL", "http://127.0.0.1:1")},
    },
}
