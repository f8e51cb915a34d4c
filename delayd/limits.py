"""Every limit of delayd, with its unit in the name and its reason. Other modules have none."""

from typing import Final

# --- Jobs and topics -----------------------------------------------------------------------------

JOB_ID_MAX: Final = 2**64 - 1
"""Ids are u64 on every wire."""

PRIORITY_MAX: Final = 2**32 - 1
"""beanstalkd's u32; 0 is the most urgent."""

PRIORITY_URGENT_BELOW: Final = 1024
"""What beanstalkd's statistics count as urgent."""

SECONDS_MAX: Final = 2**32 - 1
"""Delays, ttr and pauses are u32 seconds on the line: 136 years."""

DURATION_MS_MAX: Final = SECONDS_MAX * 1_000
"""The longest delay, ttr or pause: the same in milliseconds."""

WALL_MS_MAX: Final = 253_402_300_799_999
"""The latest absolute time: the end of the year 9999, the last one that RFC 3339 can write."""

TTR_MS_FOR_ZERO: Final = 1_000
"""What a ttr of 0 means (beanstalkd): a reservation that ends at once would repeat for ever."""

BODY_BYTES_DEFAULT: Final = 65_535
"""beanstalkd's default; its clients' tests expect 65,536 to be refused."""

BODY_BYTES_CEILING: Final = 1 << 30
"""beanstalkd's highest `-z`; one frame of the journal must hold a job, and its length is a u32."""

TOPIC_NAME_BYTES_MAX: Final = 200
"""beanstalkd's rule; a name fits a URL and a label."""

KEY_BYTES_MAX: Final = 200
"""A client's own name for a job: a row's number, a UUID, a short path. Its length is a u8."""

ERROR_BYTES_MAX: Final = 1_024
"""How much of a worker's error text is kept: the line that matters of a traceback."""

DEADLINE_SOON_MS: Final = 1_000
"""A consumer whose reservation ends this soon gets DEADLINE_SOON at once (beanstalkd)."""

# --- Policies ------------------------------------------------------------------------------------

RETRY_STEPS_MAX: Final = 255
"""Steps of a ladder: their number is a u8 in a job's record, which a ladder makes 2 kB longer."""

ATTEMPTS_MAX: Final = 65_535
"""A u16 in a job's record; for more, set no maximum."""

JITTER_PERCENT_MAX: Final = 100
"""Jitter may double a step; more would be another ladder."""

CAP_MAX: Final = 2**62
"""The highest cap on jobs or bytes: more than any memory, and still an exact number in JSON."""

RATE_PER_S_MIN: Final = 0.001
"""One job in a quarter of an hour; for a slower rate use delays."""

RATE_PER_S_MAX: Final = 1_000_000
"""More than one daemon can hand out."""

RATE_BURST_MS: Final = 100
"""How much of its rate a topic may catch up on after an idle time: a tenth of a second's
worth, one job at least. With none at all a wheel that ticks in milliseconds could not reach rates
above 1,000 a second."""

RETRY_STEPS_NAMED_MAX: Final = 10
"""Steps of a ladder whose errors are listed: enough to see the pattern."""

POLICY_JSON_BYTES_MAX: Final = 16 << 10
"""A policy as text: a ladder of 255 steps written at length takes half of it."""

# --- Figures -------------------------------------------------------------------------------------

LATENESS_BOUNDS_MS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000, 1_800_000, 3_600_000),
)
"""The buckets of lateness: from the tick of the wheel to the hour, two to three times the one
before. Each is a series of every topic, so there are no more."""

AGE_SLOT_BITS: Final = 7
"""The age of the oldest ready job is exact to 2**7 = 128 ms: what people look at is seconds."""

AGE_SLOTS_MAX: Final = 128
"""Slots of ages in one topic, 12 kB; with more they get wider, which makes the age of the oldest
exact to a 64th of itself."""

AGES_KEPT_MAX: Final = 100_000
"""Ready jobs of a topic that came back or were kicked and for which the time since when they
are ready is remembered: 9 MB."""

RATE_WINDOW_MS: Final = 60_000
"""Rates are reported for the last minute."""

RATE_CELL_MS: Final = 10_000
"""How often counters are written down for it, at most: a sixth of the minute."""

RATE_CELLS: Final = 8
"""Six make a minute; one may reach into it, and one has just begun."""

