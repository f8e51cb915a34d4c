import json
import sys
import tomllib
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayd.limits import (
    DURATION_MS_MAX,
    MARKS_SHOWN_MAX,
    QUANTITY_CHARACTERS_MAX,
    WALL_MS_MAX,
)
from delayd.text import (
    DURATION_UNITS_MS,
    did_you_mean,
    duration_text,
    hide_in_urls,
    in_json,
    in_toml,
    moment_text,
    parse_duration_ms,
    parse_moment_ms,
    parse_size_bytes,
    parse_time_s,
    parse_whole,
    shown_url,
    time_text,
    visible,
    with_shown_urls,
)


@pytest.mark.parametrize(
    ("written", "expected_ms"),
    [
        (0, 0),
        (15, 15_000),
        (0.05, 50),
        (1.1, 1_100),
        (0.0001, 1),
        (1e-9, 1),
        (5e-324, 1),
        (2**32 - 1, DURATION_MS_MAX),
        ("15", 15_000),
        ("1.1", 1_100),
        (" 15s ", 15_000),
        ("50ms", 50),
        ("0s", 0),
        ("1h30m", 5_400_000),
        ("1h 30m", 5_400_000),
        ("1w2d3h4m5s6ms", 788_645_006),
        ("7d", 604_800_000),
        ("1.5s", 1_500),
        ("0.1ms", 1),
        ("0.0000000000000000000000001s", 1),
    ],
)
def test_durations_become_milliseconds(written: object, expected_ms: int) -> None:
    assert parse_duration_ms(written) == expected_ms


