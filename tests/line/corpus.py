"""What clients say on the line and what they get: one row for each fact about commands and replies.

The rows come from `docs/protocol.md` and from what Debian's beanstalkd was seen to answer. Each
starts with an empty daemon that accepts bodies of up to 20 bytes; all its commands come in one
packet, or in any pieces. `sent` and `replies` are lines, to each of which CRLF is added.
"""

from typing import Final, NamedTuple

BODY_BYTES_MAX: Final = 20


class Exchange(NamedTuple):
    fact: str
    sent: tuple[bytes, ...]
    replies: tuple[bytes, ...]

    def __str__(self) -> str:
        return self.fact

    @property
    def request(self) -> bytes:
        return b"".join(line + b"\r\n" for line in self.sent)

    @property
    def response(self) -> bytes:
        return b"".join(line + b"\r\n" for line in self.replies)


def each(fact: str, reply: bytes, *lines: bytes) -> Exchange:
    """An exchange in which every line gets the same reply."""
    return Exchange(fact, lines, (reply,) * len(lines))


def yaml(*lines: str) -> tuple[bytes, bytes]:
    body = "".join(f"{line}\n" for line in ("---", *lines)).encode()
    return b"OK %d" % len(body), body


HI: Final = (b"put 0 0 60 2", b"hi")
LATER: Final = (b"put 0 100 60 2", b"hi")
NAME_200: Final = b"n" * 200

PUTTING: Final = (
    Exchange("a job is put", HI, (b"INSERTED 1",)),
    Exchange("ids are in sequence", HI * 3, (b"INSERTED 1", b"INSERTED 2", b"INSERTED 3")),
    Exchange(
        "a body may hold CRLF",
        (b"put 0 0 60 8", b"a\r\nb\r\n\r\n", b"peek 1"),
        (b"INSERTED 1", b"FOUND 1 8", b"a\r\nb\r\n\r\n"),
    ),
    Exchange(
        "a body may hold commands",
        (b"put 0 0 60 9", b"reserve\r\n", b"peek 1"),
        (b"INSERTED 1", b"FOUND 1 9", b"reserve\r\n"),
    ),
    Exchange(
        "a body may hold any byte",
        (b"put 0 0 60 5", b"\0\r\xff\n\0", b"reserve"),
        (b"INSERTED 1", b"RESERVED 1 5", b"\0\r\xff\n\0"),
    ),
    Exchange(
        "a body may be empty",
        (b"put 0 0 60 0", b"", b"put 0 0 60 0", b"", b"reserve"),
        (b"INSERTED 1", b"INSERTED 2", b"RESERVED 1 0", b""),
    ),
    Exchange(
        "the longest body is accepted",
        (b"put 0 0 60 20", b"x" * 20),
        (b"INSERTED 1",),
    ),
    Exchange(
        "a body one byte too long is swallowed and takes no id",
        (b"put 0 0 60 21", b"x" * 21, *HI),
        (b"JOB_TOO_BIG", b"INSERTED 1"),
    ),
    Exchange(
        "a body that is too long is swallowed even with junk behind its length",
        (b"put 0 0 60 21x", b"x" * 21, *HI),
        (b"JOB_TOO_BIG", b"INSERTED 1"),
    ),
    Exchange(
        "too long bodies in a row",
        (b"put 0 0 60 300", b"x" * 300) * 2 + (b"list-tube-used",),
        (b"JOB_TOO_BIG", b"JOB_TOO_BIG", b"USING default"),
    ),
    Exchange(
        "a body without CRLF takes its bytes and two more, and an id",
        (b"put 0 0 60 2", b"hixxlist-tube-used", *HI),
        (b"EXPECTED_CRLF", b"USING default", b"INSERTED 2"),
    ),
    Exchange(
        "a body with CR and something else behind it",
        (b"put 0 0 60 2", b"hi\rxlist-tube-used"),
        (b"EXPECTED_CRLF", b"USING default"),
    ),
    Exchange(
        "a wrong body in the middle of equal puts",
        (*HI, b"put 0 0 60 2", b"hiyy" + HI[0], HI[1], *HI),
        (b"INSERTED 1", b"EXPECTED_CRLF", b"INSERTED 3", b"INSERTED 4"),
    ),
    Exchange(
        "the body of a malformed put is taken for a command",
        (b"put 0 0 60 2 x", b"hi", *HI),
        (b"BAD_FORMAT", b"UNKNOWN_COMMAND", b"INSERTED 1"),
    ),
    each(
        "malformed puts",
        b"BAD_FORMAT",
        b"put ",
        b"put 0",
        b"put 0 0 0",
        b"put 0 0 0 ",
        b"put 0 0 0 x",
        b"put 0 0 0 1 ",
        b"put 0 0 0 1\t",
        b"put 0 0 0 -1",
        b"put +0 0 0 1",
        b"put 0,0,0,1",
        b"put 0\t0 0 1",
        b"put 0x1 0 0 1",
        b"put 0.5 0 0 1",
        b"put 0 1. 0 1",
        b"put 0 .5 0 1",
        b"put 0 0 1e3 1",
        b"put 4294967296 0 0 1",
        b"put 0 4294967296 0 1",
        b"put 0 4294967295.001 0 1",
        b"put 0 0 4294967296 1",
        b"put 0 0 0 4294967296",
        b"put 0 0 0 1\0",
        b"put 0 0 0 99\0",
        b"put 0 0 0 1.0",
    ),
    Exchange(
        "numbers at their bounds, with zeros and spaces before them",
        (b"put  4294967295   0004294967295 4294967295 0000000001", b"x", b"peek 1"),
        (b"INSERTED 1", b"FOUND 1 1", b"x"),
    ),
    Exchange(
        "no ttr is one second",
        (b"put 7 0 0 0", b"", b"stats-job 1"),
        (
            b"INSERTED 1",
            *yaml(
                *("id: 1", 'tube: "default"', "state: ready", "pri: 7", "age: 0", "delay: 0"),
                *("ttr: 1", "time-left: 0", "file: 0", "reserves: 0", "timeouts: 0"),
                *("releases: 0", "buries: 0", "kicks: 0"),
            ),
        ),
    ),
    Exchange(
        "a put goes to the tube in use",
        (b"use a", *HI, b"watch a", b"ignore default", b"reserve"),
        (b"USING a", b"INSERTED 1", b"WATCHING 2", b"WATCHING 1", b"RESERVED 1 2", b"hi"),
    ),
)