TOPICS_SHOWN_MAX: Final = 200
"""Topics whose metrics have their name as a label. Each has up to 50 series, so a scrape has 10,000
at most, which is what one target should have; the others are summed as one."""

SYNC_BOUNDS_NS: Final = (
    *(100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000),
    *(50_000_000, 100_000_000, 200_000_000, 500_000_000, 1_000_000_000, 5_000_000_000),
)
"""The buckets of syncs and commits: from a disk with a battery, 0.1 ms, to one that hangs."""

BATCH_BOUNDS_RECORDS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
"""The buckets of batches: from a lone client's record to what comes within a slow sync."""

HELD_BOUNDS_NS: Final = (
    *(100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000),
    *(50_000_000, 100_000_000, 500_000_000, 1_000_000_000),
)
"""The buckets of how long the loop was blocked: nothing of ours should exceed 5 ms."""

HELD_NOTED_NS: Final = 500_000
"""Shorter times are not compared with the longest of the minute: that would cost every
turn 0.2 µs."""

CENSUS_STEP_TOPICS: Final = 200
"""Topics counted in one step of the totals: 0.4 ms."""

METRICS_STEP_TOPICS: Final = 20
"""Topics in one piece of a scrape at most: 0.5 ms, 50 kB."""

REFUSAL_REASONS_MAX: Final = 64
"""Words for why something was refused, twice as many as there are: each is a series."""

LONGEST_CELL_NS: Final = 6_000_000_000
"""The longest of the last minute is exact to a tenth of a minute."""

LONGEST_CELLS: Final = 10
"""How many of these make a minute."""

TOPIC_SWAPS_MAX: Final = 8
"""Topics that a scrape gives a name to in place of others, when they have become much busier: each
ends 50 series and begins as many."""

# --- Slices: how much is done at once before other clients are served ----------------------------

ADVANCE_SLICE_JOBS: Final = 128
"""Wheel entries one topic may fire or cascade before the next has its turn: about 0.3 ms."""

ADVANCE_SLICE_US: Final = 500
"""How long one turn may fire due jobs, over many topics with a few each. It ends sooner with
a slice that leaves more of its wheel due: eight workers that share 1,000 jobs a second of another
topic have 8 ms for each, which is four turns; with two slices in each they were 13 ms late, with
one they are 6 ms."""

TASK_SLICE_US: Final = 500
"""How long one turn may run background tasks: as with due jobs."""

TASK_STEP_JOBS: Final = 256
"""Jobs that one step of a task looks at: 0.2 to 0.3 ms, so several tasks share one turn."""

PASS_BUCKET_COST: Final = 8
"""Jobs that a task could have looked at in the time it takes to go to the next place: 5 µs."""

PASS_ACTION_COST: Final = 8
"""The same for doing something to a job: rescheduling takes 5 µs. Deleting takes 1.5, but may
return a MiB of memory to the system: 0.1 ms, and now and then 30 times in a row."""

PASS_HELD_COPIED_MAX: Final = 16_384
"""Up to this many reservations are copied and scanned, in 0.2 ms; with more the table of all jobs
is scanned instead."""

SEARCH_JOBS_MAX: Final = 1_000
"""Jobs of one page of a list: 100 kB of text, and what is found is kept in memory until it is
sent."""

BULK_PER_S_MAX: Final = 1_000_000
"""Jobs a second, when many are kicked one after the other; faster is at once."""

CALENDAR_BINS_MAX: Final = 1_000
"""Counts of one calendar: a week in steps of ten minutes."""

WALL_STEPS_MAX: Final = 8
"""Steps of the wall clock within the seconds that it takes to place a million jobs again. With one
more the jobs that have waited the longest are placed at once."""

WALL_STEP_MS: Final = 2
"""How far the wall clock must have gone ahead before jobs are placed again: the reading is exact to
a millisecond, its rounding takes one more. Slewing moves the boot clock as well, and so nothing."""

WALL_BRACKET_NS: Final = 500_000
"""How far apart two readings of the boot clock may be for the wall clock between them to count:
half of the millisecond above. A process that was stopped in between reads once more."""

WALL_READINGS_MAX: Final = 4
"""How often it reads before it takes what it got."""

SYNC_BREATHER_MS: Final = 1
"""How long a turn waits, with jobs due, for a sync that is in progress: on two processors, both
busy, the kernel would have no processor for it. It takes 0.2 ms then instead of 3."""

