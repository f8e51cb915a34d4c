import contextlib
import os
from ast import literal_eval
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, cast

import django
import pytest

SETTINGS: Final = "tests.django.project.settings"
os.environ["DJANGO_SETTINGS_MODULE"] = SETTINGS
django.setup()
del os.environ["DJANGO_SETTINGS_MODULE"]  # other processes have their own

from django.test import override_settings  # noqa: E402 - Django reads its settings first

from delayd.django.backend import DelaydBackend  # noqa: E402
from delayd.django.contract import task_backends  # noqa: E402
from delayd.testing import FakeDelayd  # noqa: E402

Configure = Callable[..., DelaydBackend]


@pytest.fixture
def configure(fake_delayd: FakeDelayd) -> Iterator[Configure]:
    """Returns the backend with these options, on the fake; as `default`."""
    with contextlib.ExitStack() as stack:

        def configured(
            queues: tuple[str, ...] = ("default", "mail"), **options: object
        ) -> DelaydBackend:
            backend = {
                "BACKEND": DelaydBackend.PATH,
                "QUEUES": list(queues),
                "OPTIONS": {"client": fake_delayd.client(), **options},
            }
            stack.enter_context(override_settings(TASKS={"default": backend}))
            return cast("DelaydBackend", task_backends["default"])

        yield configured


def sentences(what: str, **names: str) -> list[tuple[Any, str]]:
    """What is wrong, and the sentence about it: the rows of sentences.txt that begin so."""
    text = (Path(__file__).parent / "sentences.txt").read_text()
    for name, meant in names.items():
        text = text.replace(f"${name}", meant)
    rows = [row.removeprefix(f"{what} ") for row in text.splitlines() if row.startswith(what)]
    return [(literal_eval(given), told) for given, told in (row.split(" -> ") for row in rows)]
