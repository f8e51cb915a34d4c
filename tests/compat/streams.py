"""Random commands, good and bad, drawn from a seeded generator; jobs are named by `{number}`.

Each unit that `Commands` makes has exactly one reply, so that a lockstep can count replies; how the
bytes are cut into pieces is the caller's business. Everything that a real server answers with
BAD_FORMAT and delayd takes as an extension (fractions, `put-in-tube`, ...) is left out.

Delays are all different and longer than any stream, so that no two jobs are due together: of those
that are, beanstalkd takes the one put first by its nanoseconds, and a server that counts in
milliseconds need not know.
"""

import random
import string
from collections.abc import Callable
from functools import partial
from typing import Final

LEGAL: Final = string.ascii_letters + string.digits + "-+/;.$_()"
ILLEGAL: Final = "".join(
    chr(code) for code in range(1, 256) if chr(code) not in LEGAL and chr(code) not in "\r\n{}"
)
TUBES: Final = ("default", "a", "b", "mail.out", "T+/;$_()-9", "n" * 200)
WORDS: Final = (
    *("put", "peek", "peek-ready", "peek-delayed", "peek-buried", "reserve", "reserve-job"),
    *("reserve-with-timeout", "delete", "release", "bury", "kick", "kick-job", "touch"),
    *("stats", "stats-job", "stats-tube", "use", "watch", "ignore", "list-tubes"),
    *("list-tubes-watched", "list-tube-used", "pause-tube"),
)
U32_MAX: Final = 2**32 - 1
U64_MAX: Final = 2**64 - 1
JOB_BYTES_MAX: Final = 65_535  # beanstalkd's default
LINE_BYTES_MAX: Final = 224
# Neither of these can be read as a number, nor as a delayd time with a fraction.
JUNK: Final = ("x", "1x", "-1", "+1", "", "0x1", "1,", "--!@#", str(10**30), "1\t", "\t1", "¹")


