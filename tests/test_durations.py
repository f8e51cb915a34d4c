import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayd.durations import DURATION_UNITS_MS, duration_text, parse_duration_ms, parse_size_bytes
from delayd.limits import DURATION_MS_MAX, QUANTITY_CHARACTERS_MAX

READ_MS = {
    0: 0, 15: 15_000, 0.05: 50, 1.1: 1_100, 0.0001: 1, 1e-9: 1, 5e-324: 1,
    2**32 - 1: DURATION_MS_MAX,
    "15": 15_000, "1.1": 1_100, " 15s ": 15_000, "50ms": 50, "0s": 0, "1h30m": 5_400_000,
    "1h 30m": 5_400_000, "1w2d3h4m5s6ms": 788_645_006, "7d": 604_800_000, "1.5s": 1_500,
    "0.1ms": 1, "0.0000000000000000000000001s": 1,
}  # fmt: skip


@pytest.mark.parametrize(("written", "expected_ms"), READ_MS.items())
def test_durations_become_milliseconds(written: object, expected_ms: int) -> None:
    assert parse_duration_ms(written) == expected_ms


@pytest.mark.parametrize(
    "written",
    [
        *("", " ", "s", "-1", "-1s", "+1", "1e3", "1 5", "1x", "5m1h", "1s1s", "1,5s", ".5s"),
        *("5.s", "\N{ARABIC-INDIC DIGIT ONE}s", "15S", "1s\0", "4294967296", "99999w"),
        *("1" * (QUANTITY_CHARACTERS_MAX + 1), "1s" + " " * (QUANTITY_CHARACTERS_MAX - 1)),
        *(-1, -0.001, 2**32, 1e300, float("nan"), float("inf"), float("-inf"), 10**400),
        *(True, None, [], {}, b"15s"),
    ],
    ids=repr,
)
def test_other_durations_are_refused_with_the_rule(written: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_duration_ms(written)


@given(st.integers(0, DURATION_MS_MAX))
def test_a_duration_is_read_in_units_and_in_seconds_and_as_it_is_written(duration_ms: int) -> None:
    words, rest_ms = "", duration_ms
    for unit, unit_ms in DURATION_UNITS_MS.items():
        count, rest_ms = divmod(rest_ms, unit_ms)
        words += f"{count}{unit}" if count else ""
    seconds = f"{duration_ms // 1000}.{duration_ms % 1000:03d}"
    for written in (words or "0s", seconds, float(seconds), duration_text(duration_ms)):
        assert parse_duration_ms(written) == duration_ms


READ_BYTES = {
    0: 0, 65_535: 65_535, "65535": 65_535, "10B": 10, "64KiB": 65_536, "64kib": 65_536,
    "1 MiB": 1_048_576, "1GiB": 1 << 30, "1TiB": 1 << 40, "10kB": 10_000, "1.5MB": 1_500_000,
    "1GB": 10**9, "1TB": 10**12, "0.0001kB": 1,
}  # fmt: skip


@pytest.mark.parametrize(("written", "expected_bytes"), READ_BYTES.items())
def test_sizes_become_bytes(written: object, expected_bytes: int) -> None:
    assert parse_size_bytes(written) == expected_bytes


@pytest.mark.parametrize(
    "written",
    [
        *("", "B", "-1", "1.5.5", "1XB", "1Ki", "1 2", "1MiB2"),
        "1" * (QUANTITY_CHARACTERS_MAX + 1),
        *(-1, 1.5, True, None, [], b"1"),
    ],
    ids=repr,
)
def test_other_sizes_are_refused_with_the_rule(written: object) -> None:
    with pytest.raises(ValueError, match="must be bytes"):
        parse_size_bytes(written)
