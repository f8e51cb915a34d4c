from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayd.limits import WALL_MS_MAX
from delayd.moments import moment_text, parse_moment_ms, parse_time_s, time_text


@pytest.mark.parametrize(
    ("wall_ms", "expected"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (4_294_967_295_999, "2106-02-07T06:28:15.999Z"),
        (10**17, "9999-12-31T23:59:59.000Z"),  # the calendar's end
    ],
)
def test_timestamps_are_utc_with_milliseconds(wall_ms: int, expected: str) -> None:
    assert moment_text(wall_ms) == expected


@given(st.integers(0, WALL_MS_MAX // 1_000))
def test_a_time_that_is_written_is_read(epoch_s: int) -> None:
    assert parse_time_s(time_text(epoch_s)) == epoch_s


@pytest.mark.parametrize(
    ("read", "said", "value"),
    [
        (parse_time_s, "1970-01-01T00:00:00Z", 0),
        (parse_time_s, "1970-01-01t00:00:01.999z", 1),
        (parse_time_s, "1970-01-01 02:00:00+02:00", 0),
        (parse_time_s, "1969-12-31T23:00:00-01:00", 0),
        (parse_moment_ms, "1970-01-01T00:00:05Z", 5_000),
        (parse_moment_ms, "1970-01-01T00:00:00.0001Z", 1),
        (parse_moment_ms, 0.0001, 1),
        (parse_moment_ms, 1_795_287_600, 1_795_287_600_000),
    ],
)
def test_times_are_read_in_every_zone_and_moments_rounded_up_to_milliseconds(
    read: Callable[[object], int], said: object, value: int
) -> None:
    assert read(said) == value


@pytest.mark.parametrize(
    "value",
    [
        *("", "now", "2026-11-21", "2026-11-21T10:15Z", "٢026-11-21T10:15:00Z"),
        *("2026-11-21T19:00:00", "2026-W47-6T19:00:00Z", "2026-02-30T19:00:00Z", True, -1),
    ],
)
def test_other_values_are_no_times_and_no_moments(value: object) -> None:
    with pytest.raises(ValueError, match="must be a time with an offset"):
        parse_time_s(value)
    with pytest.raises(ValueError, match="must be"):
        parse_moment_ms(value)