class Commands:
    """Draws commands. `jobs` tells how many job numbers are in use, for ids that may exist.

    `own` is set to the numbers of the jobs that the next command's connection has reserved, so that
    not everything is refused.
    """

    def __init__(
        self, rng: random.Random, jobs: Callable[[], int], body_bytes_max: int = JOB_BYTES_MAX
    ) -> None:
        self.rng = rng
        self._jobs = jobs
        self.own: tuple[int, ...] = ()
        self._body_bytes_max = body_bytes_max
        self._delay = 0
        self._makers = (
            (24, self.put),
            (14, self.reserve),
            (7, partial(self._line_of, "delete", self.job)),
            (7, self.release),
            (6, self.bury),
            (4, self.kick),
            (3, partial(self._line_of, "kick-job", self.job)),
            (3, partial(self._line_of, "touch", self.job)),
            (3, partial(self._line_of, "reserve-job", self.job)),
            (5, self.peek),
            (5, self.stats),
            (5, partial(self._line_of, "use", self.tube)),
            (6, partial(self._line_of, "watch", self.tube)),
            (4, partial(self._line_of, "ignore", self.tube)),
            (3, self.pause),
            (3, self.lists),
            (5, self.typo),
            (1, self.oversize),
            (1, self.nul),
        )
        self._weights = tuple(weight for weight, _make in self._makers)

    def unit(self) -> bytes:
        """One command line, with its body if it is a put, that has exactly one reply."""
        ((_weight, make),) = self.rng.choices(self._makers, self._weights)
        return make()

    def put(self) -> bytes:
        kind = self.rng.random()
        if kind < 0.08:
            return self._bad_put()
        fields = f"put {self.priority()} {self.delay()} {self.ttr()}"
        if kind < 0.10:
            size = self._body_bytes_max + self.rng.choice((1, 1, 2, 300))
            junk = self.rng.choice(("", "", "x", " 1"))
            return f"{fields} {size}{junk}\r\n".encode() + bytes(size + 2)
        body = self.body()
        if kind < 0.15:
            # One byte too few or too many before the CRLF that is looked for.
            trailer = self.rng.choice((b"xy", b"\rx", b"\n\r", b"x\r", b"\n\n"))
            return f"{fields} {len(body)}\r\n".encode() + body + trailer
        return f"{fields} {self._padded(len(body))}\r\n".encode() + body + b"\r\n"

    def _bad_put(self) -> bytes:
        fields = [self.priority(), self.delay(), self.ttr(), str(self.rng.randrange(60))]
        spoiled = self.rng.randrange(6)
        if spoiled < 4:
            too_much = () if spoiled == 3 else (str(U32_MAX + 1),)
            fields[spoiled] = self.rng.choice((*JUNK, *too_much))
        elif spoiled == 4:
            fields.append(self.rng.choice(("", "1", "x")))
        else:
            fields.pop()
        return self._line("put " + " ".join(fields))

    def body(self) -> bytes:
        size = self.rng.choice((0, 1, 2, 5, self.rng.randrange(300), self.rng.randrange(3000)))
        if self.rng.random() < 0.02:
            size = self._body_bytes_max
        size = min(size, self._body_bytes_max)
        filler = self.rng.choice((b"x", b"\r\n", b"\r", b"delete {1}\r\n", bytes(range(256))))
        return (filler * (size // len(filler) + 1))[:size].replace(b"{", b"(")

    def priority(self) -> str:
        return self._padded(self.rng.choice((0, 0, 1, 5, 1023, 1024, 10**5, U32_MAX)))

    def delay(self) -> str:
        if self.rng.random() < 0.6:
            return self._padded(0)
        self._delay += 1
        return self._padded(100 + self.rng.randrange(10**6) * 1000 + self._delay)

    def ttr(self) -> str:
        return self._padded(self.rng.choice((0, 1, 100, 120, 4295, 10**6, U32_MAX)))

    def job(self) -> str:
        """An id: mostly one that exists, sometimes one that cannot, sometimes none at all."""
        kind = self.rng.random()
        if kind < 0.04:
            return self.rng.choice((*JUNK, str(U64_MAX + 1)))
        if kind < 0.08:
            return self.rng.choice(("0", str(U64_MAX), "00000000000000000000000000000"))
        if self.own and kind < 0.7:
            return f"{{{self.rng.choice(self.own)}}}"
        newest = self._jobs() + 1
        spaces = " " * (self.rng.random() < 0.04)
        if kind < 0.55:
            return f"{spaces}{{{max(0, newest - self.rng.randrange(6))}}}"
        return f"{spaces}{{{self.rng.randint(0, newest)}}}"

    def tube(self) -> str:
        kind = self.rng.random()
        if kind < 0.84:
            return self.rng.choice(TUBES)
        if kind < 0.92:
            return self.rng.choice(
                ("z" + self.rng.choice(LEGAL), self.rng.choice(LEGAL), "l" * 199, "l" * 200)
            )
        return self.rng.choice(
            ("", "-a", "l" * 201, " a", "a ", "a b", "a:b", "a" + self.rng.choice(ILLEGAL))
        )

    def reserve(self) -> bytes:
        kind = self.rng.random()
        if kind < 0.35:
            return self._line("reserve")
        if kind < 0.75:
            return self._line("reserve-with-timeout 0")
        whole = ("100", "-1", str(2**31 - 1), str(2**31), str(U32_MAX), str(2**63 - 1), str(2**63))
        odd = ("", "x", "0x1", "-0", "+0", str(2**32), "9" * 30, "-" + "9" * 30, " 77x", "\t100")
        return self._line("reserve-with-timeout " + self.rng.choice(whole + odd))

    def release(self) -> bytes:
        priority, delay = self.priority(), self.delay()
        kind = self.rng.random()
        if kind < 0.03:
            priority = self.rng.choice((*JUNK, str(U32_MAX + 1)))
        elif kind < 0.06:
            delay = self.rng.choice((*JUNK, str(U32_MAX + 1), "0 ", "0 1"))
        elif kind < 0.08:
            return self._line(f"release {self.job()} {priority}")
        return self._line(f"release {self.job()} {priority} {delay}")

    def bury(self) -> bytes:
        kind = self.rng.random()
        if kind < 0.03:
            return self._line(f"bury {self.job()}")
        priority = self.rng.choice((*JUNK, "1 2")) if kind < 0.08 else self.priority()
        return self._line(f"bury {self.job()} {priority}")

    def kick(self) -> bytes:
        odd = ("0", "-1", "10abc", "+3", "5 5", str(2**32), str(2**32 + 1), str(U64_MAX))
        bad = ("x", "", str(U64_MAX + 1), "-" + "9" * 30)
        many = ("1", "1", "2", "3", "10")
        return self._line("kick " + self.rng.choice((*many, *many, *odd, *bad)))

    def peek(self) -> bytes:
        which = ("peek-ready", "peek-delayed", "peek-buried", f"peek {self.job()}")
        return self._line(self.rng.choice(which))

    def stats(self) -> bytes:
        of = (f"stats-job {self.job()}", f"stats-tube {self.tube()}", "stats")
        return self._line(self.rng.choice(of))

    def pause(self) -> bytes:
        seconds = self.rng.choice(("0", "0", "0", " 0", "100", str(U32_MAX)))
        if self.rng.random() < 0.1:
            seconds = self.rng.choice((*JUNK, str(U32_MAX + 1), "0 ", "0 1"))
        return self._line(f"pause-tube {self.tube()} {seconds}")

    def lists(self) -> bytes:
        which = ("list-tubes", "list-tubes", "list-tubes-watched", "list-tube-used")
        return self._line(self.rng.choice(which))

    def typo(self) -> bytes:
        """A command word cut short, extended or misspelt; none of them is a put with a body."""
        word = self.rng.choice(WORDS)
        spot = self.rng.randrange(len(word))
        line = self.rng.choice(
            (
                word[:spot],
                word + self.rng.choice(("x", "-", " ", "\t", "s", "-x", " x", "/")),
                self.rng.choice((" ", "\t", "x")) + word,
                word.swapcase(),
                word[:spot] + self.rng.choice("qZ-") + word[spot + 1 :],
                self.rng.choice(("", " ", "nonsense", "put", "kick", "pause-tubea 0", "é")),
            )
        )
        # A lone `reserve` is not a typo, and `quit...` belongs to the caller.
        return self._line("reservex" if line == "reserve" else line)

    def oversize(self) -> bytes:
        return self._line("o" * self.rng.randrange(LINE_BYTES_MAX, 3 * LINE_BYTES_MAX))

    def nul(self) -> bytes:
        line = bytearray(self.rng.choice(WORDS).encode())
        line.insert(self.rng.randint(0, len(line)), 0)
        return bytes(line) + b"\r\n"

    def framing_noise(self) -> bytes:
        """Bytes that may be part of a line, end one, or hide its end: any number of replies."""
        longest = self.rng.choice((1, 60, 221, 222, 223, 224, 225, 445, 446, 447, 448, 449, 700))
        ends = (b"\r\n", b"\r", b"\n", b"\0", b"\r\r\n")
        return self.rng.choice((b"o" * longest, *ends, b"stats\r", b"put 0 0 0 3\r\n"))

    def _line_of(self, word: str, draw: Callable[[], str]) -> bytes:
        return self._line(f"{word} {draw()}")

    def _padded(self, number: int) -> str:
        kind = self.rng.random()
        if kind < 0.03:
            return f" {number}"
        return f"{number:020}" if kind < 0.05 else str(number)

    def _line(self, text: str) -> bytes:
        line = text.encode("latin-1")
        # A CR as the last byte of a full buffer is not seen; that is for `framing_noise`.
        hidden = len(line) % LINE_BYTES_MAX == LINE_BYTES_MAX - 1
        return line + b"x\r\n" if hidden else line + b"\r\n"