TIMER_STALE_ROWS: Final = 1_024
"""Stale wake-ups tolerated in addition to two for each live one: 100 kB, and sweeps stay rare."""

# --- The wheel's dead entries --------------------------------------------------------------------

SWEEP_SLACK_ENTRIES: Final = 1_024
"""Dead entries tolerated in addition to one for each live one: 8 kB, and small wheels never
sweep."""

SWEEP_CHUNK_ENTRIES: Final = 1_024
"""Entries that one step of a sweep examines: 0.1 to 0.25 ms, the longest a cancel can take."""

SWEEP_ENTRIES_PER_CANCEL: Final = 16
"""What a cancel pays towards the next step: a sweep is over after held/16 cancels, and a thousand
cancels in one turn sweep for 4 ms at most."""

SWEEP_BUCKET_COST: Final = 16
"""Entries that could have been examined in the time it takes to go to the next bucket: 2 µs."""

# --- The index of keys ---------------------------------------------------------------------------

KEYS_UNDIVIDED: Final = 8_192
"""From this many keys of a topic on its index is a dict for each `KEY_PARTS`th of them: the
division takes 1 ms, and 256 dicts for few keys would take more memory than what is in them."""

KEY_PARTS: Final = 256
"""A dict of 40,000 keys, a part of ten million, takes 1 ms to grow. 64 are as fast, and 1,024 take
longer by a tenth, since they leave the cache."""

KEY_ANCHOR_IDS: Final = 8
"""Neighbours that an entry may mean. With 8 a look-up costs 1 µs and an entry 4 bytes more than a
hash, with 16 they would be 2 µs and 2 bytes."""

KEY_BYTES_SPARSE: Final = 256
"""A dict that takes more than this for each of its entries is made again. One that grows takes 54
at most, so it is left alone until four fifths have gone."""

# --- The journal ---------------------------------------------------------------------------------

JOURNAL_SEGMENT_BYTES_DEFAULT: Final = 256 << 20
"""What the journal may take in addition to twice the live data. A snapshot for every 32 MiB of
garbage, so every ten seconds under the heaviest load; the tail that a start must replay takes 1.5 s
at most."""

JOURNAL_SEGMENT_BYTES_MIN: Final = 4 << 10
"""A page; a smaller segment would be mostly header. Only tests go this low."""

JOURNAL_PAYLOAD_BYTES_MAX: Final = 2 << 30
"""One frame: it holds the largest job and its record; a larger length field is damage."""

JOURNAL_WINDOW_BYTES: Final = 1 << 20
"""How much of a segment is read at a time; a longer frame is read whole, if its file holds it."""

JOURNAL_FILES_PER_SEGMENT: Final = 4
"""The log is cut into files of a quarter of the configured size: that size is the slack of the
bound on disk use, and two half-used files at the ends of the log must fit into it."""

JOURNAL_SHRUNK_BYTES: Final = 1 << 20
"""The file in which the log of an idle daemon continues when nearly nothing is live: it takes 700
jobs, beside `EMERGENCY_BYTES`, before the next file of the usual length is made."""

GARBAGE_PER_LIVE: Final = 8
"""An idle log is shrunk when it is longer than this many times the live data and a part of a
file."""

GARBAGE_PER_FILE: Final = 16
"""That part, 4 MiB by default: shrinking takes two snapshots and ten syncs, 20 ms in all."""

JOURNAL_UNSYNCED_SEGMENTS_MAX: Final = 16
"""Full files that may wait for a sync; each holds a descriptor and a file of dirty pages."""

JOURNAL_UNSYNCED_SEGMENTS_WITHIN_SYNC: Final = 256
"""The same during a slow sync in another thread: appending waits for it only above this.
Clients are no longer read from long before, unless the segments are very small."""

JOB_REMOVAL_BYTES: Final = 136
"""Room kept in the log for each job: reserving it (71 bytes) and deleting it (63), each by a lone
client and so in a frame of its own."""

HELD_RETURN_BYTES: Final = 198
"""Room kept beside it for each job held: its return when the connection closes. Under a retry rule
that is a failed attempt (99 bytes without a text), which the end of a segment may not fit."""