RESERVING: Final = (
    Exchange(
        "the most urgent job comes first, then the oldest",
        (b"put 5 0 60 1", b"a", b"put 1 0 60 1", b"b", b"put 1 0 60 1", b"c", *(b"reserve",) * 3),
        (
            *(b"INSERTED 1", b"INSERTED 2", b"INSERTED 3"),
            *(b"RESERVED 2 1", b"b", b"RESERVED 3 1", b"c", b"RESERVED 1 1", b"a"),
        ),
    ),
    Exchange(
        "no wait is an answer at once",
        (b"reserve-with-timeout 0", b"reserve-with-timeout  0.0", b"reserve-with-timeout 00"),
        (b"TIMED_OUT",) * 3,
    ),
    Exchange(
        "putting and reserving in turns",
        (*HI, b"reserve") * 2,
        (b"INSERTED 1", b"RESERVED 1 2", b"hi", b"INSERTED 2", b"RESERVED 2 2", b"hi"),
    ),
    Exchange(
        "a job with one second to run is in danger at once",
        (b"put 0 0 1 0", b"", b"reserve", b"reserve", b"reserve-with-timeout 0"),
        (b"INSERTED 1", b"RESERVED 1 0", b"", b"DEADLINE_SOON", b"DEADLINE_SOON"),
    ),
    Exchange(
        "a ready job goes before the warning",
        (b"put 0 0 1 0", b"", *HI, b"reserve", b"reserve", b"reserve"),
        (
            *(b"INSERTED 1", b"INSERTED 2", b"RESERVED 1 0", b"", b"RESERVED 2 2", b"hi"),
            b"DEADLINE_SOON",
        ),
    ),
    Exchange(
        "a job is reserved by its id, whatever its state",
        (*LATER, b"reserve-job 1", b"bury 1 0", b"reserve-job 1", b"reserve-job 1"),
        (b"INSERTED 1", b"RESERVED 1 2", b"hi", b"BURIED", b"RESERVED 1 2", b"hi", b"NOT_FOUND"),
    ),
    Exchange(
        "a batch of what is ready",
        (*HI * 3, b"reserve-batch 2 0", b"reserve-batch 10 0.5", b"reserve-batch 1 0"),
        (
            *(b"INSERTED 1", b"INSERTED 2", b"INSERTED 3"),
            *(b"RESERVED_BATCH 2", b"RESERVED 1 2", b"hi", b"RESERVED 2 2", b"hi"),
            *(b"RESERVED_BATCH 1", b"RESERVED 3 2", b"hi", b"TIMED_OUT"),
        ),
    ),
    Exchange(
        "a batch with the details that it asks for, in that order",
        (
            *(*HI, b"put 0 0 2.5 0", b"", b"reserve-batch 1 0 with=ttr", b"release 1 0 0"),
            *(b"reserve-batch 10 0 with=tube,attempt,ttr", b"reserve-batch 1 0 with=ttr"),
        ),
        (
            *(b"INSERTED 1", b"INSERTED 2", b"RESERVED_BATCH 1", b"RESERVED 1 2 60", b"hi"),
            *(b"RELEASED", b"RESERVED_BATCH 2", b"RESERVED 1 2 default 2 60", b"hi"),
            *(b"RESERVED 2 0 default 1 2.500", b"", b"TIMED_OUT"),
        ),
    ),
    Exchange(
        "details of a batch are known ones, each once",
        (
            *(*HI, b"reserve-batch 1 0 with=", b"reserve-batch 1 0 with=ttr,ttr"),
            *(b"reserve-batch 1 0 with=body", b"reserve-batch 1 0 ttr", b"reserve"),
        ),
        (b"INSERTED 1", *[b"BAD_FORMAT"] * 4, b"RESERVED 1 2", b"hi"),
    ),
    Exchange(
        "a batch is of one at least",
        (*HI, b"reserve-batch 0 0", b"reserve-batch 1", b"reserve-batch 1 x", b"reserve"),
        (b"INSERTED 1", b"BAD_FORMAT", b"BAD_FORMAT", b"BAD_FORMAT", b"RESERVED 1 2", b"hi"),
    ),
    Exchange(
        "after an empty batch a reserve is one again",
        (b"reserve-batch 5 0", *HI, b"reserve"),
        (b"TIMED_OUT", b"INSERTED 1", b"RESERVED 1 2", b"hi"),
    ),
    Exchange(
        "a paused tube hands out nothing",
        (*HI, b"pause-tube default 0.001", b"reserve-with-timeout 0", b"peek-ready"),
        (b"INSERTED 1", b"PAUSED", b"TIMED_OUT", b"FOUND 1 2", b"hi"),
    ),
    Exchange(
        "a pause of 0 ends the pause",
        (*HI, b"pause-tube default 100", b"pause-tube default 0", b"reserve-with-timeout 0"),
        (b"INSERTED 1", b"PAUSED", b"PAUSED", b"RESERVED 1 2", b"hi"),
    ),
)

