"""What clients may have, on the line and by HTTP: how much, how many, how long, and why.

The other half of `core.limits`: every bound of delayd is in one of the two.
"""

from typing import Final

# --- The line protocol ---------------------------------------------------------------------------

LINE_BYTES_MAX: Final = 224
"""A command with its CRLF (beanstalkd: room for `pause-tube`, a name of 200 and a u32)."""

LONG_LINE_BYTES_MAX: Final = 1_024
"""The same for commands that beanstalkd does not know: a key of 200 bytes, a ladder, an error."""

PARSED_LINES_MAX: Final = 4_096
"""Put lines whose parsing is remembered: producers repeat themselves; at most 1.5 MB."""

PARSED_SHAPES_MAX: Final = 256
"""The same for puts with words, whose keys differ and nothing else; each has two expressions."""

RESERVE_BATCH_MAX: Final = 1_000
"""Jobs that one `reserve-batch` hands out at most; asking for more is no error."""

READ_BYTES: Final = 16 << 10
"""What is read from one connection in one turn; a bound on the work one client gets at once."""

EVENTS_PER_TURN: Final = 64
"""Connections served in one turn before due jobs and everybody else get theirs."""

ACCEPT_PAUSE_MS: Final = 1_000
"""How long nobody is accepted when there is no descriptor even to turn somebody away."""

ACCEPTS_PER_TURN: Final = 64
"""New connections taken in one turn."""

LINE_HALF_SAID_S_MAX: Final = 10
"""How long a command line that was begun may take to end, in seconds; a TLS handshake as long."""

LINE_BODY_BYTES_PER_S_MIN: Final = 1 << 10
"""The pace of a job's body from its tenth second on, since it began."""

LINE_BODY_IN_ALL_S: Final = 60
"""How long a body may take, whatever its pace..."""

LINE_BODY_BYTES_PER_S_IN_ALL: Final = 64 << 10
"""... unless it is one of more than 4 MB: then as long as it takes at so many bytes a second."""

LINE_CONNECTIONS_PER_ADDRESS_MAX: Final = 1_000
"""From one address that is not this machine's own; of IPv6 the first 64 bits are one."""

LINE_STRANGERS_PER_ADDRESS_MAX: Final = 100
"""The same for those that have shown no token yet, where tokens are asked for."""

HANDSHAKES_PER_TURN: Final = 8
"""TLS handshakes that one turn goes on with: up to 1 ms of work each, with RSA keys."""

STALLED_CLIENT_MS: Final = 60_000
"""A client that has read nothing of its replies for this long is closed; its jobs return."""

TCP_USER_TIMEOUT_MS: Final = 30_000
"""How long sent data may stay unacknowledged before a peer counts as gone; half of the above."""

KEEPALIVE_S: Final = 60
"""Idle time before an idle peer is asked whether it is still there."""

DESCRIPTORS_RESERVED: Final = 64
"""Not for connections: the journal's next files, a snapshot, those that it has not synced yet."""

DESCRIPTORS_RESERVED_SHARE: Final = 4
"""But at most so much of what the process may have: with 64 in all every fourth, 16."""

TROUBLE_LOG_MS: Final = 60_000
"""How often the log tells of a kind of trouble that peers can make as often as they like."""

# --- Who may come in -----------------------------------------------------------------------------

UNIX_ID_MAX: Final = 2**32 - 2
"""The highest number of a user or group; the one above means nobody at all."""

UNIX_GROUPS_MAX: Final = 65_536
"""Groups that one peer of a unix socket can be in: Linux's bound."""

TOKENS_MAX: Final = 10_000
"""Entries of a tokens file; it is read on the loop, a quarter of a second if it has so many."""

TOKENS_FILE_BYTES_MAX: Final = 16 << 20
"""What is read of a tokens file; ten thousand ordinary entries take 3 MB."""

TOKEN_NAME_CHARACTERS_MAX: Final = 200
"""A token's name stands in lines of the log."""

