"""Bounds of answers: how much memory and time a hostile server can cost a program.

delayd's own answers stay far below all of these; an answer beyond one raises NotUnderstood.
"""

from typing import Final

# An answer, or all the replies to commands that were sent together: a thousand jobs with the
# longest bodies that a daemon accepts by default. For longer ones: `Client(answer_bytes_max=...)`.
ANSWER_BYTES_MAX: Final = 64 << 20
# The first line and the headers of a response together, as most servers of HTTP have it.
HEAD_BYTES_MAX: Final = 64 << 10
HEADERS_MAX: Final = 100  # as Python's own client; delayd and a proxy send ten
# Answers of 1xx before the one that counts: delayd sends none, a proxy one or two.
INTERIM_ANSWERS_MAX: Final = 8
CHUNK_HEAD_BYTES_MAX: Final = 256  # the line with a chunk's size and extensions; a size has 16
# Of a long answer the lines with sizes of chunks may be one part in so many, beyond 64 KiB; so
# chunks have 512 bytes or more. Each takes 2 us to read, whatever its length.
CHUNK_SHARE: Final = 64
TRAILER_BYTES_MAX: Final = 8 << 10  # the lines after the last chunk: delayd sends none
# A reply's line: delayd's longest is a refusal with its detail.
LINE_BYTES_MAX: Final = 4 << 10
BATCH_JOBS_MAX: Final = 1_000  # jobs of one answer, or results; the daemon's bound as well

# Arrays and objects within each other. Python's own limit on recursion ends it sooner, unless a
# program has raised that; so deep it takes 1 MB of the stack.
JSON_DEPTH_MAX: Final = 4_000
# Arrays and objects of one answer, by its brackets: the memory of each is many times its text. A
# page of jobs has a megabyte of bodies, so up to 350,000.
JSON_CONTAINERS_MAX: Final = 500_000
# Values of one answer, by its commas: 60 bytes of memory each, so 240 MB.
JSON_VALUES_MAX: Final = 4_000_000
# Digits of one number: as Python's own limit, which a program may have switched off.
JSON_DIGITS_MAX: Final = 4_300
WHOLE_MAX: Final = (1 << 64) - 1  # numbers of jobs and counts
NUMBER_DIGITS_MAX: Final = 20  # the digits of the above, on the line
NUMBER_MAX: Final = 1e12  # 30,000 years: the times that a `datetime` can hold

SCHEDULES_PAGE_MAX: Final = 1_000  # schedules of one answer
PREVIEW_RUNS_MAX: Final = 100  # times of one answer; the daemon's bound as well

# All pages of topics, or of a calendar, which one call gathers: a million topics.
PAGES_MAX: Final = 10_000
PAGES_BYTES_MAX: Final = 256 << 20
SHOWN_CHARACTERS_MAX: Final = 80  # of a server's value, in an error
DETAIL_CHARACTERS_MAX: Final = 10_000  # of a refusal's detail

# How often a job in hand is touched, whatever ttr the server claims.
TOUCH_S_MIN: Final = 0.05
TOUCH_S_MAX: Final = 86_400.0