HOLDING: Final = (
    Exchange(
        "a held job is released, buried, touched and deleted by its holder",
        (
            *(*HI, b"reserve", b"touch 1", b"release 1 5 0", b"reserve", b"bury 1 9"),
            *(b"reserve-with-timeout 0", b"kick 1", b"reserve", b"delete 1", b"peek 1"),
        ),
        (
            *(b"INSERTED 1", b"RESERVED 1 2", b"hi", b"TOUCHED", b"RELEASED"),
            *(b"RESERVED 1 2", b"hi", b"BURIED", b"TIMED_OUT", b"KICKED 1"),
            *(b"RESERVED 1 2", b"hi", b"DELETED", b"NOT_FOUND"),
        ),
    ),
    Exchange(
        "what nobody holds cannot be released, buried or touched",
        (*HI, b"release 1 0 0", b"bury 1 0", b"touch 1", b"release 2 0 0", b"bury 2 0", b"touch 2"),
        (b"INSERTED 1", *(b"NOT_FOUND",) * 6),
    ),
    Exchange(
        "a release may delay",
        (*HI, b"reserve", b"release 1 0 0.5", b"reserve-with-timeout 0", b"peek-delayed"),
        (b"INSERTED 1", b"RESERVED 1 2", b"hi", b"RELEASED", b"TIMED_OUT", b"FOUND 1 2", b"hi"),
    ),
    Exchange(
        "deletes in a row, one of them twice",
        (*HI * 3, b"delete 1", b"delete 1", b"delete 3", b"delete 0", b"delete  2", b"delete 9"),
        (
            *(b"INSERTED 1", b"INSERTED 2", b"INSERTED 3"),
            *(b"DELETED", b"NOT_FOUND", b"DELETED", b"NOT_FOUND", b"DELETED", b"NOT_FOUND"),
        ),
    ),
    each(
        "malformed commands of a holder",
        b"BAD_FORMAT",
        b"delete ",
        b"delete x",
        b"delete -1",
        b"delete 1 ",
        b"delete 1 1",
        b"delete 18446744073709551616",
        b"touch ",
        b"touch 1 ",
        b"bury 1",
        b"bury 1 4294967296",
        b"bury 18446744073709551616 0",
        b"release 1 1",
        b"release 1 1 ",
        b"release 1 1 1 1",
        b"release 1 4294967296 1",
        b"release 1 1 4294967296",
        b"release 1 1 1.",
    ),
    each(
        "the highest id is an id",
        b"NOT_FOUND",
        b"delete 18446744073709551615",
        b"peek 18446744073709551615",
        b"touch   00018446744073709551615",
        b"release 18446744073709551615 4294967295 4294967295",
        b"bury  18446744073709551615  4294967295",
        b"kick-job 18446744073709551615",
        b"reserve-job 18446744073709551615",
        b"stats-job 18446744073709551615",
        b"reschedule 18446744073709551615 4294967295",
    ),
)