TURN_OVERHEAD_BYTES: Final = 128
"""A frame with two TURN records (63 bytes), twice: the end of a segment may not fit it."""

EMERGENCY_BYTES: Final = 256 << 10
"""Room that no put may take: it lasts an hour for a client that touches its job once a second,
and for 1,100 reserved jobs."""

ROOM_PLENTY_BYTES: Final = EMERGENCY_BYTES + (1 << 20)
"""With this much room left it is not checked after every turn."""

ROOM_TURNS_MAX: Final = 64
"""After this many turns it is checked anyway, and the surplus is released."""

SPARE_BYTES_MIN: Final = 128 << 10
"""The smallest file of the reserve: a job of the default size fits, and a disk of 1 MB has some."""

LONG_BODY_BYTES: Final = SPARE_BYTES_MIN - 1_024
"""A longer body may not fit any file of the reserve with its headers; it gets a file of its own."""

JOURNAL_RECORD_HEAD_BYTES: Final = 512
"""What a job's record takes beside its body at most, with a TOPIC record before it."""

SPARE_SLACK_BYTES: Final = 64
"""What the end of a segment may waste when not even a lone delete (63 bytes) fits it any more."""

JOURNAL_PENDING_BYTES_MAX: Final = 192 << 20
"""Payloads kept in memory until they are synced: what one sync covers, what gathers meanwhile
(each UNSYNCED_BYTES_MAX at most when clients are no longer read from), and one turn more."""

SLOW_SYNC_MS: Final = 1_000
"""A sync that took longer is worth a line in the log; clients have noticed it too."""

ROOM_RETRY_MS: Final = 1_000
"""How often a full disk is asked for room again, and only while a client wants to put."""

JOURNAL_TORN_COPIES_MAX: Final = 16
"""Copies of torn tails that are kept: nothing in them was acknowledged; a crash loop adds more."""

SNAPSHOT_DEFLATE_LEVEL: Final = 1
"""The fastest: on JSON bodies the higher levels save a tenth more and take three times as long."""

SNAPSHOT_SYNC_BYTES: Final = 1 << 20
"""How much of a snapshot is written between two syncs: the log's own syncs never wait for more."""

SNAPSHOT_SLICE_JOBS: Final = 1_024
"""Jobs copied in one slice, between two turns of the loop: 0.25 ms, 0.8 ms where they are held."""

SNAPSHOT_SLICE_BYTES: Final = 64 << 10
"""The same where jobs are long: joining them takes 20 µs."""

SNAPSHOT_PAUSE_MS: Final = 1
"""The time for other clients before the next slice."""

SNAPSHOT_PAYLOAD_BYTES: Final = 128 << 10
"""One frame of a snapshot, a longer job aside. Compressing it takes 1 to 3 ms without the
interpreter; the loop may have to wait for the 20 µs that need it. Frames of a MiB delayed jobs due
at that time by 5 ms at the 99th percentile."""

SNAPSHOT_NICENESS: Final = 10
"""Niceness of the thread that compresses and writes: a tenth of a busy processor at most."""

SNAPSHOT_AHEAD_BYTES: Final = 4 << 20
"""What the loop may have copied and the thread not written: memory for a slow disk."""

SNAPSHOT_ASK_MS: Final = 250
"""How soon after the log has grown it is asked whether a snapshot is due; an idle daemon asks once
more and sleeps."""

SNAPSHOT_CALM_MS: Final = 1_000
"""How long nothing is appended before a daemon counts as at rest, and its log may be shrunk."""

SNAPSHOT_RETRY_MS_MIN: Final = 10_000
"""After a snapshot has failed, the next try; each further failure doubles it."""

SNAPSHOT_RETRY_MS_MAX: Final = 640_000
"""The longest time between two tries: people have to repair what filled or broke the disk."""

# --- What the configuration may choose -----------------------------------------------------------

WHEEL_TICK_MS_DEFAULT: Final = 1
"""The resolution of every deadline; a coarser tick only makes jobs later."""

WHEEL_TICK_MS_MAX: Final = 1_000
"""With longer ticks clients would notice them, and no cascade is saved."""

WHEEL_SIZE_DEFAULT: Final = 256
"""Levels of 256 ms, 65 s, 4.6 h, 50 days, 34 years: most jobs cascade one to three times,
and one level's buckets are few enough that an empty topic costs next to nothing."""

