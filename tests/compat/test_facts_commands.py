"""How commands are read and refused: facts that hold for beanstalkd and for delayd alike."""

from typing import Final

import pytest

from tests.compat.conftest import Connect
from tests.line_client import LineClient

BAD: Final = "BAD_FORMAT"
UNKNOWN: Final = "UNKNOWN_COMMAND"

REFUSALS: Final = (
    (UNKNOWN, "nont10knowncommand", "", " ", "PUT 0 0 0 0", "put", "delete", "kick", "kick-job"),
    (
        UNKNOWN,
        "peek",
        "peek-",
        "peekx",
        "kick-jobs1",
        "delete\t1",
        " stats",
        "list",
        "use",
        "tick",
    ),
    (
        BAD,
        "put ",
        "put x",
        "put 0 0 0",
        "put 0 0 0 ",
        "put 0 0 0 x",
        "put 0 0 0 1 1",
        "put 0 0 0 1 ",
    ),
    (BAD, "put -1 0 100 1", "put 512 -1 100 0", "put 0 0 -1 0", "put 0 0 0 -1", "put +1 0 0 0"),
    (BAD, "put 4294967296 0 100 1", "put 0 4294967296 0 1", "put 0 0 4294967296 1"),
    (BAD, "put 0 0 0 4294967296", "put 0 0 0 10b", "put 0 0 0 --!@#$%^&&**()0b"),
    (BAD, "put -1kkdj9djjkd9 0 100 1", "put 0,0,0,1", "put 0\t0 0 1"),
    (BAD, "peek ", "peek foo111", "peek 111foo", "peek -1", "peek 1 ", "peek 18446744073709551616"),
    (BAD, "peek 184467440737095516160000000000000000000000000000", "peek-ready ", "peek-readyx"),
    (BAD, "peek-delayed 1", "peek-buried x", "delete ", "delete foo111", "delete 111foo"),
    (BAD, "delete 18446744073709551616", "delete 1844674407370955161600000000000000000000000000"),
    (BAD, "release 18446744073709551616 1 1", "release foo111", "release 111foo", "release 1 1"),
    (BAD, "release 18446744073709551615 abc 1", "release 18446744073709551615 1 abc"),
    (BAD, "release 1 4294967296 0", "release 1 0 4294967296", "release 1 0 -1", "release 1 1 1 "),
    (BAD, "bury 111abc 2", "bury 111", "bury 111 222abc", "bury 1 4294967296", "bury 1 1 "),
    (BAD, "kick-job a111", "kick-job 111a", "kick-job !@#!@#", "kick-job ", "kick-job -1"),
    (BAD, "touch a111", "touch 111a", "touch !@#!@#", "touch ", "touch 1 "),
    (BAD, "kick ", "kick x", "kick 18446744073709551616"),
    (BAD, "reserve ", "reservex", "reserve 5", "reserve-", "reserve-mode fifo", "reserve-job"),
    (BAD, "reserve-job ", "reserve-job x", "reserve-job 1x", "reserve-with-timeout"),
    (BAD, "reserve-with-timeoutx 0", "reserve-with-timeout 99999999999999999999"),
    (
        BAD,
        "stats x",
        "statsx",
        "stats ",
        "stats-job",
        "stats-job ",
        "stats-job 111ABC",
        "stats-tube",
    ),
    (BAD, "stats-job 111 222", "stats-tube ", "stats-tube -a", "stats-tube  a", "stats-tube a:b"),
    (BAD, "list-tubesx", "list-tubes ", "list-tubes-watched x", "list-tube-used "),
    (BAD, "use ", "use -a", "use a b", "use a ", "use  a", "use a:b", "use a@b", "use \xe9"),
    (BAD, "watch ", "watch -a", "ignore ", "ignore -a", f"use {'a' * 201}", f"watch {'a' * 201}"),
    (BAD, "pause-tube", "pause-tube default", "pause-tube default x", "pause-tube default -1"),
    (BAD, "pause-tube default 1 ", "pause-tube default 4294967296", "pause-tube -a 1"),
    (BAD, f"pause-tube {'a' * 201} 1", "stats\0", "\0", "unknown\0"),
    ("NOT_FOUND", "peek 0", "peek 18446744073709551615", "peek  9999999", "touch 100000000000000"),
    ("NOT_FOUND", "delete 18446744073709551615", "release 9999999 1 1", "bury 9999999 1"),
    ("NOT_FOUND", "kick-job 9999999", "reserve-job 9999999", "stats-job 9999999"),
    (
        "NOT_FOUND",
        "stats-tube nowhere",
        "pause-tube nowhere 1",
        f"pause-tube {'a' * 200} 4294967295",
    ),
    ("NOT_FOUND", "peek-ready", "peek-delayed", "peek-buried", "touch 0", "bury  1  1"),
)


@pytest.mark.parametrize(("refusal", "commands"), [(row[0], row[1:]) for row in REFUSALS])
def test_a_bad_command_is_refused_and_the_connection_goes_on(
    client: LineClient, refusal: str, commands: tuple[str, ...]
) -> None:
    for command in commands:
        assert (command, client.ask(command)) == (command, refusal)
    assert client.ask("list-tube-used") == "USING default"