LOOKING: Final = (
    Exchange(
        "the next ready, delayed and buried job is shown",
        (
            *(*HI, b"put 0 9 60 1", b"c", b"put 0 5 60 1", b"d", b"peek-ready", b"peek-delayed"),
            *(b"peek-buried", b"reserve-job 2", b"bury 2 0", b"peek-buried", b"peek 3"),
        ),
        (
            *(b"INSERTED 1", b"INSERTED 2", b"INSERTED 3", b"FOUND 1 2", b"hi", b"FOUND 3 1", b"d"),
            *(b"NOT_FOUND", b"RESERVED 2 1", b"c", b"BURIED", b"FOUND 2 1", b"c", b"FOUND 3 1"),
            b"d",
        ),
    ),
    Exchange(
        "nothing is there to be shown",
        (b"peek-ready", b"peek-delayed", b"peek-buried", b"peek 1", b"stats-job 1"),
        (b"NOT_FOUND",) * 5,
    ),
    Exchange(
        "kicking takes the buried, and only without them the delayed",
        (
            *(*HI * 2, *LATER, b"reserve", b"bury 1 0", b"reserve", b"bury 2 0"),
            *(b"kick 1", b"kick 10", b"kick 10", b"kick 10", b"kick-job 1", b"kick-job 9"),
        ),
        (
            *(b"INSERTED 1", b"INSERTED 2", b"INSERTED 3"),
            *(b"RESERVED 1 2", b"hi", b"BURIED", b"RESERVED 2 2", b"hi", b"BURIED"),
            *(b"KICKED 1", b"KICKED 1", b"KICKED 1", b"KICKED 0", b"NOT_FOUND", b"NOT_FOUND"),
        ),
    ),
    Exchange(
        "a job is kicked by its id",
        (*LATER, b"kick-job 1", b"peek-ready"),
        (b"INSERTED 1", b"KICKED", b"FOUND 1 2", b"hi"),
    ),
    Exchange(
        "a waiting job gets another time",
        (*HI, b"reschedule 1 9", b"peek-ready", b"reschedule 1 0", b"peek-ready", b"reschedule 1"),
        (
            *(b"INSERTED 1", b"RESCHEDULED", b"NOT_FOUND", b"RESCHEDULED", b"FOUND 1 2", b"hi"),
            b"BAD_FORMAT",
        ),
    ),
    Exchange(
        "a job in hand keeps its time",
        (*HI, b"reserve", b"reschedule 1 9"),
        (b"INSERTED 1", b"RESERVED 1 2", b"hi", b"NOT_FOUND"),
    ),
)