@pytest.mark.parametrize(
    "written",
    [
        *(
            "",
            " ",
            "s",
            "-1",
            "-1s",
            "+1",
            "1e3",
            "1 5",
            "1x",
            "5m1h",
            "1s1s",
            "1,5s",
            ".5s",
            "5.s",
        ),
        *(
            "\N{ARABIC-INDIC DIGIT ONE}s",
            "15S",
            "1s\0",
            "1" * (QUANTITY_CHARACTERS_MAX + 1),
            "4294967296",
            "99999w",
        ),
        *(-1, -0.001, 2**32, 1e300, float("nan"), float("inf"), float("-inf"), 10**400),
        *(True, None, [], {}, b"15s"),
    ],
    ids=repr,
)
def test_other_durations_are_refused_with_the_rule(written: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_duration_ms(written)


@given(st.integers(0, DURATION_MS_MAX))
def test_a_duration_written_in_units_is_read_back(duration_ms: int) -> None:
    words, rest_ms = "", duration_ms
    for unit, unit_ms in DURATION_UNITS_MS.items():
        count, rest_ms = divmod(rest_ms, unit_ms)
        words += f"{count}{unit}" if count else ""
    assert parse_duration_ms(words or "0s") == duration_ms


@given(st.integers(0, DURATION_MS_MAX))
def test_seconds_with_three_decimals_are_exact_as_text_and_as_number(duration_ms: int) -> None:
    text = f"{duration_ms // 1000}.{duration_ms % 1000:03d}"
    assert parse_duration_ms(text) == duration_ms
    assert parse_duration_ms(float(text)) == duration_ms


@pytest.mark.parametrize(
    ("written", "expected_bytes"),
    [
        (0, 0),
        (65_535, 65_535),
        ("65535", 65_535),
        ("10B", 10),
        ("64KiB", 65_536),
        ("64kib", 65_536),
        ("1 MiB", 1_048_576),
        ("1GiB", 1 << 30),
        ("1TiB", 1 << 40),
        ("10kB", 10_000),
        ("1.5MB", 1_500_000),
        ("1GB", 10**9),
        ("1TB", 10**12),
        ("0.0001kB", 1),
    ],
)
def test_sizes_become_bytes(written: object, expected_bytes: int) -> None:
    assert parse_size_bytes(written) == expected_bytes


@pytest.mark.parametrize(
    "written",
    [
        *(
            "",
            "B",
            "-1",
            "1.5.5",
            "1XB",
            "1Ki",
            "1 2",
            "1MiB2",
            "1" * (QUANTITY_CHARACTERS_MAX + 1),
        ),
        *(-1, 1.5, True, None, [], b"1"),
    ],
    ids=repr,
)
def test_other_sizes_are_refused_with_the_rule(written: object) -> None:
    with pytest.raises(ValueError, match="must be bytes"):
        parse_size_bytes(written)


@given(duration_ms=st.integers(0, DURATION_MS_MAX))
def test_a_duration_is_written_so_that_it_is_read_again(duration_ms: int) -> None:
    assert parse_duration_ms(duration_text(duration_ms)) == duration_ms


@pytest.mark.parametrize(
    ("wall_ms", "expected"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (4_294_967_295_999, "2106-02-07T06:28:15.999Z"),
    ],
)
def test_timestamps_are_utc_with_milliseconds(wall_ms: int, expected: str) -> None:
    assert moment_text(wall_ms) == expected


@given(st.integers(0, WALL_MS_MAX // 1_000))
def test_a_time_that_is_written_is_read(epoch_s: int) -> None:
    assert parse_time_s(time_text(epoch_s)) == epoch_s


@pytest.mark.parametrize(
    ("text", "epoch_s"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01t00:00:01.999z", 1),
        ("1970-01-01 02:00:00+02:00", 0),
        ("1969-12-31T23:00:00-01:00", 0),
    ],
)
def test_times_are_read_in_every_zone(text: str, epoch_s: int) -> None:
    assert parse_time_s(text) == epoch_s


@pytest.mark.parametrize("text", ["", "now", "0", "2026-11-21T10:15Z", "٢026-11-21T10:15:00Z"])
def test_other_texts_are_no_times(text: str) -> None:
    with pytest.raises(ValueError, match="must be a time with an offset"):
        parse_time_s(text)


@pytest.mark.parametrize("wall_ms", [10**17, 2**64])
def test_a_moment_beyond_the_calendar_is_written_as_its_end(wall_ms: int) -> None:
    assert moment_text(wall_ms).startswith("9999-12-31T23:59:59.")


@pytest.mark.parametrize(
    ("value", "expected_ms"),
    [
        ("1970-01-01T00:00:05Z", 5_000),
        ("1970-01-01T00:00:00.0001Z", 1),
        (0.0001, 1),
        (1_795_287_600, 1_795_287_600_000),
    ],
)
def test_moments_are_rounded_up_to_milliseconds(value: object, expected_ms: int) -> None:
    assert parse_moment_ms(value) == expected_ms


@pytest.mark.parametrize(
    "value",
    ["2026-11-21", "2026-11-21T19:00:00", "2026-W47-6T19:00:00Z", "2026-02-30T19:00:00Z", True, -1],
)
def test_other_values_are_no_moments(value: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_moment_ms(value)


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


@pytest.mark.parametrize("category", ["Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"])
def test_what_cannot_be_seen_is_escaped_whatever_its_category(category: str) -> None:
    every = map(chr, range(sys.maxunicode + 1))
    hidden = [c for c in every if unicodedata.category(c) == category and c != " "]
    for c in (hidden[0], hidden[-1]):
        said = visible(f"a{c}b")
        assert said.isprintable()
        assert said.encode("ascii").decode("unicode_escape") == f"a{c}b"
    assert visible("".join(hidden)).isascii()


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
        ("redis://ada:s3?cret@host/0", "redis://***"),
        ("redis://ada:s3#cret@host/0", "redis://***"),
        ("redis://ada:12/s3cret@host/0", "redis://***"),
        ("redis://ada:12?s3cret@host/0", "redis://***"),
        ("redis://a:s3@cret/s3cret@host/0", "redis://***"),
        ("https://x\\@ada:s3cret@host/", "https://***"),
        ("https://ada:s3%40cret%40host/", "https://***"),
        ("https://ada\uff1as3cret\uff20host/", "https://***"),
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


def test_a_text_that_is_hardly_a_url_is_read_once() -> None:
    """What a server says may be made for it: as a square of its length this would take an hour."""
    for text in ("a" * 2_000_000 + " ://", "a1+" * 700_000 + "\n://", "-" * 2_000_000 + "://"):
        assert hide_in_urls(text) == text


@pytest.mark.parametrize("before", ["", " ", "('", "1", "-", "+1."])
def test_a_url_is_found_behind_whatever_is_no_part_of_it(before: str) -> None:
    hidden = "https://***@a.example/?***"
    assert hide_in_urls(f"{before}https://ada:s3cret@a.example/?k=s3cret") == before + hidden


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
