import json
import sys
import tomllib
import unicodedata
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayd.limits import MARKS_SHOWN_MAX
from delayd.text import (
    did_you_mean,
    hide_in_urls,
    in_json,
    in_toml,
    parse_whole,
    shown_url,
    visible,
    with_shown_urls,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("0080", 80), ("9" * 20, 10**20 - 1), ("", None), ("9" * 21, None), ("-1", None)],
)
def test_whole_numbers_are_ascii_digits(text: str, expected: int | None) -> None:
    assert parse_whole(text) == expected
    assert parse_whole("\N{ARABIC-INDIC DIGIT ONE}") is None


def test_a_long_name_is_near_to_nothing() -> None:
    assert did_you_mean("tickk", ["size", "tick"]) == "; did you mean tick?"
    assert did_you_mean("DELAYD_X", ["DELAYD_LOG"], "DELAYD_") == ""
    assert did_you_mean("tick" * 20, ["tick" * 20]) == ""


# --- Texts of others -----------------------------------------------------------------------------


@pytest.mark.thorough
def test_what_cannot_be_seen_is_escaped_whatever_its_category() -> None:
    hidden: defaultdict[str, list[str]] = defaultdict(list)
    for c in map(chr, range(sys.maxunicode + 1)):
        hidden[unicodedata.category(c)].append(c)
    hidden["Zs"].remove(" ")
    for category in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"):
        for c in (hidden[category][0], hidden[category][-1]):
            said = visible(f"a{c}b")
            assert said.isprintable()
            assert said.encode("ascii").decode("unicode_escape") == f"a{c}b"
        some = hidden[category][:: len(hidden[category]) // 1_000 + 1]
        assert visible("".join(some)).isascii(), category


@given(st.text())
def test_every_text_is_printable_and_in_json_and_toml_the_same_value(text: str) -> None:
    assert visible(text).isprintable()
    in_a_string = visible(json.dumps(text, ensure_ascii=False), write=in_json)
    assert in_a_string.isprintable()
    assert json.loads(in_a_string) == text
    in_a_string = visible(json.dumps(text, ensure_ascii=False), write=in_toml)
    assert in_a_string.isprintable()
    assert tomllib.loads(f"a = {in_a_string}") == {"a": text}


@given(st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"])))
def test_a_text_in_plain_letters_is_shown_as_it_is(text: str) -> None:
    assert visible(text) is text


def test_what_is_kept_is_kept() -> None:
    assert visible("a\tb\nc\r", keeps="\n\t") == "a\tb\nc\\r"


def test_letters_of_all_languages_keep_their_marks() -> None:
    texts = ("e\u0301", "\u0e01\u0e34\u0e48", "\u05d1\u05bc\u05b0", "1\ufe0f\u20e3", "\u2764\ufe0f")
    for text in (*texts, "Gr\u00fc\u00dfe \u4f60\u597d", "\U0001f600"):
        assert visible(text) == text


def test_a_mark_stands_on_a_character_and_few_do() -> None:
    mark = "\u0301"
    for base in ("", " ", "=", '"'):
        assert visible(base + mark) == f"{base}\\u0301"
    assert visible("a" + mark * 9) == "a" + mark * MARKS_SHOWN_MAX + "\\u0301" * (
        9 - MARKS_SHOWN_MAX
    )
    assert visible(f"\u202e{mark}a{mark}") == f"\\u202e{mark}a{mark}"


# --- Urls ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://a.example:8443/b/c", "https://a.example:8443/b/c"),
        ("https://a.example/@team", "https://a.example/@team"),
        ("https://[2001:db8::1]:443/?k=s3cret", "https://[2001:db8::1]:443/?***"),
        ("https://a.example#s3cret", "https://a.example#***"),
        ("https://a.example/?mail=s3cret@x", "https://a.example/?***"),
        ("https://s3cret@a.example/", "https://***@a.example/"),
        ("amqp://s3cret:s3cret@host:5672/v", "amqp://***@host:5672/v"),
        ("redis://:s3cret@s3cret@host/0", "redis://***@host/0"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock"),
        ("redis://ada:s3/cret@host/0", "redis://***"),
        ("redis://ada:12/s3cret@host/0", "redis://***"),
        ("redis://a:s3@cret/s3cret@host/0", "redis://***"),
        ("https://x\\@ada:s3cret@host/", "https://***"),
        ("https://ada:s3%40cret%40host/", "https://***"),
        ("https://ada:s3 cret@host/\n", "https://***"),
        ("https://ada:s3cret", "https://***"),
        ("ada:s3cret@host", "***"),
        ("//ada:s3cret@host/", "***"),
        ("https:/ada:s3cret@host/", "***"),
        ("a.example/b", "a.example/b"),
    ],
)
def test_no_user_password_or_query_of_a_url_is_shown(url: str, shown: str) -> None:
    assert shown_url(url) == shown
    assert hide_in_urls(f"x {shown}") == f"x {shown}", "what is hidden stays as it is"


@pytest.mark.thorough
def test_a_text_that_is_hardly_a_url_is_read_once() -> None:
    """What a server says may be made for it: as a square of its length this would take an hour."""
    for text in ("a" * 2_000_000 + " ://", "a1+" * 700_000 + "\n://", "-" * 2_000_000 + "://"):
        assert hide_in_urls(text) == text


def test_a_url_is_found_behind_whatever_is_no_part_of_it() -> None:
    for before in ("", " ", "('", "1", "-", "+1."):
        said = hide_in_urls(f"{before}https://ada:s3cret@a.example/?k=s3cret")
        assert said == f"{before}https://***@a.example/?***"


@given(st.text("ab1/?#@:%[]\\ .", max_size=20), st.text("ab1/?#:%.", max_size=9))
def test_a_password_is_never_shown_whatever_else_is_in_the_url(tail: str, more: str) -> None:
    for password in (f"S3{more}CRET", f"S3CRET{more}"):
        for url in (f"redis://ada:{password}@host{tail}", f"redis://:{password}@{tail}"):
            assert "CRET" not in shown_url(url)
            assert "ada" not in shown_url(url)
    assert "S3CRET" not in shown_url(
        f"https://host/{more.translate(dict.fromkeys(b'?#'))}?{tail}S3CRET"
    )


def test_urls_are_found_in_values_however_deep() -> None:
    url, hidden = "redis://:s3cret@host/?s3cret", "redis://***@host/?***"
    assert with_shown_urls({"a": [url, {"b": url, "c": 7}], "d": (True, None)}) == {
        "a": [hidden, {"b": hidden, "c": 7}],
        "d": [True, None],
    }
    deep: object = url
    for _ in range(100_000):
        deep = [deep]
    assert "s3cret" not in str(with_shown_urls(deep))[:9]