TOKEN_GLOBS_MAX: Final = 100
"""Patterns of topics that one token may have: each is tried before an operation is refused."""

AUTH_FAILURES_MAX: Final = 10
"""Wrong tokens from one address before its next ones are answered late: a person mistypes fewer."""

AUTH_FAILURES_WINDOW_MS: Final = 60_000
"""How long a wrong token counts."""

AUTH_DELAY_MS: Final = 1_000
"""How late: one guess a second for each connection, of 2^256."""

AUTH_PEERS_MAX: Final = 10_000
"""Addresses whose failures are remembered, 1 kB each; the one that was quiet for longest goes."""

# --- HTTP ----------------------------------------------------------------------------------------

RETRY_AFTER_DRAINING_S: Final = 5
"""What a producer is told to wait: a daemon that drains is about to be replaced."""

RETRY_AFTER_FULL_S: Final = 5
"""The same where there is no room: consumers need a while to make some."""

HTTP_BODY_BYTES_DEFAULT: Final = 4 << 20
"""A request's: a thousand jobs of 4 kB each."""

HTTP_BODY_BYTES_MIN: Final = 1 << 10
"""Less would refuse what every client says."""

HTTP_BODY_BYTES_MAX: Final = 64 << 20
"""A request is read whole, and holds the loop while it is: a third of a second for this."""

HTTP_BATCH_MAX: Final = 1_000
"""Jobs put, reserved, acknowledged by one request: some 10 ms of work."""

HTTP_WAIT_MS_MAX: Final = 60_000
"""The longest long poll: what stands between client and daemon often cuts off at a minute."""

HTTP_TOPICS_MAX: Final = 100
"""Topics that one reserve may name: each is looked at before each job."""

HTTP_PAGE_DEFAULT: Final = 100
"""Jobs or topics of a page, where nothing is said."""

HTTP_PAGE_BYTES_MAX: Final = 1 << 20
"""A page of jobs takes no further one once the bodies and failures are longer than this; the first
always fits. To write them as one answer takes 2 ms."""

HTTP_PAGE_SLICE_BYTES: Final = 64 << 10
"""Bodies told before everybody else has a turn: to see whether they are JSON takes 0.4 ms."""

HTTP_PAGE_SLICE_ROWS: Final = 192
"""Jobs of a page told before everybody else has a turn: 0.5 ms where all of them have failed."""

HTTP_TOPICS_PAGE_MAX: Final = 1_000
"""Topics of one page of their list: 150 kB of text."""

HTTP_TOPICS_SLICE: Final = 128
"""Topics looked at before everybody else has a turn: 0.1 ms."""

READY_BODY_BYTES: Final = 4 << 10
"""A daemon that has no room for a job of this length is not ready for more; most are shorter."""

HTTP_GLOBS_SLICE: Final = 2_000
"""Patterns of a token that topics' names are compared with before everybody else has a turn: 1 ms,
with patterns that have several stars each."""

HTTP_CALENDAR_TOPICS_MAX: Final = 100
"""Topics of one calendar; with as many spans as there may be, 300 kB of text. All jobs of each are
looked at that come due in its time."""

HTTP_RESERVED_BYTES_MAX: Final = 4 << 20
"""A reserve takes no further job once the bodies are longer than this; the first always fits."""

HTTP_ERRORS_MAX: Final = 100
"""Mistakes that one problem names; who has made more sees the pattern."""

HTTP_CONTAINERS_MAX: Final = 250_000
"""Arrays and objects of one request, by its brackets; to read so many takes up to 100 ms. Each of a
thousand jobs may have 250. Without it 4 MiB of empty ones held everybody up for more than a second.
"""

HTTP_ERROR_CHARACTERS_MAX: Final = 1_000
"""Of a mistake's field, and of what is wrong there: a request of 4 MiB may be one single name."""

HTTP_HEADER_MS_DEFAULT: Final = 10_000
"""How long a request's head may take: from its first byte, the first one from the connection on. A
head is a packet or two, which get lost twice at most in that time."""