def test_the_longest_line_has_224_bytes(client: LineClient) -> None:
    assert client.ask("x" * 222) == "UNKNOWN_COMMAND"
    assert client.ask("x" * 224) == "BAD_FORMAT"
    assert client.ask(f"pause-tube {'a' * 200} 4294967295") == "NOT_FOUND"


def test_a_line_that_is_too_long_is_refused_once_when_it_ends(connect: Connect) -> None:
    client, witness = connect(), connect()
    for _ in range(5):
        client.send(b"a" * 50)
    assert witness.ask("list-tube-used") == "USING default"
    assert not client.something_came()
    client.send(b"\r\nlist-tube-used\r\n")
    assert client.reply() == b"BAD_FORMAT\r\n"
    assert client.reply() == b"USING default\r\n"


def test_a_line_feed_alone_ends_no_command(client: LineClient) -> None:
    client.send(b"list-tube-used\nlist-tube-used\r\nlist-tube-used\r\n")
    assert client.reply() == b"BAD_FORMAT\r\n"
    assert client.reply() == b"USING default\r\n"


def test_two_commands_in_one_packet_are_answered_in_order(client: LineClient) -> None:
    client.send(b"use a\r\nuse b\r\n")
    assert client.reply() == b"USING a\r\n"
    assert client.reply() == b"USING b\r\n"


@pytest.mark.parametrize("name", ["x_y", "a-+/;.$_()9Z", "a" * 200, "+a", "0"])
def test_a_legal_tube_name_is_taken(client: LineClient, name: str) -> None:
    assert client.ask(f"use {name}") == f"USING {name}"
    assert client.ask(f"watch {name}") == "WATCHING 2"
    assert client.ask(f"pause-tube {name} 0") == "PAUSED"


def test_commands_are_told_apart_by_their_beginning(connect: Connect) -> None:
    client, leaver = connect(), connect()
    assert client.ask("pause-tubedefault 0") == "PAUSED"
    assert client.ask("pause-tube  default  0") == "PAUSED"
    assert client.ask("kick 10abc") == "KICKED 0"
    leaver.send(b"quitfoo\r\n")
    assert leaver.reply() == b""


def test_leading_zeros_and_spaces_are_part_of_a_number(client: LineClient) -> None:
    client.send(b"put  00000000000000000000000000001  0  0  0001\r\na\r\n")
    _word, job = client.reply().split()
    assert client.ask(f"peek  000000000000000000000000{int(job)}") == f"FOUND {int(job)} 1\r\na"


def test_a_kick_of_minus_one_kicks_everything(client: LineClient) -> None:
    for _ in range(3):
        client.put(delay=100)
    assert client.ask("kick 4294967297") == "KICKED 1"  # 2^32 + 1
    assert client.ask("kick -1") == "KICKED 2"


def test_a_body_without_its_crlf_is_refused_and_what_follows_is_a_command(
    client: LineClient,
) -> None:
    client.send(b"put 0 0 0 3\r\nabcxxlist-tube-used\r\n")
    assert client.reply() == b"EXPECTED_CRLF\r\n"
    assert client.reply() == b"USING default\r\n"


def test_a_refused_put_line_leaves_its_body_to_be_read_as_a_command(client: LineClient) -> None:
    client.send(b"put x 0 0 14\r\nlist-tube-used\r\n")
    assert client.reply() == b"BAD_FORMAT\r\n"
    assert client.reply() == b"USING default\r\n"


def test_a_body_that_is_too_big_is_swallowed(client: LineClient) -> None:
    client.send(b"put 0 0 0 65536\r\n" + b"delete 9999\r\n" * 5041 + b"xxx\r\n")
    client.send(b"put 0 0 0 1\r\nx\r\n")
    assert client.reply() == b"JOB_TOO_BIG\r\n"
    assert client.reply().startswith(b"INSERTED ")


def test_the_biggest_body_is_taken_and_given_back(client: LineClient) -> None:
    body = bytes(range(256)) * 255 + b"\r\n" * 127 + b"!"
    job = client.put(body)
    assert client.ask("reserve") == f"RESERVED {job} 65535\r\n{body.decode('latin-1')}"


def test_an_id_is_used_up_by_a_body_that_is_refused_but_not_by_one_that_is_too_big(
    client: LineClient,
) -> None:
    first = client.put()
    client.send(b"put 0 0 0 0\r\nxx")
    assert client.reply() == b"EXPECTED_CRLF\r\n"
    assert client.put() == first + 2
    assert client.ask("put 0 0 0", b"x" * 65536) == "JOB_TOO_BIG"
    assert client.put() == first + 3


def test_commands_are_counted_once_their_arguments_are_read(client: LineClient) -> None:
    names = ("put", "delete", "touch", "bury", "release", "peek", "kick", "use", "pause-tube")

    def counted() -> list[int]:
        stats = client.stats()
        return [int(stats[f"cmd-{name}"]) for name in names]

    before = counted()
    for command in ("delete 0", "touch 0", "bury 0 0", "release 0 0 0", "peek 0", "kick 0"):
        client.ask(command)
    for command in ("use default", "pause-tube nowhere 1", "put 0 0 0 5 5"):
        client.ask(command)
    once = counted()
    assert once == [count + 1 for count in before]
    for command in ("delete x", "touch x", "bury 1", "release 1", "peek x", "kick x", "use -x"):
        assert client.ask(command) == BAD
    assert client.ask("pause-tube a x") == client.ask("put x") == BAD
    assert counted() == once
