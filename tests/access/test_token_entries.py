import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayd.access.errors import TokensInvalid
from delayd.access.scopes import Scope
from delayd.access.token_entries import NAME_RULE, SCOPE_RULE, TOKENS_FILE, Entry
from delayd.core.policy import GLOBS_RULE, PATTERN_RULE
from delayd.limits import TOKEN_GLOBS_MAX, TOKEN_NAME_CHARACTERS_MAX, WALL_MS_MAX
from delayd.moments import TIME_RULE
from tests.access import samples
from tests.access.samples import made
from tests.rigs.written import tables_of

HERE = Path(__file__).parent
GOLDEN = HERE / "data" / "tokens-1.json"
WRONG = tables_of(HERE / "wrong_entries.txt")["tokens"]
RULES = {"name": NAME_RULE, "scope": SCOPE_RULE, "globs": GLOBS_RULE, "glob": PATTERN_RULE}
RULES["time"] = TIME_RULE
YEAR_9999_S = WALL_MS_MAX // 1_000

entries = st.builds(
    Entry,
    id=st.integers(0, 2**32 - 1).map("{:08x}".format),
    name=st.text(
        st.characters(categories=["L", "N", "P"]), min_size=1, max_size=TOKEN_NAME_CHARACTERS_MAX
    ),
    sha256=st.integers(0, 2**256 - 1).map("{:064x}".format),
    scopes=st.frozensets(st.sampled_from(Scope), min_size=1),
    topics=st.lists(st.text("ab.*?", min_size=1, max_size=9), min_size=1, max_size=9).map(tuple),
    created_s=st.integers(0, YEAR_9999_S),
    not_after_s=st.none() | st.integers(0, YEAR_9999_S),
)


@given(st.lists(entries, max_size=5, unique_by=lambda entry: entry.id))
def test_what_is_written_is_read(written: list[Entry]) -> None:
    assert TOKENS_FILE.from_bytes(TOKENS_FILE.to_bytes(written), "t") == tuple(written)


@pytest.mark.thorough
def test_a_file_with_one_wrong_bit_is_refused_or_read() -> None:
    data = GOLDEN.read_bytes()
    for index in range(len(data)):
        for bit in range(8):
            wrong = bytearray(data)
            wrong[index] ^= 1 << bit
            try:
                read = TOKENS_FILE.from_bytes(bytes(wrong), "t")
            except TokensInvalid:
                continue
            assert len(read) == 2


# --- Mistakes ------------------------------------------------------------------------------------


errors_of_rows = partial(samples.errors_of_rows, TOKENS_FILE)


def row(**changes: object) -> dict[str, Any]:
    return TOKENS_FILE.row(made()[1]) | changes


@pytest.mark.parametrize(("field", "value", "error"), WRONG)
def test_a_wrong_value_is_named_with_its_place_and_the_rule(
    field: str, value: str, error: str
) -> None:
    (only,) = errors_of_rows(TOKENS_FILE.row(made(2)[1]), row(**{field: json.loads(value)}))
    assert only.startswith(
        f"tokens[1].{field}{' ' * (error[0] == '=')}{error.format(value, **RULES)}"
    )


def test_a_name_and_a_list_of_topics_have_a_greatest_length() -> None:
    long = {"name": "é" * (TOKEN_NAME_CHARACTERS_MAX + 1), "topics": ["a"] * (TOKEN_GLOBS_MAX + 1)}
    said = errors_of_rows(row(**long))
    assert [each.partition(" = ")[0] for each in said] == ["tokens[0].name", "tokens[0].topics"]


@pytest.mark.parametrize("name", ["id", "name", "sha256", "scopes", "topics", "created"])
def test_every_field_but_the_end_must_be_there(name: str) -> None:
    fields = row()
    del fields[name]
    assert errors_of_rows(fields) == [f"tokens[0].{name}: is missing"]


def test_all_mistakes_are_told_at_once() -> None:
    assert errors_of_rows(row(id="x", y=1), 7, row(scopes=[], sha256="s"), row(), row()) == [
        'tokens[0].id = "x": must be 8 hexadecimal digits',
        "tokens[0].y: there is no such field",
        "tokens[1]: must be an object",
        "tokens[2].sha256: must be 64 hexadecimal digits",
        f"tokens[2].scopes = []: must be a list; each {SCOPE_RULE}",
        f'tokens[4].id = "{made()[1].id}": is the id of another token too',
    ]


@pytest.mark.parametrize("field", ["id", "name", "sha256", "scopes", "topics", "created", "other"])
def test_no_mistake_repeats_a_token_that_stands_in_the_wrong_place(field: str) -> None:
    text, entry = made(5)
    secret = text.rpartition(f"{entry.id}_")[2]
    for pasted in (text, secret, text.upper(), [text], f"{text}\n"):
        for said in errors_of_rows(row(**{field: pasted, "created": 7})):
            assert secret not in said
            assert secret.upper() not in said
    for name in (text, secret):
        for said in errors_of_rows(row(**{name: 1})):
            assert secret not in said
        twice = f'{{"version": 1, "tokens": [], "{name}": 1, "{name}": 1}}'
        assert not any(secret in said for said in samples.errors_of(TOKENS_FILE, twice.encode()))