HTTP_IDLE_MS_DEFAULT: Final = 75_000
"""How long a connection may say nothing after an answer: longer than the minute for which most
proxies keep theirs, so that it is they who close first."""

HTTP_BODY_MS_DEFAULT: Final = 60_000
"""How long a request's body may take in all: 4 MiB then need half a megabit a second."""

HTTP_BODY_GRACE_MS: Final = 10_000
"""For so long a body may be slower than the following."""

HTTP_BYTES_PER_S_MIN: Final = 1_024
"""What a client sends and takes at least, on average: a modem of 1990 does."""

HTTP_TAKE_MS: Final = 10_000
"""How long a client may take too little of an answer before it is closed."""

HTTP_TIMEOUT_MS_MIN: Final = 1_000
"""The deadlines are looked at once a second, when one has come."""

HTTP_TIMEOUT_MS_MAX: Final = 3_600_000
"""An hour; who wants more wants no deadline."""

HTTP_LOOK_MS: Final = 10_000
"""How often a connection is looked at whose request is being carried out."""

HTTP_LOOKS_MAX: Final = 256
"""Connections looked at before others have a turn: 0.3 ms, 3 ms if all of them are closed."""

HTTP_LINE_BYTES_MAX: Final = 8_190
"""Of a request's path with its query: what Apache and others take."""

HTTP_HEADER_BYTES_MAX: Final = 8_191
"""Of one header's value. One more than above, by which it is known which of them was too long."""

HTTP_HEADERS_MAX: Final = 128
"""Headers of a request."""

HTTP_SMALL_BYTES: Final = 16 << 10
"""A request of this length is never refused because others fill the space for bodies: so workers
can still acknowledge, and whoever looks after the daemon can look."""

HTTP_HELD_BYTES_DEFAULT: Final = 64 << 20
"""Requests that have been read and not been answered, together: 16 of the longest."""

HTTP_HELD_BYTES_MIN: Final = 1 << 20
"""Below that a handful of clients would be in each other's way."""

HTTP_HELD_BYTES_MAX: Final = 16 << 30
"""More than most machines have."""

HTTP_CONNECTIONS_PER_IP_DEFAULT: Final = 1_000
"""Of one address; those of this machine do not count."""

HTTP_STRANGERS_PER_IP_DEFAULT: Final = 100
"""The same for connections on which no valid token has been shown yet."""

HTTP_REPLY_PAUSE_BYTES: Final = 64 << 10
"""With more than this waiting for a client, nothing more is carried out for it."""

TLS_HANDSHAKE_MS: Final = 10_000
"""As long as for a request's head."""

TLS_CLOSE_MS: Final = 5_000
"""How long a peer may take to say goodbye."""

HTTP_STOP_MS_MAX: Final = 5_000
"""How long a stop waits for answers that are being written."""

IDEMPOTENCY_KEY_BYTES_MAX: Final = 255
"""Of the header's value."""

IDEMPOTENCY_MS: Final = 24 * 3_600 * 1_000
"""How long a put's Idempotency-Key is remembered: longer than any sensible client retries."""

TTR_MS_DEFAULT: Final = 60_000
"""Of a job put by HTTP that says none, in a topic whose policy says none."""

PRIORITY_DEFAULT: Final = 65_536
"""Of a job put by HTTP that says none: what beanstalk clients put with."""

HTTP_HOSTS_KNOWN_MAX: Final = 64
"""Values of the Host header that need not be looked at again."""

SECONDS_WRITTEN_MAX: Final = 1_024
"""Seconds that are kept as they are written: a tenth of a megabyte."""

TARGETS_KNOWN_MAX: Final = 1_024
"""Paths whose way to a call is remembered: 2 us less for each request of a producer."""

TARGET_KNOWN_CHARACTERS: Final = 256
"""Of such a path at most, so that nobody can fill the memory with long ones."""

LADDERS_KNOWN_MAX: Final = 64
"""Retry ladders whose steps are remembered by how they were written: 2 MB if all are long."""
