"""Wrong settings, and a wrong use of the command, are told in sentences before anything is lost."""

from types import SimpleNamespace
from typing import Any, Final

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.core.management.base import SystemCheckError
from django.test import override_settings

from delayd.client import Client
from delayd.django import contract
from delayd.testing import FakeDelayd
from tests.django.conftest import Configure, sentences
from tests.django.project import tasks

BACKEND: Final = "delayd.django.DelaydBackend"

BOTH: Final = (
    {"client": Client(), "url": "http://q"},
    "client: it has its own url, so leave out url",
)


@pytest.mark.parametrize(("options", "sentence"), [*sentences("option"), BOTH])
def test_a_wrong_option_is_an_error_of_the_checks_and_nothing_is_enqueued(
    options: dict[str, Any], sentence: str
) -> None:
    backend = {"BACKEND": BACKEND, "QUEUES": ["default", "mail"], "OPTIONS": options}
    with override_settings(TASKS={"default": backend}):
        with pytest.raises(SystemCheckError) as refused:
            call_command("check")
        assert f"TASKS['default']['OPTIONS']: {sentence}\n" in str(refused.value)
        with pytest.raises(ImproperlyConfigured) as raised:
            tasks.add.enqueue(1)
        assert sentence in str(raised.value)
        with pytest.raises(CommandError) as ended:
            call_command("delayd_worker")
        assert sentence in str(ended.value)


def test_a_project_without_the_app_is_warned(configure: Configure) -> None:
    backend = configure(outbox="default")
    with override_settings(INSTALLED_APPS=[]):
        warnings = backend.check()
    assert [each.id for each in warnings] == ["delayd.W001", "delayd.W002"]
    assert not any(each.is_serious() for each in warnings)
    assert not backend.check()


VERSIONS: Final = (
    ((5, 2), None, "Django 5.2 has no tasks of its own: install django-tasks 0.12 or later, or"),
    ((5, 2), SimpleNamespace(SUCCEEDED="SUCCEEDED"), "delayd.django needs django-tasks 0.12"),
)


@pytest.mark.parametrize(("version", "statuses", "sentence"), VERSIONS)
def test_without_a_library_of_the_right_version_a_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
    version: tuple[int, int],
    statuses: SimpleNamespace | None,
    sentence: str,
) -> None:
    def imported(name: str) -> SimpleNamespace:
        if statuses is None:
            raise ModuleNotFoundError(name=name.partition(".")[0])
        return SimpleNamespace(TaskResultStatus=statuses)

    monkeypatch.setattr(contract, "VERSION", version)
    monkeypatch.setattr(contract, "import_module", imported)
    with pytest.raises(ImproperlyConfigured) as raised:
        contract._library()
    assert str(raised.value).startswith(sentence)


class Others:
    """A backend of another library."""

    def __init__(self, **_params: object) -> None:
        pass

    def check(self) -> tuple[()]:
        return ()


@pytest.mark.parametrize(("arguments", "sentence"), sentences("worker"))
def test_a_worker_that_is_started_wrongly_says_so(
    arguments: tuple[str, ...], sentence: str
) -> None:
    default = {"BACKEND": BACKEND, "QUEUES": ["default", "mail"]}
    dummy = {"BACKEND": f"{Others.__module__}.{Others.__name__}"}
    with override_settings(TASKS={"default": default, "dummy": dummy}):
        with pytest.raises(CommandError) as ended:
            call_command("delayd_worker", *arguments)
        assert str(ended.value) == sentence


def test_a_worker_is_told_which_queues_where_the_settings_allow_all(configure: Configure) -> None:
    configure(queues=())
    with pytest.raises(CommandError) as ended:
        call_command("delayd_worker")
    sentence = "TASKS['default']: QUEUES is empty: name the queues, each with --queue"
    assert str(ended.value) == sentence


@pytest.mark.parametrize("missing", ["stats", "peek"])
def test_a_worker_without_the_scopes_to_judge_a_failure_does_not_begin(
    configure: Configure, fake_delayd: FakeDelayd, missing: str
) -> None:
    scopes = {"reserve", "delete", "release", "bury", "stats", "peek"} - {missing}
    token = fake_delayd.token(*scopes)
    configure(client=fake_delayd.client(token=token))
    with pytest.raises(CommandError, match=missing + r".* The token of a worker needs reserve"):
        call_command("delayd_worker")