TUBES: Final = (
    Exchange(
        "tubes are used, watched, ignored and listed",
        (
            *(b"use a", b"watch b", b"watch b", b"ignore c", b"list-tubes", b"list-tubes-watched"),
            *(b"list-tube-used", b"ignore default", b"ignore b", b"list-tubes-watched", b"use b"),
            b"list-tubes",
        ),
        (
            *(b"USING a", b"WATCHING 2", b"WATCHING 2", b"WATCHING 2"),
            *yaml("- default", "- a", "- b"),
            *yaml("- default", "- b"),
            *(b"USING a", b"WATCHING 1", b"NOT_IGNORED"),
            *yaml("- b"),
            b"USING b",
            *yaml("- default", "- b"),
        ),
    ),
    Exchange(
        "names may have 200 characters of the right kind",
        (b"use " + NAME_200, b"use A-Za-z0-9+/;.$_()", b"watch " + NAME_200, b"use " + NAME_200),
        (b"USING " + NAME_200, b"USING A-Za-z0-9+/;.$_()", b"WATCHING 2", b"USING " + NAME_200),
    ),
    each(
        "bad names",
        b"BAD_FORMAT",
        b"use ",
        b"use -a",
        b"use a:b",
        b"use a b",
        b"use  a",
        b"use a\0",
        b"use a\n",
        b"use \xc3\xa4",
        b"use a" + NAME_200,
        b"watch -a",
        b"ignore a@b",
        b"stats-tube a:b",
        b"stats-tube  default",
        b"put-in-tube -a",
        b"put-in-tube  a",
        b"pause-tube -a 1",
        b"pause-tube a" + NAME_200 + b" 1",
    ),
    Exchange(
        "a pause needs a tube that is there and a whole or broken number of seconds",
        (
            *(b"pause-tube default 1.5", b"pause-tubedefault 0", b"pause-tube  default  0"),
            *(b"pause-tube nope 1", b"pause-tube nope x", b"pause-tube default", b"pause-tube"),
            *(b"pause-tube default 1 ", b"pause-tube default 4294967296", b"pause-tube default\t0"),
        ),
        (*(b"PAUSED",) * 3, b"NOT_FOUND", *(b"BAD_FORMAT",) * 6),
    ),
    Exchange(
        "a job is put into a tube by name",
        (
            *(b"put-in-tube a 0 0 60 2", b"hi", b"list-tube-used", b"watch a"),
            *(b"put-in-tube b 0 0.5 60 2", b"hi", b"reserve", b"list-tubes", b"peek 2"),
        ),
        (
            *(b"INSERTED 1", b"USING default", b"WATCHING 2", b"INSERTED 2", b"RESERVED 1 2"),
            b"hi",
            *yaml("- default", "- a", "- b"),
            *(b"FOUND 2 2", b"hi"),
        ),
    ),
    Exchange(
        "putting into a tube is refused as any put is",
        (
            *(b"put-in-tube", b"put-in-tube a", b"put-in-tube a 0 0 0"),
            *(b"put-in-tube a 0 0 60 21", b"x" * 21, b"put-in-tube a 0 0 60 1", b"xxxlist-tubes"),
        ),
        (
            *(b"UNKNOWN_COMMAND", *(b"BAD_FORMAT",) * 2, b"JOB_TOO_BIG", b"EXPECTED_CRLF"),
            *yaml("- default"),
        ),
    ),
    Exchange(
        "the body of a malformed put into a tube is swallowed",
        (
            *(b"put-in-tube a 0 0 0 0 x", b"", b"put-in-tube -a 0 0 0 4", b"quit"),
            *(b"put-in-tube  a 0 0 0 4", b"quit", b"put-in-tube a b 0 0 0 4", b"quit"),
            *(b"put-in-tube a 0 0 4294967296 4", b"quit", b"put-in-tube a x 0 0 4", b"quit"),
            *(b"put-in-tube a 0 0 0 4 ", b"quit", b"put-in-tube a 0 0 0 4x=1", b"quit"),
            *(b"put-in-tube a\0 0 0 0 4", b"quit", b"put-in-tube a 0 0 0 4 key", b"quit"),
            b"list-tube-used",
        ),
        ((b"BAD_FORMAT",) * 10 + (b"USING default",)),
    ),
    each("a tube that is not there has no statistics", b"NOT_FOUND", b"stats-tube a"),
)

