import pytest

from delayd.access.wrong_tokens import WrongTokens, network
from delayd.limits import AUTH_DELAY_MS, AUTH_FAILURES_MAX, AUTH_FAILURES_WINDOW_MS, AUTH_PEERS_MAX

PEER = "192.0.2.7"


def test_the_tenth_failure_within_a_minute_costs_a_delay_of_a_second_and_is_told_once() -> None:
    assert (AUTH_FAILURES_MAX, AUTH_FAILURES_WINDOW_MS, AUTH_DELAY_MS) == (10, 60_000, 1_000)
    wrong_tokens = WrongTokens()
    for start_ms in (0, 10 * AUTH_FAILURES_WINDOW_MS):
        delays, told = [], []
        for time_ms in range(start_ms, start_ms + 20_000, 1_000):
            delays.append(wrong_tokens.delay_ms(PEER, time_ms))
            told.append(wrong_tokens.note(PEER, time_ms))
        assert delays == [0] * 10 + [AUTH_DELAY_MS] * 10
        assert told == [False] * 9 + [True] + [False] * 10
        end_ms = start_ms + 10_000 + AUTH_FAILURES_WINDOW_MS  # after the first of the latest ten
        assert wrong_tokens.delay_ms(PEER, end_ms - 1) == AUTH_DELAY_MS
        assert wrong_tokens.delay_ms(PEER, end_ms) == 0
        assert wrong_tokens.delay_ms("192.0.2.8", end_ms - 1) == 0, "another address"


def test_nine_in_a_minute_for_ever_cost_nothing() -> None:
    wrong_tokens = WrongTokens()
    for number in range(1_000):
        time_ms = number * AUTH_FAILURES_WINDOW_MS // (AUTH_FAILURES_MAX - 1)
        wrong_tokens.note(PEER, time_ms)
        assert wrong_tokens.delay_ms(PEER, time_ms) == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff:ffff:ffff:ffff"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("fe80::1%eth0", "fe80::2"),
        ("127.0.0.1", "::1"),
        ("", "unix:/run/delayd.sock"),
    ],
)
def test_addresses_of_one_owner_count_as_one(one: str, other: str) -> None:
    wrong_tokens = WrongTokens()
    for number in range(AUTH_FAILURES_MAX):
        wrong_tokens.note((one, other)[number % 2], 0)
    assert wrong_tokens.delay_ms(one, 0) == wrong_tokens.delay_ms(other, 0) == AUTH_DELAY_MS
    assert network("2001:db8:0:1::1") != network("2001:db8:0:2::1"), "somebody else's"


@pytest.mark.thorough
def test_memory_is_bounded_and_the_one_who_was_quiet_for_longest_goes() -> None:
    wrong_tokens = WrongTokens()
    for number in range(AUTH_FAILURES_MAX):
        wrong_tokens.note("198.51.100.1", number)
        wrong_tokens.note("198.51.100.2", number)
    for number in range(AUTH_PEERS_MAX - 1):
        wrong_tokens.note(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 20)
        if number == AUTH_PEERS_MAX - 10:
            assert wrong_tokens.delay_ms("198.51.100.1", 20) == AUTH_DELAY_MS
            wrong_tokens.note("198.51.100.1", 20)
    assert len(wrong_tokens._times) == AUTH_PEERS_MAX
    assert wrong_tokens.delay_ms("198.51.100.1", 20) == AUTH_DELAY_MS
    assert wrong_tokens.delay_ms("198.51.100.2", 20) == 0