WHEEL_SIZE_MIN: Final = 2
"""With one bucket a level's interval would be its tick, and levels would never end."""

WHEEL_SIZE_MAX: Final = 65_536
"""One level then spans 65 s at 1 ms; more buckets save no cascade that could be measured."""

JOURNAL_SEGMENT_BYTES_MAX: Final = 4 << 30
"""Disk use stays below twice the live data and one segment: a bigger one would be most of it."""

SYNC_INTERVAL_MS_DEFAULT: Final = 50
"""beanstalkd's default; what `sync = "interval"` may lose in a power cut."""

SYNC_INTERVAL_MS_MAX: Final = 3_600_000
"""An hour; for less frequent syncs use `never`: the operating system writes within a minute."""

CONNECTIONS_DEFAULT: Final = 10_000
"""Open connections of the line protocol; further ones are closed at once."""

CONNECTIONS_MAX: Final = 1_000_000
"""What the kernel's own limit of open files allows by default (fs.nr_open is 1,048,576)."""

WRITE_BUFFER_BYTES_DEFAULT: Final = 1 << 20
"""Replies that wait for a client that does not read; one reply may be longer."""

WRITE_BUFFER_BYTES_MIN: Final = 4 << 10
"""A page; a handful of statistics replies must fit."""

WRITE_BUFFER_BYTES_MAX: Final = 1 << 30
"""As much as the longest body."""

# --- What is read from people --------------------------------------------------------------------

QUANTITY_CHARACTERS_MAX: Final = 64
"""A duration or a size in words; longer is a mistake, and is refused before it is parsed."""

LISTEN_BACKLOG: Final = 1_024
"""Connections the kernel holds for us until we accept; it cuts this to net.core.somaxconn."""

UNIX_PATH_BYTES_MAX: Final = 107
"""sockaddr_un holds 108 bytes, the last of which is NUL."""

# --- The service ---------------------------------------------------------------------------------

WATCHDOG_MS: Final = 60_000
"""How often the service looks for a wake-up that was missed; one wake-up a minute costs nothing."""

STOP_MS_MAX: Final = 5_000
"""How long a graceful stop waits for clients to take their last replies."""

UNSYNCED_BYTES_MAX: Final = 64 << 20
"""Records and replies that wait for a slow disk before clients are no longer read from. Where no
reply waits, half of it begins a sync: what is not synced is kept in memory."""

MISSED_WAKE_UP_MS: Final = 1_000
"""How late the engine may be before the watchdog calls it a fault; slices under load are none."""

RECOVERY_REPORT_MS: Final = 1_000
"""How often a long recovery says how far it is."""

GC_YOUNG_OBJECTS: Final = 2_000
"""Objects made before the collector looks at the young ones; jobs are bytes and not among them."""

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
"""Connections served in one turn before due jobs and other clients."""

ACCEPT_PAUSE_MS: Final = 1_000
"""How long accepting pauses when there is no descriptor even to close a connection."""

ACCEPTS_PER_TURN: Final = 64
"""New connections taken in one turn."""

LINE_INCOMPLETE_S_MAX: Final = 10
"""How long an incomplete command line may take, in seconds; the same for a TLS handshake."""

BYTES_PER_S_MIN: Final = 1 << 10
"""What a client sends of a body from its tenth second on, and takes of an answer, at least and on
average: a modem of 1990 does."""

LINE_BODY_IN_ALL_S: Final = 60
"""How long a body may take, whatever its pace..."""

LINE_BODY_BYTES_PER_S_IN_ALL: Final = 64 << 10
"""... unless it is one of more than 4 MB: then the time it takes at this many bytes a second."""

LINE_CONNECTIONS_PER_ADDRESS_MAX: Final = 1_000
"""From one address that is not this machine's own; of IPv6 the first 64 bits are one."""

LINE_UNAUTHENTICATED_PER_ADDRESS_MAX: Final = 100
"""The same for those that have shown no token yet, where tokens are asked for."""

HANDSHAKES_PER_TURN: Final = 8
"""TLS handshakes that one turn continues: up to 1 ms of work each, with RSA keys."""

STALLED_CLIENT_MS: Final = 60_000
"""A client that has read nothing of its replies for this long is closed; its jobs return."""

TCP_USER_TIMEOUT_MS: Final = 30_000
"""How long sent data may stay unacknowledged before a peer counts as gone; half of the above."""

