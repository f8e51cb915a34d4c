"""Every setting with good and wrong values, at its bounds, from each place that it may come from.

The values are those of its schema, or of the table in `config_files`: a new setting needs nothing
here. Nothing wrong is taken for something else without a word: each is one error, which names the
value and the rule. What a kind of values refuses that others have too is in `test_fields.py`.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Final

import pytest

from delayd.config import BY_NAME, load, variable_of
from delayd.fields import GivenText
from tests.config_files import chosen, errors_of, every_setting, values_of, written

OTHER_KINDS: Final = (
    *("1979-05-27", "nan", "inf", "[]", "[[]]", '["x"]', "{ x = 1 }", "-1", '"\\u0000"', '""'),
)
"""In TOML: no setting may be any of these."""
TAKEN: Final = {
    *((name, "[]") for name in ("push.private_networks", "push.ports", "push.sign_with")),
    ("postgres.accept", "[]"),
    *((name, value) for name in ("http.hosts", "push.hosts") for value in ("[]", '["x"]')),
    ("push.sign_with", '["x"]'),
}
"""What is a good value of these, though not of others."""
NAMES: Final = [*BY_NAME]
NOT_QUOTED: Final = ("sinks", "postgres.url", "postgres_url", "--postgres")


@pytest.mark.parametrize("name", NAMES)
def test_what_a_setting_may_be_is_read_in_the_file_and_as_a_text(name: str) -> None:
    setting = BY_NAME[name]
    for in_file, as_text, value in values_of(setting).good:
        assert setting.read(tomllib.loads(f"x = {in_file}")["x"]) == value
        assert as_text is None or setting.read(GivenText(as_text)) == value


def test_every_setting_can_be_in_the_file_and_in_a_variable(tmp_path: Path) -> None:
    given = load(written(tmp_path, every_setting()), {}, {})
    assert given == tuple(good[2] for good in chosen().values())
    variables = {
        variable_of(name): good[1] for name, good in chosen().items() if good[1] is not None
    }
    assert load(None, variables, {}) == given._replace(sinks={})


@pytest.mark.parametrize("name", NAMES)
def test_what_the_file_says_wrong_is_refused_with_value_and_rule(tmp_path: Path, name: str) -> None:
    values = values_of(BY_NAME[name])
    others = (value for value in OTHER_KINDS if (name, value) not in TAKEN)
    for value in (*others, *values.wrong):
        shown = json.dumps(tomllib.loads(f"x = {value}")["x"], default=str)
        refused(errors_of(written(tmp_path, f"{name} = {value}")), name, shown, values.rule)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_variable_or_a_flag_says_wrong_is_refused_with_value_and_rule(name: str) -> None:
    values, flag = values_of(BY_NAME[name]), BY_NAME[name].flag
    for value in values.wrong_text:
        errors = errors_of(environment={variable_of(name): value})
        refused(errors, f"environment: {variable_of(name)}", json.dumps(value), values.rule)
        if flag:
            errors = errors_of(flags={flag: value})
            refused(errors, f"command line: {flag}", json.dumps(value), values.rule)


def refused(errors: list[str], said_as: str, shown: str, rule: str) -> None:
    """Check that there is one error with value and rule; of topics and schedules a part is named.

    Of sinks and urls it has no values, which may be secret.
    """
    (only,) = errors
    if any(word in said_as.lower() for word in NOT_QUOTED):
        assert re.match(rf"{re.escape(said_as)}[.:]", only)
        assert "secret" not in only
    elif "topics" in said_as.lower() or "schedules" in said_as.lower():
        assert only.startswith(said_as)
    else:
        assert only.startswith(f"{said_as} = {shown}: {rule}")
    assert rule in only