WORDS: Final = (
    each(
        "unknown commands",
        b"UNKNOWN_COMMAND",
        *(b"", b" ", b"x", b"PUT 0 0 0 0", b"Stats", b" stats", b"put", b"peek", b"peekx"),
        *(b"peek-", b"peek-x", b"kick", b"kick-job", b"kick-jobs1", b"kickx", b"touch", b"bury"),
        *(b"release", b"delete", b"use", b"watch", b"ignore", b"list", b"list-tube", b"delete\t1"),
        *(
            b"put\t0 0 0 1",
            b"reschedule",
            b"put-in-tube",
            b"GET",
            b"hello world",
            b"\xff\xfe",
            b"list\n",
        ),
    ),
    each(
        "a known word with something behind it",
        b"BAD_FORMAT",
        *(b"stats-job", b"stats-tube", b"stats-tubes", b"statsx", b"stats ", b"stats\t"),
        *(b"reserve ", b"reserve-", b"reserve-job", b"reserve-jobs 1", b"reserve-with-timeoutx 0"),
        *(b"reserve-with-timeout", b"reserve-mode fifo", b"list-tubes ", b"list-tubes-used"),
        *(b"list-tube-used ", b"list-tubes-watched ", b"peek-ready ", b"peek-readyx"),
        *(b"peek-delayed ", b"peek-buriedx", b"pause-tube", b"pause-tubedefault", b"reserve\n"),
        *(b"peek ", b"delete ", b"touch ", b"use ", b"watch ", b"ignore ", b"stats-tube "),
        *(b"reserve-with-timeout ", b"reserve-with-timeout x", b"reserve-with-timeout -1"),
        *(b"reserve-with-timeout 2147483648", b"reserve-with-timeout 5s"),
        *(b"kick ", b"kick x", b"reserve-job ", b"kick-job ", b"kick-job 1 1", b"stats-job x"),
    ),
    each(
        "a NUL in a line comes before everything else",
        b"BAD_FORMAT",
        *(b"\0", b"x\0", b"quit\0", b"kick 1\0", b"reserve-with-timeout 0\0", b"peek 1\0"),
        *(b"put 0 0 60 300\0", b"delete 1\0", b"stats\0", b"list-tube-used\0", b"G\0ET /"),
    ),
    Exchange(
        "a line feed alone ends nothing",
        (b"list-tube-used\nlist-tube-used", b"list-tube-used"),
        (b"BAD_FORMAT", b"USING default"),
    ),
    Exchange(
        "quitting is answered by nothing", (b"list-tube-used", b"quit", *HI), (b"USING default",)
    ),
    Exchange("whatever begins with quit quits", (b"quitfoo", b"list-tube-used"), ()),
    Exchange("a line too long", (b"x" * 300, *HI), (b"BAD_FORMAT", b"INSERTED 1")),
    Exchange(
        "the longest line", (b"y" * 222, b"list-tube-used"), (b"UNKNOWN_COMMAND", b"USING default")
    ),
    Exchange(
        "a line one byte too long swallows the next",
        (b"x" * 223, b"list-tube-used", b"list-tube-used"),
        (b"BAD_FORMAT", b"USING default"),
    ),
)

EXCHANGES: Final = (*PUTTING, *RESERVING, *HOLDING, *LOOKING, *TUBES, *WORDS)