KEEPALIVE_S: Final = 60
"""Idle time before an idle peer is asked whether it is still there."""

DESCRIPTORS_RESERVED: Final = 64
"""Not for connections: the journal's next files, a snapshot, those that it has not synced yet."""

DESCRIPTORS_RESERVED_SHARE: Final = 4
"""But at most this part of what the process may have: with 64 in all every fourth, 16."""

TROUBLE_LOG_MS: Final = 60_000
"""How often the log reports a kind of error that peers can cause as often as they like."""

# --- Access --------------------------------------------------------------------------------------

UNIX_ID_MAX: Final = 2**32 - 2
"""The highest id of a user or group; the next number means none."""

UNIX_GROUPS_MAX: Final = 65_536
"""Groups that one peer of a unix socket can be in: Linux's bound."""

TOKENS_MAX: Final = 10_000
"""Entries of a tokens file; it is read on the loop, a quarter of a second if it has so many."""

TOKENS_FILE_BYTES_MAX: Final = 16 << 20
"""What is read of a tokens file; ten thousand ordinary entries take 3 MB."""

TOKEN_NAME_CHARACTERS_MAX: Final = 200
"""A token's name appears in lines of the log."""

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
"""`Retry-After` for a producer: a daemon that drains is about to be replaced."""

RETRY_AFTER_FULL_S: Final = 5
"""The same where there is no room: consumers need a while to make some."""

HTTP_BODY_BYTES_DEFAULT: Final = 4 << 20
"""A request's: a thousand jobs of 4 kB each."""

HTTP_BODY_BYTES_MIN: Final = 1 << 10
"""Less would refuse requests of every client."""

HTTP_BODY_BYTES_MAX: Final = 64 << 20
"""A request is parsed whole, and blocks the loop meanwhile: a third of a second for this."""

HTTP_BATCH_MAX: Final = 1_000
"""Jobs put, reserved, acknowledged by one request: some 10 ms of work."""

HTTP_WAIT_MS_MAX: Final = 60_000
"""The longest long poll: proxies often close a connection after a minute."""

HTTP_TOPICS_MAX: Final = 100
"""Topics that one reserve may name: each is looked at before each job."""

HTTP_PAGE_DEFAULT: Final = 100
"""Jobs or topics of a page, by default."""

HTTP_PAGE_BYTES_MAX: Final = 1 << 20
"""A page of jobs takes no further one once the bodies and failures are longer than this; the first
always fits. To write them as one answer takes 2 ms."""

HTTP_PAGE_SLICE_BYTES: Final = 64 << 10
"""Bodies written before other clients have a turn: checking that they are JSON takes 0.4 ms."""

HTTP_PAGE_SLICE_ROWS: Final = 192
"""Jobs of a page written before other clients have a turn: 0.5 ms where all of them have failed."""

HTTP_TOPICS_PAGE_MAX: Final = 1_000
"""Topics of one page of their list: 150 kB of text."""

HTTP_TOPICS_SLICE: Final = 128
"""Topics looked at before other clients have a turn: 0.1 ms."""

READY_BODY_BYTES: Final = 4 << 10
"""A daemon that has no room for a job of this length is not ready for more; most are shorter."""

HTTP_GLOBS_SLICE: Final = 2_000
"""Patterns of a token that are matched with topics' names before other clients have a turn:
1 ms, with patterns that have several stars each."""

HTTP_CALENDAR_TOPICS_MAX: Final = 100
"""Topics of one calendar; with as many spans as there may be, 300 kB of text. All jobs of each are
looked at that come due in its time."""

HTTP_RESERVED_BYTES_MAX: Final = 4 << 20
"""A reserve takes no further job once the bodies are longer than this; the first always fits."""

HTTP_ERRORS_MAX: Final = 100
"""Mistakes that one problem lists: enough to see the pattern."""

HTTP_CONTAINERS_MAX: Final = 250_000
"""Arrays and objects of one request, by its brackets; to read so many takes up to 100 ms. Each of a
thousand jobs may have 250. Without it 4 MiB of empty ones blocked all clients for more than a
second.
"""

HTTP_ERROR_CHARACTERS_MAX: Final = 1_000
"""Of a mistake's field, and of what is wrong there: a request of 4 MiB may be one single name."""

