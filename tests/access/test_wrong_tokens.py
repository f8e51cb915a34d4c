import pytest

from delayd.access.wrong_tokens import WrongTokens, network
from delayd.limits import (
    AUTH_DELAY_MS,
    AUTH_FAILURES_MAX,
    AUTH_FAILURES_WINDOW_MS,
    AUTH_PEERS_MAX,
)

PEER = "192.0.2.7"


def test_the_limit_is_ten_in_a_minute_and_then_a_second() -> None:
    assert (AUTH_FAILURES_MAX, AUTH_FAILURES_WINDOW_MS, AUTH_DELAY_MS) == (10, 60_000, 1_000)


def test_the_tenth_failure_within_a_minute_is_the_first_that_costs_a_delay() -> None:
    wrong_tokens = WrongTokens()
    for number in range(AUTH_FAILURES_MAX):
        assert wrong_tokens.delay_ms(PEER, number) == 0
        wrong_tokens.note(PEER, number)
    assert wrong_tokens.delay_ms(PEER, AUTH_FAILURES_MAX) == AUTH_DELAY_MS


def test_a_delay_ends_a_minute_after_the_first_of_the_latest_ten() -> None:
    wrong_tokens = WrongTokens()
    for time_ms in range(0, 11_000, 1_000):
        wrong_tokens.note(PEER, time_ms)
    first_ms = 1_000
    end_ms = first_ms + AUTH_FAILURES_WINDOW_MS
    assert wrong_tokens.delay_ms(PEER, end_ms - 1) == AUTH_DELAY_MS
    assert wrong_tokens.delay_ms(PEER, end_ms) == 0


def test_nine_in_a_minute_for_ever_cost_nothing() -> None:
    wrong_tokens = WrongTokens()
    for number in range(1_000):
        time_ms = number * AUTH_FAILURES_WINDOW_MS // (AUTH_FAILURES_MAX - 1)
        wrong_tokens.note(PEER, time_ms)
        assert wrong_tokens.delay_ms(PEER, time_ms) == 0


def test_one_address_does_not_delay_another() -> None:
    wrong_tokens = WrongTokens()
    for _ in range(100):
        wrong_tokens.note(PEER, 0)
    assert wrong_tokens.delay_ms("192.0.2.8", 0) == 0


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


def test_the_next_network_is_somebody_else() -> None:
    assert network("2001:db8:0:1::1") != network("2001:db8:0:2::1")


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


def test_it_is_said_once_that_a_peer_is_answered_late_and_again_when_it_begins_anew() -> None:
    wrong_tokens = WrongTokens()
    told = [wrong_tokens.note(PEER, time_ms) for time_ms in range(2 * AUTH_FAILURES_MAX)]
    assert told.index(True) == AUTH_FAILURES_MAX - 1
    assert told.count(True) == 1
    later_ms = 10 * AUTH_FAILURES_WINDOW_MS
    told = [wrong_tokens.note(PEER, later_ms + number) for number in range(2 * AUTH_FAILURES_MAX)]
    assert told.count(True) == 1