HTTP_HEADER_MS_DEFAULT: Final = 10_000
"""How long a request's head may take: from its first byte, the first one from the connection on. A
head is a packet or two, which are lost twice at most in that time."""

HTTP_IDLE_MS_DEFAULT: Final = 75_000
"""How long a connection may be idle after an answer: longer than the minute for which most
proxies keep theirs, so that they close first."""

HTTP_BODY_MS_DEFAULT: Final = 60_000
"""How long a request's body may take in all: 4 MiB then need half a megabit a second."""

HTTP_BODY_GRACE_MS: Final = 10_000
"""For this time a body may be slower than the following."""

HTTP_TAKE_MS: Final = 10_000
"""How long a client may take too little of an answer before it is closed."""

HTTP_TIMEOUT_MS_MIN: Final = 1_000
"""The deadlines are looked at once a second, when one has come."""

HTTP_TIMEOUT_MS_MAX: Final = 3_600_000
"""An hour; more is as good as no deadline."""

HTTP_LOOK_MS: Final = 10_000
"""How often a connection is checked while its request is being handled."""

LOOKS_MAX: Final = 256
"""Connections looked at before others have a turn: 0.3 ms, 3 ms if all of them are closed."""

HTTP_LINE_BYTES_MAX: Final = 8_190
"""Of a request's path with its query: what Apache and others take."""

HTTP_HEADER_BYTES_MAX: Final = 8_191
"""Of one header's value. One more than above, by which it is known which of them was too long."""

HTTP_HEADERS_MAX: Final = 128
"""Headers of a request."""

HTTP_ROW_MAX: Final = 32
"""Requests of one connection that have come before the first is answered; then none is read until
half of them are. As aiohttp has it."""

HTTP_BODY_BUFFER_BYTES: Final = 256 << 10
"""Of a body that comes faster than its handler reads it: with twice as much reading pauses. Most
bodies fit, and those of a thousand connections fit into memory."""

HTTP_SMALL_BYTES: Final = 16 << 10
"""A request of this length is never refused because others fill the space for bodies: so workers
can still acknowledge, and operators can look at the daemon."""

HTTP_HELD_BYTES_DEFAULT: Final = 64 << 20
"""Requests that have been read and not been answered, together: 16 of the longest."""

HTTP_HELD_BYTES_MIN: Final = 1 << 20
"""Below that a handful of clients would block each other."""

HTTP_HELD_BYTES_MAX: Final = 16 << 30
"""More than most machines have."""

HTTP_CONNECTIONS_PER_IP_DEFAULT: Final = 1_000
"""Of one address; those of this machine do not count."""

HTTP_STRANGERS_PER_IP_DEFAULT: Final = 100
"""The same for connections on which no valid token has been shown yet."""

HTTP_REPLY_PAUSE_BYTES: Final = 64 << 10
"""With more than this waiting for a client, no more of its requests are handled."""

TLS_HANDSHAKE_MS: Final = 10_000
"""As long as for a request's head."""

TLS_CLOSE_MS: Final = 5_000
"""How long a peer may take to close."""

HTTP_STOP_MS_MAX: Final = 5_000
"""How long a stop waits for answers that are being written."""

IDEMPOTENCY_KEY_BYTES_MAX: Final = 255
"""Of the header's value."""

IDEMPOTENCY_MS: Final = 24 * 3_600 * 1_000
"""How long a put's Idempotency-Key is remembered: longer than any sensible client retries."""

TTR_MS_DEFAULT: Final = 60_000
"""The ttr of a job put over HTTP without one, in a topic whose policy has none."""

PRIORITY_DEFAULT: Final = 65_536
"""The priority of a job put over HTTP without one: what beanstalk clients use."""

HTTP_HOSTS_KNOWN_MAX: Final = 64
"""Values of the Host header that were accepted and need no second check."""

SECONDS_WRITTEN_MAX: Final = 1_024
"""Seconds that are kept as they are written: a tenth of a megabyte."""

TARGETS_KNOWN_MAX: Final = 1_024
"""Paths whose route is remembered: 2 µs less for each request of a producer."""

TARGET_KNOWN_CHARACTERS: Final = 256
"""The length of such a path at most, so that clients cannot fill the memory with long ones."""

LADDERS_KNOWN_MAX: Final = 64
"""Retry ladders whose steps are remembered by how they were written: 2 MB if all are long."""
