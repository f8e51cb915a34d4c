"""Every limit of delayd, with its unit in the name; its reason stands before it or on its line."""

from typing import Final

# --- Jobs and topics -----------------------------------------------------------------------------

JOB_ID_MAX: Final = 2**64 - 1  # ids are u64 on every wire
PRIORITY_MAX: Final = 2**32 - 1  # beanstalkd's u32; 0 is the most urgent
PRIORITY_URGENT_BELOW: Final = 1024  # what beanstalkd's statistics count as urgent
SECONDS_MAX: Final = 2**32 - 1  # delays, ttr and pauses are u32 seconds on the line: 136 years
# The longest delay, ttr or pause: the same in milliseconds.
DURATION_MS_MAX: Final = SECONDS_MAX * 1_000
# The latest absolute time: the end of the year 9999, the last one that RFC 3339 can write.
WALL_MS_MAX: Final = 253_402_300_799_999
# What a ttr of 0 means (beanstalkd): a reservation that ends at once would repeat for ever.
TTR_MS_FOR_ZERO: Final = 1_000
# beanstalkd's default; its clients' tests expect 65,536 to be refused.
BODY_BYTES_DEFAULT: Final = 65_535
# beanstalkd's highest `-z`; one frame of the journal must hold a job, and its length is a u32.
BODY_BYTES_CEILING: Final = 1 << 30
TOPIC_NAME_BYTES_MAX: Final = 200  # beanstalkd's rule; a name fits a URL and a label
# Topics that one client may watch: to wait for a job of each takes 0.1 ms, to close 2 ms.
TOPICS_WATCHED_MAX: Final = 1_000
# A client's own name for a job: a row's number, a UUID, a short path. Its length is a u8.
KEY_BYTES_MAX: Final = 200
GROUP_BYTES_MAX: Final = 200  # of a job's group, as of a key
# How often the turn of one group may come where another's comes once.
GROUP_WEIGHT_MAX: Final = 1_000
GROUP_WEIGHTS_MAX: Final = 200  # groups of a topic with a weight of their own: a policy stays short
# A body in which the group of a job is looked for: 1 ms at most. beanstalkd's longest by default.
GROUP_BODY_BYTES_MAX: Final = 64 << 10
# Groups that an answer has: the first page of a list for people.
GROUPS_SHOWN_MAX: Final = 1_000
# Groups of one topic that are paused at once: they are kept though they may have no job.
GROUPS_PAUSED_MAX: Final = 1_000
# How much of a worker's error text is kept: the line that matters of a traceback.
ERROR_BYTES_MAX: Final = 1_024
# Attempts of a job that are kept: the last ones. With names and words of usual length one takes 60
# bytes, at most 284: a policy may ask for 6 kB a job.
HISTORY_DEFAULT: Final = 5
HISTORY_MAX: Final = 20
HISTORY_WHO_BYTES_MAX: Final = 64  # a token's name, and an address: 39 characters at most
HISTORY_ERROR_BYTES_MAX: Final = 200  # the first line; the last error is kept whole beside it
# A consumer whose reservation ends this soon gets DEADLINE_SOON at once (beanstalkd).
DEADLINE_SOON_MS: Final = 1_000

# --- Policies ------------------------------------------------------------------------------------

# Steps of a ladder: their number is a u8 in a job's record, which a ladder makes 2 kB longer.
RETRY_STEPS_MAX: Final = 255
ATTEMPTS_MAX: Final = 65_535  # a u16 in a job's record; for more, set no maximum
JITTER_PERCENT_MAX: Final = 100  # jitter may double a step; more would be another ladder
# The highest cap on jobs or bytes: more than any memory, and still an exact number in JSON.
CAP_MAX: Final = 2**62
RATE_PER_S_MIN: Final = 0.001  # one job in a quarter of an hour; for a slower rate use delays
RATE_PER_S_MAX: Final = 1_000_000  # more than one daemon can hand out

# How much of its rate a topic may catch up on after an idle time: a tenth of a second's worth, one
# job at least. With none at all a wheel that ticks in milliseconds could not reach rates above
# 1,000 a second.
RATE_BURST_MS: Final = 100

# Steps of a ladder whose errors are listed: enough to see the pattern.
RETRY_STEPS_NAMED_MAX: Final = 10
# A policy as text: a ladder of 255 steps written at length takes half of it.
POLICY_JSON_BYTES_MAX: Final = 16 << 10
# Hexadecimal digits: of two policies of one topic, one in 10**19 pairs has the same tag.
POLICY_TAG_CHARACTERS: Final = 16
# Topics that clients have given policies: each stays with no job, 10 MB with policies of a few
# fields, 160 with the longest, and a start reads them all. More are patterns of the configuration.
POLICIES_MAX: Final = 10_000

# --- Push ----------------------------------------------------------------------------------------

TARGET_URL_BYTES_MAX: Final = 2_048  # what servers and proxies take without being told
TARGET_HEADERS_MAX: Final = 32  # of a target; delayd adds a dozen of its own
TARGET_HEADER_NAME_BYTES_MAX: Final = 100  # the longest registered name has 45
# All headers of a target: half of what servers take together. With the url they fit a u16 easily.
TARGET_HEADERS_BYTES_MAX: Final = 4_096
TARGET_NAME_BYTES_MAX: Final = 64  # the name of a secret or of a sink
TARGET_SECRETS_MAX: Final = 2  # the former one and the new one, while they are exchanged
TARGET_CONCURRENCY_MAX: Final = 256  # calls of the whole daemon that are under way at once
TARGET_TOPICS_MAX: Final = 16  # topics that a job may be pushed through, one after the other
HTTPS_PORT: Final = 443
PORT_MAX: Final = 65_535
# Calls under way at once: a task, a connection and a body each. At 256 with answers after 100 ms,
# 2,560 jobs go out in a second.
PUSH_CALLS_DEFAULT: Final = 256
PUSH_CALLS_MAX: Final = 10_000
# To one host: enough to keep it busy, few enough that a slow one leaves the others their share.
PUSH_CALLS_PER_HOST_DEFAULT: Final = 8
# How long an attempt may take, from looking up the host's name to the end of the answer.
PUSH_TIMEOUT_MS_DEFAULT: Final = 15_000
PUSH_CONNECT_TIMEOUT_MS_DEFAULT: Final = 5_000
PUSH_TIMEOUT_MS_MIN: Final = 100
PUSH_TIMEOUT_MS_MAX: Final = 600_000  # ten minutes; what takes longer is for workers
# What calls under way may take at a stop, which as a whole takes `STOP_MS_MAX` without them.
PUSH_STOP_GRACE_MS_DEFAULT: Final = 3_000
PUSH_STOP_GRACE_MS_MAX: Final = 30_000  # half of what systemd's unit leaves to a stop
# Of the log's identity, in the ids of messages: no two logs share them by chance.
LOG_ID_BYTES: Final = 8
# For how much longer than an attempt may take its job is reserved, so that the answer that comes at
# the last moment finds it held.
PUSH_LEASE_EXTRA_MS: Final = 5_000
# The longest time for which a receiver may put off the next attempt (Retry-After).
PUSH_RETRY_AFTER_MS_MAX: Final = 24 * 3_600 * 1_000
# A longer body is not read to see whether it is JSON, which would take more than 0.2 ms: its first
# and its last byte decide.
PUSH_LOOK_BYTES_MAX: Final = 64 << 10
# How long deliveries take: from a sink on this machine to the longest timeout there is.
PUSH_BOUNDS_MS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 600_000),
)
# How long a stop waits for sinks to close their connections, and for tasks that were cancelled; and
# how long an answered call's connection may take to close before it is cut off.
PUSH_CLOSE_MS: Final = 500
# Lines of the log in a minute about places that fail or succeed again: there may be very many.
PUSH_LOG_LINES: Final = 60
PUSH_LOG_MS: Final = 60_000
# Topics that the log names at a start or SIGHUP because their jobs cannot be delivered.
PUSH_TOPICS_LOGGED_MAX: Final = 20
# Lanes and jobs that are looked at for calls before clients have a turn: a millisecond.
PUSH_STEPS_PER_TURN: Final = 128
# Places without jobs that are remembered because attempts there have failed: 5 MB.
PUSH_PLACES_KEPT_MAX: Final = 10_000

# Failed attempts in a row, for which the place itself is to blame, after which nothing is tried
# there for a while: one by chance is frequent, five are not.
BREAKER_FAILURES: Final = 5
# For how long the first time, and at most; each time twice as long. A restart takes some seconds,
# and a place that is back must not be kept waiting for longer than a minute.
BREAKER_OPEN_MS: Final = 1_000
BREAKER_OPEN_MS_MAX: Final = 60_000
# For how long a place that fails costs the jobs of its probes no attempt: as long as the usual
# ladder. What is sent to a place that is gone for good must become dead letters in the end.
BREAKER_SPARES_MS: Final = 24 * 3_600_000
# Of topics that have not failed at a host which is in doubt: the next sees for itself when the call
# of the one before has ended, or after this time, since that topic may be the only one that gets no
# answer. So many at once, as many as a host usually has (`PUSH_CALLS_PER_HOST_DEFAULT`).
BREAKER_FIRST_PROBE_MS: Final = 1_000
BREAKER_FIRST_PROBES_MAX: Final = 8

# Hosts for which is remembered whether the configuration allows to call them: 0.1 MB.
HOSTS_MATCHED_MAX: Final = 256
# Urls that are not vetted again at each call; vetting takes a tenth of a call's time.
PUSH_URLS_KNOWN_MAX: Final = 1_024

# How much of an answer is kept, for people who look for the reason; and how much is read and thrown
# away, for up to how long, so that the connection can be used again.
PUSH_ANSWER_BYTES_MAX: Final = 1_024
PUSH_ANSWER_READ_BYTES_MAX: Final = 64 << 10
PUSH_ANSWER_MS: Final = 1_000
# Interim answers (1xx) before an answer. Go's client allowed five; this is one every 20 s, as some
# servers say 102 Processing, for the longest timeout there is.
PUSH_HINTS_MAX: Final = 32
# Status line and headers, with those of the hints before: twice what servers take of clients.
PUSH_HEAD_BYTES_MAX: Final = 16 << 10
# Of a body that comes in chunks; 3 us each. Only an answer with fewer keeps its connection.
PUSH_CHUNKS_MAX: Final = 64
PUSH_CHUNK_LINE_BYTES_MAX: Final = 256
# Of an answer with what TLS adds; and of a handshake, in which certificates have 100 KiB at most.
PUSH_RECEIVED_BYTES_MAX: Final = 160 << 10
# Calls that begin, and connections that are opened, in one pass of asyncio: 0.2 ms each.
PUSH_BEGUN_PER_PASS: Final = 8
# Read of a connection at once: most answers are shorter. And how long the connections of a sink are
# read, all together, before the daemon's clients have a turn; 256 answers may come at once.
PUSH_READ_BYTES: Final = 4 << 10
PUSH_READ_SLICE_US: Final = 1_000
# What the kernel holds of what a server sends and we have not read. It grows to 6 MB by itself.
PUSH_RECEIVE_BUFFER_BYTES: Final = 64 << 10
# Of a request at once: what TLS encrypts in a tenth of a millisecond. A longer body goes piece by
# piece, as the receiver takes it.
PUSH_PIECE_BYTES: Final = 64 << 10

# How long an idle connection is kept: servers close theirs after 5 s or later, and a call that is
# sent just then fails. Of how many origins: with 8 calls at once each has 8 connections.
PUSH_IDLE_MS: Final = 4_000
PUSH_ORIGINS_KEPT_MAX: Final = 64

# Look-ups of names under way: each has a thread.
PUSH_LOOKUPS_MAX: Final = 32
# For how long the addresses of a name are remembered, and of how many names: 8 calls to a host that
# begin at once need one look-up.
PUSH_NAMES_MS: Final = 10_000
PUSH_NAMES_MAX: Final = 1_024

# --- Schedules -----------------------------------------------------------------------------------

# Of a cron expression: each of the 60 minutes written down, and each of the 24 hours.
CRON_CHARACTERS_MAX: Final = 256
EVERY_MS_MIN: Final = 1_000  # for what is to happen more often than once a second, use a worker
EVERY_MS_MAX: Final = 366 * 86_400_000  # a year; what is rarer has a date, as cron's do
ZONE_CHARACTERS_MAX: Final = 64  # the longest name of a time zone has 32
# Cron expressions that have been read and are remembered: 1 kB each, and 50 µs to read one.
CRONS_KEPT_MAX: Final = 1_024
ZONES_KEPT_MAX: Final = 256  # 9 kB each, and 0.3 ms to read one
# How far apart the offsets of a time zone are looked at. Since 1970 no zone has changed its clock
# twice within this, three days: the shortest time was a week, in Brazil in 2000.
ZONE_PROBE_S: Final = 1 << 18
# 16 looks are one window, 48 days: it takes 20 µs, and is kept with 450 bytes. So many windows are
# ten years of 27 zones.
ZONE_WINDOW_S: Final = 1 << 22
ZONE_WINDOWS_KEPT_MAX: Final = 2_048

# Of a schedule's name: a run's key is the name, an @ and its time in UTC with milliseconds.
SCHEDULE_NAME_BYTES_MAX: Final = KEY_BYTES_MAX - 25
# Schedules of one daemon; each takes less than a kilobyte beside its body.
SCHEDULES_MAX: Final = 1_000_000
# Names of schedules in one line of the log.
SCHEDULES_LOGGED_MAX: Final = 10
# The note of a pause, for people.
SCHEDULE_NOTE_BYTES_MAX: Final = 500
# What a schedule is, as JSON without its body: longer than any with a long url and many headers.
SCHEDULE_JSON_BYTES_MAX: Final = 16 << 10
# By how much a run may be put off so that not all schedules of an hour run at once.
SCHEDULE_JITTER_MS_MAX: Final = 24 * 3_600_000
# Missed runs that are made up for at once, the newest: what comes after a week's stop must not be a
# week's work.
SCHEDULE_MADE_UP_MAX: Final = 100
# Of the time that is looked back to count missed runs: ten years, a few ms. More is a wrong clock.
SCHEDULE_COUNTED_MS: Final = 3_653 * 86_400_000
# How late a run may be without being missed, where missed runs are dropped: longer than a restart.
SCHEDULE_GRACE_MS: Final = 60_000
# How late a run counts as late.
SCHEDULE_LATE_MS: Final = 1_000
# Runs of a past range, in one request.
SCHEDULE_BACKFILL_MAX: Final = 1_000
# Times that a preview shows at most, and by default.
SCHEDULE_PREVIEW_MAX: Final = 100
SCHEDULE_PREVIEW_DEFAULT: Final = 10
# Schedules that run in one slice, 0.1 ms each; others have their turn between the slices.
SCHEDULE_SLICE_RUNS: Final = 4
# After how long runs are tried again that the log had no space for, or a draining daemon.
SCHEDULE_RETRY_MS: Final = 1_000
# By how much the wall clock must be set back before schedules are planned anew.
SCHEDULE_STEP_MS: Final = 1_000
# Schedules whose metrics have their names.
SCHEDULES_SHOWN_MAX: Final = 500

# --- Figures -------------------------------------------------------------------------------------

# The buckets of lateness: from the tick of the wheel to the hour, two to three times the one
# before. Each is a series of every topic, so there are no more.
LATENESS_BOUNDS_MS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000, 1_800_000, 3_600_000),
)

# The age of the oldest ready job is exact to 2**7 = 128 ms: what people look at is seconds.
AGE_SLOT_BITS: Final = 7

# Slots of ages in one topic, 12 kB; with more they get wider, which makes the age of the oldest
# exact to a 64th of itself.
AGE_SLOTS_MAX: Final = 128

# Ready jobs of a topic that came back or were kicked and for which the time since when they are
# ready is remembered: 9 MB.
AGES_KEPT_MAX: Final = 100_000

RATE_WINDOW_MS: Final = 60_000  # rates are reported for the last minute
# A ready job that has waited so long is more than a burst: as long as the time of rates, in which
# nobody has taken one then.
READY_AGE_TROUBLE_MS: Final = RATE_WINDOW_MS
RATE_WINDOW_MS_MIN: Final = 1_000  # after the start; of less time a rate says nothing
# How often counters are written down for it, at most: a sixth of the minute.
RATE_CELL_MS: Final = 10_000
MINUTE_MS: Final = 60_000
HISTORY_MINUTES_MAX: Final = 1_440  # a day of what has happened in each: 400 kB
RATE_CELLS: Final = 8  # six make a minute; one may reach into it, and one has just begun

# Topics whose metrics have their name as a label. Each has up to 50 series, so a scrape has 10,000
# at most, which is what one target should have; the others are summed as one.
TOPICS_SHOWN_MAX: Final = 200

# The buckets of syncs and commits: from a disk with a battery, 0.1 ms, to one that hangs.
SYNC_BOUNDS_NS: Final = (
    *(100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000),
    *(50_000_000, 100_000_000, 200_000_000, 500_000_000, 1_000_000_000, 5_000_000_000),
)

# The buckets of batches: from a lone client's record to what comes within a slow sync.
BATCH_BOUNDS_RECORDS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)

# The buckets of how long the loop was blocked: nothing of ours should exceed 5 ms.
HELD_BOUNDS_NS: Final = (
    *(100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000),
    *(50_000_000, 100_000_000, 500_000_000, 1_000_000_000),
)
REQUEST_BOUNDS_NS: Final = (
    *(500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000, 50_000_000, 100_000_000),
    *(500_000_000, 1_000_000_000, 10_000_000_000, 60_000_000_000),  # as long as a wait may be
)

# Values that a histogram gathers before it counts them, all at once: 10 µs.
HISTOGRAM_FRESH_MAX: Final = 256

# Shorter times are not compared with the longest of the minute: that would cost every turn 0.2 µs.
HELD_NOTED_NS: Final = 500_000
# The loop was blocked for so long that it is worth a line in the log, with what took the time.
HELD_LOGGED_NS: Final = 100_000_000
TOTALS_STEP_TOPICS: Final = 200  # topics counted in one step of the totals: 0.4 ms
METRICS_STEP_TOPICS: Final = 20  # topics in one piece of a scrape at most: 0.5 ms, 50 kB
# The same for schedules, 20 µs each.
METRICS_STEP_SCHEDULES: Final = 25
# Words for why something was refused, twice as many as there are: each is a series.
REFUSAL_REASONS_MAX: Final = 64
# The longest of the last minute is exact to a tenth of a minute.
LONGEST_CELL_NS: Final = 6_000_000_000
LONGEST_CELLS: Final = 10  # how many of these make a minute

# Topics that a scrape gives a name to in place of others, when they have become much busier: each
# ends 50 series and begins as many.
TOPIC_SWAPS_MAX: Final = 8

# --- Slices: how much is done at once before other clients are served ----------------------------

# Wheel entries one topic may fire or cascade before the next has its turn: about 0.3 ms.
ADVANCE_SLICE_JOBS: Final = 128

# How long one turn may fire due jobs, over many topics with a few each. It ends sooner with a slice
# that leaves more of its wheel due: eight workers that share 1,000 jobs a second of another topic
# have 8 ms for each, which is four turns; with two slices in each they were 13 ms late, with one
# they are 6 ms.
ADVANCE_SLICE_US: Final = 500

# Entries of a bucket that are sorted instead of cascaded, for each slot of the level below it: less
# than that many would share a bucket there.
SORTED_ENTRIES_PER_SLOT: Final = 8
# The same at most, with all that is sorted already: 0.1 to 0.2 ms when the last of them are sorted.
SORTED_ENTRIES_MAX: Final = 2_048

TASK_SLICE_US: Final = 500  # how long one turn may run background tasks: as with due jobs

# How long asyncio may begin one pass after the other before there is a turn. A pass that takes this
# long, such as one with a slice of a long request, is followed by a turn as ever.
PASSES_US: Final = 500
# Jobs that one step of a task looks at: 0.2 to 0.3 ms, so several tasks share one turn.
TASK_STEP_JOBS: Final = 256
# Jobs that a task could have looked at in the time it takes to go to the next place: 5 µs.
PASS_BUCKET_COST: Final = 8

# The same for doing something to a job: rescheduling takes 5 µs. Deleting takes 1.5, but may return
# a MiB of memory to the system: 0.1 ms, and now and then 30 times in a row.
PASS_ACTION_COST: Final = 8

# Jobs that the line's kick of a tube makes ready at once: 1.5 to 3 ms. More are kicked in slices.
KICKS_AT_ONCE: Final = 128
# Delayed jobs among which the soonest due is found at once, to be kicked or peeked at: 1 ms.
DELAYED_SORTED_MAX: Final = 1_000
# Of more, so many are looked for to be peeked at: the first may have gone by the end of the search.
DELAYED_SEARCHED: Final = 10
# To match a name of 30 characters with patterns takes so long in µs, and one more for so many
# characters of the patterns; the longest name six times as long.
MATCHED_US: Final = 4
MATCHED_CHARACTERS_PER_US: Final = 200
# Names of topics for which the configured policy is remembered, 0.4 MB: of each that ends and
# begins anew, and that a client asks for.
TOPICS_MATCHED_MAX: Final = 1_024
# The same for each token that is for some topics: with 10,000 of these tokens 60 MB at most.
TOKEN_TOPICS_MATCHED_MAX: Final = 16
TOPICS_AT_ONCE: Final = 1_000  # which the line's `stats` and `list-tubes` look at in one go: 1 ms
# Topics that a connection ceases to watch at once when it closes: more in slices, 2 µs each.
UNWATCHED_AT_ONCE: Final = 16

# Jobs that come back at once in one turn because the connections end that held them: 1.5 to 5 ms.
# The others come back in slices.
RETURNS_PER_TURN: Final = 128
RETURNS_PER_STOP_TURN: Final = 4_096  # at a stop, where no client waits for a turn: 50 to 150 ms
# How many of those others the reserves of one turn have given back in vain, while nothing is ready
# in the topics they watch: 1 ms.
RETURN_SEARCHES_PER_TURN: Final = 32

# Up to this many reservations are copied and scanned, in 0.2 ms; with more the table of all jobs is
# scanned instead.
PASS_HELD_COPIED_MAX: Final = 16_384

# Jobs of one page of a list: 100 kB of text, and what is found is kept in memory until it is sent.
SEARCH_JOBS_MAX: Final = 1_000
# Of an error, so much tells the reason for which jobs are grouped: what differs mostly comes later.
REASON_CHARACTERS_MAX: Final = 200
# Groups of the dead letters of a topic that are kept while they are counted: 1.5 MB; the jobs of
# others are counted alone. And those that are told, the largest: 60 kB of text.
REASONS_KEPT_MAX: Final = 2_000
REASONS_SHOWN_MAX: Final = 200
# Jobs a second, when many are kicked one after the other; faster is at once.
BULK_PER_S_MAX: Final = 1_000_000
CALENDAR_BINS_MAX: Final = 1_000  # counts of one calendar: a week in steps of ten minutes

# Steps of the wall clock within the seconds that it takes to place a million jobs again. With one
# more the jobs that have waited the longest are placed at once.
WALL_STEPS_MAX: Final = 8

# How far the wall clock must have moved to where jobs would be late before they are placed again:
# the reading is exact to a millisecond, its rounding takes one more. To where they would be early,
# any difference counts. Slewing moves the boot clock as well, and so nothing.
WALL_STEP_MS: Final = 2

# How far apart two readings of the boot clock may be for the wall clock between them to count: what
# is not known makes jobs late. A process that was stopped in between reads once more.
WALL_BRACKET_NS: Final = 100_000

WALL_READINGS_MAX: Final = 4  # how often it reads before it takes what it got

# How long a turn waits, with jobs due, for a sync that is in progress: on two processors, both
# busy, the kernel would have no processor for it. It takes 0.2 ms then instead of 3.
SYNC_BREATHER_MS: Final = 1

# A turn does its sync itself while the disk takes no longer than this on average; a busy machine
# makes one in twenty take 4 ms. When it takes longer, others do all syncs for so many times as
# long as the last took: a slow disk holds the loop for 1 % of the time. More bytes than these go
# elsewhere too: the loop has enough to do meanwhile. How much of a sync was a wait for a processor
# is looked at while they take longer than the second: to look takes 8 µs.
QUICK_SYNC_NS: Final = 1_000_000
WATCHED_SYNC_NS: Final = 500_000
QUICK_SYNCS_AVERAGED: Final = 16
SLOW_SYNC_PAUSE_TIMES: Final = 100
SYNC_IN_TURN_BYTES_MAX: Final = 65_536

# For how long the loop looks for more before it sleeps, if the last came within twice as long, and
# stays awake before a job is due. To be woken takes 50 to 75 µs on a virtual machine.
BUSY_POLL_US: Final = 100

# A look for events takes a few µs; one that takes longer than this was interrupted by some process.
# For so long the loop does not stay awake then: it is woken soon only while it takes its share.
INTERRUPTED_US: Final = 300
INTERRUPTED_PAUSE_MS: Final = 1_000

# Stale wake-ups tolerated in addition to two for each live one: 100 kB, and sweeps stay rare.
TIMER_STALE_ROWS: Final = 1_024
# Rows that are moved to a new heap, without the stale ones, for each that is pushed meanwhile.
TIMER_ROWS_MOVED: Final = 4

# --- The wheel's dead entries --------------------------------------------------------------------

# Dead entries tolerated for each live one: 24 bytes. Cancelling all of a wheel then examines four
# entries for three cancels, where one for each live one would be two for each cancel.
SWEEP_DEAD_PER_LIVE: Final = 3
# Dead entries tolerated in addition: 8 kB, and small wheels never sweep.
SWEEP_SLACK_ENTRIES: Final = 1_024
# Entries that one step of a sweep examines: 0.1 to 0.25 ms, the longest a cancel can take.
SWEEP_CHUNK_ENTRIES: Final = 1_024

# What a cancel pays towards the next step: a sweep is over after held/16 cancels, and a thousand
# cancels in one turn sweep for 4 ms at most.
SWEEP_ENTRIES_PER_CANCEL: Final = 16

# Entries that could have been examined in the time it takes to go to the next bucket: 2 µs.
SWEEP_BUCKET_COST: Final = 16

# --- The index of keys ---------------------------------------------------------------------------

# From this many keys of a topic on its index is a dict for each `KEY_PARTS`th of them: the division
# takes 1 ms, and 256 dicts for few keys would take more memory than what is in them.
KEYS_UNDIVIDED: Final = 8_192

# A dict of 40,000 keys, a part of ten million, takes 1 ms to grow. 64 are as fast, and 1,024 take
# longer by a tenth, since they leave the cache.
KEY_PARTS: Final = 256

# Neighbours that an entry may mean. With 8 a look-up costs 1 µs and an entry 4 bytes more than a
# hash, with 16 they would be 2 µs and 2 bytes.
KEY_ANCHOR_IDS: Final = 8

# A dict that takes more than this for each of its entries is made again. One that grows takes 54 at
# most, so it is left alone until four fifths have gone.
KEY_BYTES_SPARSE: Final = 256

# --- The journal ---------------------------------------------------------------------------------

# What the journal may take in addition to twice the live data. A snapshot for every 32 MiB of
# garbage, so every ten seconds under the heaviest load; the tail that a start must replay takes 1.5
# s at most.
JOURNAL_SEGMENT_BYTES_DEFAULT: Final = 256 << 20

# A page; a smaller segment would be mostly header. Only tests go this low.
JOURNAL_SEGMENT_BYTES_MIN: Final = 4 << 10
# One frame: it holds the largest job and its record; a larger length field is damage.
JOURNAL_PAYLOAD_BYTES_MAX: Final = 2 << 30
# How much of a segment is read at a time; a longer frame is read whole, if its file holds it.
JOURNAL_WINDOW_BYTES: Final = 1 << 20

# The log is cut into files of a quarter of the configured size: that size is the slack of the bound
# on disk use, and two half-used files at the ends of the log must fit into it.
JOURNAL_FILES_PER_SEGMENT: Final = 4

# The file in which the log of an idle daemon continues when nearly nothing is live: it takes 700
# jobs, beside `EMERGENCY_BYTES`, before the next file of the usual length is made.
JOURNAL_SHRUNK_BYTES: Final = 1 << 20

# An idle log is shrunk when it is longer than this many times the live data and a part of a file.
GARBAGE_PER_LIVE: Final = 8
# That part, 4 MiB by default: shrinking takes two snapshots and ten syncs, 20 ms in all.
GARBAGE_PER_FILE: Final = 16
# On a full disk puts are refused until the log is shorter: it is worth a snapshot then as soon as
# more than that is garbage, and so much beside.
GARBAGE_PER_LIVE_FULL: Final = 2
GARBAGE_BYTES_FULL: Final = 256 << 10
# The shortest file in which the log continues then.
SHRUNK_BYTES_FULL: Final = 16 << 10
# Full files that may wait for a sync; each holds a descriptor and a file of dirty pages.
JOURNAL_UNSYNCED_SEGMENTS_MAX: Final = 16

# The same during a slow sync in another thread: appending waits for it only above this. Clients are
# no longer read from long before, unless the segments are very small.
JOURNAL_UNSYNCED_SEGMENTS_WITHIN_SYNC: Final = 256

# Space kept in the log for each job: reserving it (71 bytes) and deleting it (63), each by a lone
# client and so in a frame of its own.
JOB_REMOVAL_BYTES: Final = 136

# Space kept beside it for each job held: its return when the connection closes. Under a retry rule
# that is a failed attempt (99 bytes without a text), which the end of a segment may not fit.
HELD_RETURN_BYTES: Final = 198

# A frame with two TURN records (63 bytes), twice: the end of a segment may not fit it.
TURN_OVERHEAD_BYTES: Final = 128

# Space that no put may take: it lasts an hour for a client that touches its job once a second, and
# for 1,100 reserved jobs.
EMERGENCY_BYTES: Final = 256 << 10

# With this much space left it is not checked after every turn.
SPACE_PLENTY_BYTES: Final = EMERGENCY_BYTES + (1 << 20)
# After this many turns it is checked anyway, and the surplus is released.
SPACE_TURNS_MAX: Final = 64
# The smallest file of the reserve: a job of the default size fits, and a disk of 1 MB has some.
SPARE_BYTES_MIN: Final = 128 << 10
# A longer body may not fit any file of the reserve with its headers; it gets a file of its own.
LONG_BODY_BYTES: Final = SPARE_BYTES_MIN - 1_024
# What a job's record takes beside its body at most, with a TOPIC record before it.
JOURNAL_RECORD_HEAD_BYTES: Final = 512
# What the end of a segment may waste when not even a lone delete (63 bytes) fits it any more.
SPARE_SLACK_BYTES: Final = 64

# Zeros are written over so much of the preallocated space after a frame at once, in 0.4 ms: a sync
# of 190 bytes then takes 100 µs instead of 114 on average, one of 7,500 bytes 156 instead of 430.
# After longer frames it would not pay: they begin new blocks with each sync in any case.
ZEROED_AHEAD_BYTES: Final = 256 << 10
ZEROED_AHEAD_FRAME_BYTES_MAX: Final = 32 << 10
# A file system notes for whole blocks whether they were written to.
DISK_BLOCK_BYTES: Final = 4_096

# Payloads kept in memory until they are synced: what one sync covers, what gathers meanwhile (each
# UNSYNCED_BYTES_MAX at most when clients are no longer read from), and one turn more.
JOURNAL_PENDING_BYTES_MAX: Final = 192 << 20

# How old the last look at the files of the journal may be when something is acknowledged.
LOOK_MS: Final = 1_000

# A sync that took longer is worth a line in the log; clients have noticed it too.
SLOW_SYNC_MS: Final = 1_000
# How often a full disk is asked for space again, and only while a client wants to put.
SPACE_RETRY_MS: Final = 1_000
# Copies of torn tails that are kept: nothing in them was acknowledged; a crash loop adds more.
JOURNAL_TORN_COPIES_MAX: Final = 16
# How often a backup or a check lists the files of a directory anew because one of them was removed
# meanwhile: that happens once for a snapshot, and opening what was listed takes microseconds.
BACKUP_ATTEMPTS_MAX: Final = 100
# The fastest: on JSON bodies the higher levels save a tenth more and take three times as long.
SNAPSHOT_DEFLATE_LEVEL: Final = 1
# How much of a snapshot or a backup is written between two syncs: the log's own syncs never wait
# for more.
SNAPSHOT_SYNC_BYTES: Final = 1 << 20
# Jobs copied in one slice, between two turns of the loop: 0.25 ms, 0.8 ms where they are held.
SNAPSHOT_SLICE_JOBS: Final = 1_024
SNAPSHOT_SLICE_BYTES: Final = 64 << 10  # the same where jobs are long: joining them takes 20 µs
SNAPSHOT_PAUSE_MS: Final = 1  # the time for other clients before the next slice

# One frame of a snapshot, a longer job aside. Compressing it takes 1 to 3 ms without the
# interpreter; the loop may have to wait for the 20 µs that need it. Frames of a MiB delayed jobs
# due at that time by 5 ms at the 99th percentile.
SNAPSHOT_PAYLOAD_BYTES: Final = 128 << 10

# Niceness of the thread that compresses and writes: a tenth of a busy processor at most.
SNAPSHOT_NICENESS: Final = 10
# What the loop may have copied and the thread not written: memory for a slow disk.
SNAPSHOT_AHEAD_BYTES: Final = 4 << 20

# How soon after the log has grown it is asked whether a snapshot is due; an idle daemon asks once
# more and sleeps.
SNAPSHOT_ASK_MS: Final = 250

# How long nothing is appended before a daemon counts as at rest, and its log may be shrunk.
SNAPSHOT_CALM_MS: Final = 1_000
# After a snapshot has failed, the next try; each further failure doubles it.
SNAPSHOT_RETRY_MS_MIN: Final = 10_000
# The longest time between two tries: people have to repair what filled or broke the disk.
SNAPSHOT_RETRY_MS_MAX: Final = 640_000

# --- The log in PostgreSQL ------------------------------------------------------------------------

# A password is a line of a file; a longer one is another file.
DATABASE_PASSWORD_BYTES_MAX: Final = 4_096
# Of what a server says, in a sentence for people; a hostile one may say anything.
DATABASE_SAID_CHARACTERS_MAX: Final = 300
# Frames that one statement appends together, if there are several: 20 ms of a network of 1 Gbit/s
# at most, in which no lease is renewed. A turn with more is divided, between records.
DATABASE_APPEND_BYTES_MAX: Final = 2 << 20
# A body: one statement appends it, 0.3 s of two slow cores in which no lease is renewed, and it has
# to fit the reserve, too. PostgreSQL closes the connection at a gigabyte.
DATABASE_BODY_BYTES_MAX: Final = 4 << 20
# Frames that wait for the database before clients are no longer read from: what one statement
# appends, and the next. All of it must fit the reserve if the database is full: it was accepted.
DATABASE_WAITING_BYTES_MAX: Final = 4 << 20
# A part of a snapshot: a row that PostgreSQL keeps in 513 pieces of 2 kB.
DATABASE_PART_BYTES: Final = 1 << 20
# How long a start and a snapshot wait for one answer: a failover to a standby takes less.
DATABASE_ANSWER_MS: Final = 30_000
# How long frames are left for a later time when somebody reads the tables that they are in.
DATABASE_TRUNCATE_MS: Final = 1_000
# How long an owner may be silent before another daemon takes over: three renewals may be late.
DATABASE_LEASE_MS_DEFAULT: Final = 5_000
DATABASE_LEASE_MS_MIN: Final = 1_000  # a database that is busy answers later than that at times
DATABASE_LEASE_MS_MAX: Final = 60_000
# Space that is kept in the database for what waits when it is full, and for removals then: some
# 40,000, one after the other.
DATABASE_RESERVE_BYTES: Final = 8 << 20
# A snapshot in a database that is full: a quarter of that, so that the rest is left to removals.
DATABASE_FULL_SNAPSHOT_BYTES_MAX: Final = DATABASE_RESERVE_BYTES // 4
# How often, and after which pauses, it is tried to give back the space of a snapshot that was given
# up: that takes a few pages itself, which the reserve gives.
DATABASE_CLEAR_TRIES: Final = 20
DATABASE_CLEAR_MS: Final = 250
# How often a database that was full is tried again: each time takes all that is free for a moment.
DATABASE_RESERVE_RETRY_MS: Final = 5_000
# How long the end of a daemon waits until its lease is given up; else it runs out.
DATABASE_RELEASE_MS: Final = 1_000
# How often a lost connection is tried again, and a standby looks for new frames.
DATABASE_RETRY_MS: Final = 250
# How often a standby tells of itself at most, and how often the owner reads of standbys.
DATABASE_ANNOUNCE_MS: Final = 1_000
# A standby that has not told of itself for so long is gone.
DATABASE_STANDBY_GONE_MS: Final = 10_000
DATABASE_STANDBYS_MAX: Final = 16
# A handover needs a standby that is not further behind. It looks four times a second, tells of that
# once a second, and is read of once a second.
HANDOVER_LAG_MS_MAX: Final = 3_000
# A tenth of a lease: how much earlier its owner stops to rely on it; clocks differ in their rate.
DATABASE_LEASE_MARGIN_PARTS: Final = 10
# The owner looks so many times in a lease whether it has to be renewed, which is due after a third.
DATABASE_LEASE_TICKS: Final = 6
# Answers that do not fit what was sent, one after the other, before the log has failed.
DATABASE_ODD_ANSWERS_MAX: Final = 3
# How often the time of an answer is doubled, which is a lease at first: from 5 s to 11 minutes.
DATABASE_PATIENCE_DOUBLINGS: Final = 7

# What a standby that takes over, or is stopped, leaves to answers and statements under way.
STANDBY_END_MS: Final = 100
# So that requests are answered that have come and were not read yet.
STANDBY_LINGER_MS: Final = 10

# --- What the configuration may choose -----------------------------------------------------------

# The resolution of every deadline; a coarser tick only makes jobs later.
WHEEL_TICK_MS_DEFAULT: Final = 1
# With longer ticks clients would notice them, and no cascade is saved.
WHEEL_TICK_MS_MAX: Final = 1_000

# Levels of 256 ms, 65 s, 4.6 h, 50 days, 34 years: most jobs cascade one to three times, and one
# level's buckets are few enough that an empty topic costs next to nothing.
WHEEL_SIZE_DEFAULT: Final = 256

# With one bucket a level's interval would be its tick, and levels would never end.
WHEEL_SIZE_MIN: Final = 2
# One level then spans 65 s at 1 ms; more buckets save no cascade that could be measured.
WHEEL_SIZE_MAX: Final = 65_536
# Disk use stays below twice the live data and one segment: a bigger one would be most of it.
JOURNAL_SEGMENT_BYTES_MAX: Final = 4 << 30
# beanstalkd's default; what `sync = "interval"` may lose in a power cut.
SYNC_INTERVAL_MS_DEFAULT: Final = 50
# An hour; for less frequent syncs use `never`: the operating system writes within a minute.
SYNC_INTERVAL_MS_MAX: Final = 3_600_000
# Open connections of the line protocol; further ones are closed at once.
CONNECTIONS_DEFAULT: Final = 10_000
# What the kernel's own limit of open files allows by default (fs.nr_open is 1,048,576).
CONNECTIONS_MAX: Final = 1_000_000
# Replies that wait for a client that does not read; one reply may be longer.
WRITE_BUFFER_BYTES_DEFAULT: Final = 1 << 20
WRITE_BUFFER_BYTES_MIN: Final = 4 << 10  # a page; a handful of statistics replies must fit
WRITE_BUFFER_BYTES_MAX: Final = 1 << 30  # as much as the longest body
# How long a sink waits for a connection to its server.
SINK_CONNECT_MS_DEFAULT: Final = 5_000
SINK_CONNECT_MS_MIN: Final = 100
SINK_CONNECT_MS_MAX: Final = 60_000
# How long it waits for a broker that is told that the connection ends, and may be frozen.
SINK_CLOSE_MS: Final = 1_000
SINK_PASSWORD_BYTES_MAX: Final = 4 << 10
# Connections of a Redis sink: an attempt has one to itself while it waits for the answer.
SINK_CONNECTIONS_DEFAULT: Final = 16
SINK_CONNECTIONS_MAX: Final = 256
# What a server may send between two of our commands, with what TLS adds: replies have a line each.
SINK_REPLY_BYTES_MAX: Final = 16 << 10
# Of a message beside its body: a key has 250 bytes, a topic 200, and a broker's words are few.
SINK_MESSAGE_BYTES: Final = 4 << 10
# After so long without a word from a server its connection is tried, and again.
SINK_KEEPALIVE_S: Final = 30
# Handed to the library of a kind of sink at once: 64 of the shortest frames or 128 of the shortest
# replies, which take it 1 to 2 ms; and by all connections of a sink together between two turns.
SINK_READ_BYTES: Final = 512
SINK_TURN_BYTES: Final = 2 << 10
STREAM_LENGTH_MAX: Final = 2**62
# A broker that sends nothing for three times as long is taken for dead; RabbitMQ advises 5 to 20.
AMQP_HEARTBEAT_S: Final = 15
AMQP_TEXT_BYTES_MAX: Final = 255  # of a routing key: its length is one byte

# --- What is read from people --------------------------------------------------------------------

# A duration or a size in words; longer is a mistake, and is refused before it is parsed.
QUANTITY_CHARACTERS_MAX: Final = 64
# Of a wrong value, in the sentence that names it: most paths, and no more than people read.
SHOWN_CHARACTERS_MAX: Final = 200
# Connections the kernel holds for us until we accept; it cuts this to net.core.somaxconn.
LISTEN_BACKLOG: Final = 1_024
UNIX_PATH_BYTES_MAX: Final = 107  # sockaddr_un holds 108 bytes, the last of which is NUL

# Marks on one character of a text of others that a terminal shows: more climb over the lines above.
# Letters of all languages in use have four at most.
MARKS_SHOWN_MAX: Final = 4

# --- The service ---------------------------------------------------------------------------------

# How often the service looks for a wake-up that was missed; one wake-up a minute costs nothing.
WATCHDOG_MS: Final = 60_000
STOP_MS_MAX: Final = 5_000  # how long a graceful stop takes
# What clients that do not take their last replies leave to the return of jobs, if many are held.
STOP_RETURNS_MS: Final = 2_000
STOP_CLOSE_MS: Final = 1_000  # what is left to the last sync

# Records and replies that wait for a slow disk before clients are no longer read from. Where no
# reply waits, half of it begins a sync: what is not synced is kept in memory.
UNSYNCED_BYTES_MAX: Final = 64 << 20

# How late the engine may be before the watchdog calls it a fault; slices under load are none.
MISSED_WAKE_UP_MS: Final = 1_000
RECOVERY_REPORT_MS: Final = 1_000  # how often a long recovery says how far it is
# Objects made before the collector looks at the young ones; jobs are bytes and not among them.
GC_YOUNG_OBJECTS: Final = 2_000
# Collections of one generation before the next one's: the oldest is traversed after 50,000 objects
# that have stayed, in 10 to 25 ms.
GC_COLLECTIONS: Final = 5
GC_ALL: Final = 2  # the generation of a collection of all objects
GC_LONG_NS: Final = 5_000_000  # some 50,000 objects: what is left of so many is not traversed again

# --- The line protocol ---------------------------------------------------------------------------

# A command with its CRLF (beanstalkd: space for `pause-tube`, a name of 200 and a u32).
LINE_BYTES_MAX: Final = 224
# The same for commands that beanstalkd does not know: a key of 200 bytes, a ladder, an error.
LONG_LINE_BYTES_MAX: Final = 1_024
# Put lines whose parsing is remembered: producers repeat themselves; at most 1.5 MB.
PARSED_LINES_MAX: Final = 4_096
# The same for puts with words, whose keys differ and nothing else; each has two expressions.
PARSED_SHAPES_MAX: Final = 256
# Jobs that one `reserve-batch` hands out at most; asking for more is no error.
RESERVE_BATCH_MAX: Final = 1_000
# What is read from one connection in one turn; a bound on the work one client gets at once.
READ_BYTES: Final = 16 << 10
# After this time the commands that one client has sent together wait for the next turn.
LINE_SLICE_MS: Final = 2
# After this time the other clients that have sent something wait for it too.
LINE_TURN_MS: Final = 3
# Of clients that have to wait, those whose input has no more lines than this come first: a put and
# its body, and one more. Over TLS the lines cannot be seen, so there it is no more bytes than that.
LINE_LITTLE_LINES: Final = 4
TLS_LITTLE_BYTES: Final = 512
# Equal commands that are executed as one before it looks how long that took: 1 to 2 ms.
LINE_RUN_MAX: Final = 256
# The same for puts with keys, of which each may change the job that has its key: 2 ms.
LINE_KEYED_RUN_MAX: Final = 64
EVENTS_PER_TURN: Final = 64  # connections served in one turn before due jobs and other clients
# How long accepting pauses when there is no descriptor even to close a connection.
ACCEPT_PAUSE_MS: Final = 1_000
ACCEPTS_PER_TURN: Final = 64  # new connections taken in one turn
# How long an incomplete command line may take, in seconds; the same for a TLS handshake.
LINE_INCOMPLETE_S_MAX: Final = 10

# What a client sends of a body from its tenth second on, and takes of an answer, at least and on
# average: a modem of 1990 does.
BYTES_PER_S_MIN: Final = 1 << 10

LINE_BODY_IN_ALL_S: Final = 60  # how long a body may take, whatever its pace..
# ... unless it is one of more than 4 MB: then the time it takes at this many bytes a second.
LINE_BODY_BYTES_PER_S_IN_ALL: Final = 64 << 10
# From one address that is not this machine's own; of IPv6 the first 64 bits are one.
LINE_CONNECTIONS_PER_ADDRESS_MAX: Final = 1_000
# The same for those that have shown no token yet, where tokens are asked for.
LINE_UNAUTHENTICATED_PER_ADDRESS_MAX: Final = 100
# TLS handshakes that one turn continues: up to 1 ms of work each, with RSA keys.
HANDSHAKES_PER_TURN: Final = 8
# A file of certificates or keys in PEM: a system's bundle of all authorities has 230 kB.
PEM_FILE_BYTES_MAX: Final = 1 << 20
# A certificate "expires soon" in its last two weeks, a short-lived one in its last third.
CERTIFICATE_SOON_S: Final = 14 * 86_400
CERTIFICATE_SOON_SHARE: Final = 3
# A client that has read nothing of its replies for this long is closed; its jobs return.
STALLED_CLIENT_MS: Final = 60_000
# How long sent data may stay unacknowledged before a peer counts as gone; half of the above.
TCP_USER_TIMEOUT_MS: Final = 30_000
KEEPALIVE_S: Final = 60  # idle time before an idle peer is asked whether it is still there
# The configuration file is read whole; one that lists a thousand topics has 100 KiB.
CONFIG_BYTES_MAX: Final = 1 << 20
# What a daemon with both protocols, a journal and a few clients needs: it starts with 18.
DESCRIPTORS_MIN: Final = 32
# Not for connections: the journal's next files, a snapshot, those that it has not synced yet.
DESCRIPTORS_RESERVED: Final = 64
# But at most this part of what the process may have: with 64 in all every fourth, 16.
DESCRIPTORS_RESERVED_SHARE: Final = 4
# How often the log reports a kind of error that peers can cause as often as they like.
TROUBLE_LOG_MS: Final = 60_000

# --- Access --------------------------------------------------------------------------------------

UNIX_ID_MAX: Final = 2**32 - 2  # the highest id of a user or group; the next number means none
UNIX_GROUPS_MAX: Final = 65_536  # groups that one peer of a unix socket can be in: Linux's bound
# Entries of a tokens file; it is read on the loop, a quarter of a second if it has so many.
TOKENS_MAX: Final = 10_000
# What is read of a tokens file; ten thousand ordinary entries take 3 MB.
TOKENS_FILE_BYTES_MAX: Final = 16 << 20
TOKEN_NAME_CHARACTERS_MAX: Final = 200  # a token's name appears in lines of the log
# Patterns of topics that one token may have: each is tried before an operation is refused.
TOKEN_GLOBS_MAX: Final = 100
# Wrong tokens from one address before its next ones are answered late: a person mistypes fewer.
AUTH_FAILURES_MAX: Final = 10
AUTH_FAILURES_WINDOW_MS: Final = 60_000  # how long a wrong token counts
AUTH_DELAY_MS: Final = 1_000  # how late: one guess a second for each connection, of 2^256
# Addresses whose failures are remembered, 1 kB each; the one that was quiet for longest goes.
AUTH_PEERS_MAX: Final = 10_000

# Named secrets of webhooks: one for each receiver, of which there are hundreds at most.
SECRETS_MAX: Final = 1_000
NAMES_LOGGED_MAX: Final = 20  # of secrets or sinks in one line of the log
# The file of all of them: four times what they take, so that each can have some topics too.
SECRETS_FILE_BYTES_MAX: Final = 2 << 20

# --- HTTP ----------------------------------------------------------------------------------------

# `Retry-After` for a producer: a daemon that drains is about to be replaced.
RETRY_AFTER_DRAINING_S: Final = 5
# The same where there is no space: consumers need a while to make some.
RETRY_AFTER_FULL_S: Final = 5
HTTP_BODY_BYTES_DEFAULT: Final = 4 << 20  # a request's: a thousand jobs of 4 kB each
HTTP_BODY_BYTES_MIN: Final = 1 << 10  # less would refuse requests of every client
HTTP_BODY_BYTES_MAX: Final = 64 << 20  # held in memory while it is read, in slices
# What `delayd put --ndjson` keeps in memory of a pipe, which it looks at before the first put.
NDJSON_PIPE_BYTES_MAX: Final = 64 << 20
NDJSON_LINE_BYTES_MAX: Final = 64 << 20  # as long as the longest request
NDJSON_WRONG_SHOWN_MAX: Final = 20  # wrong lines that are shown: a screen of them
HTTP_BATCH_MAX: Final = 1_000  # jobs put, reserved, acknowledged by one request: some 10 ms of work
# The longest long poll: proxies often close a connection after a minute.
HTTP_WAIT_MS_MAX: Final = 60_000
HTTP_TOPICS_MAX: Final = 100  # topics that one reserve may name: each is looked at before each job
HTTP_SCHEDULES_PAGE_MAX: Final = 1_000
HTTP_PAGE_DEFAULT: Final = 100  # jobs or topics of a page, by default

# A page of jobs takes no further one once the bodies and failures are longer than this; the first
# always fits. To write them as one answer takes 2 ms.
HTTP_PAGE_BYTES_MAX: Final = 1 << 20

HTTP_TOPICS_PAGE_MAX: Final = 1_000  # topics of one page of their list: 150 kB of text
HTTP_TOPICS_STEP: Final = 128  # topics looked at before it looks how long that took: 0.1 ms
# A daemon that has no space for a job of this length is not ready for more; most are shorter.
READY_BODY_BYTES: Final = 4 << 10

# The same where a token is for some topics: so many of them that their names are matched in 1 ms.
HTTP_TOPICS_STEP_US: Final = 1_000

# Topics of one calendar; with as many spans as there may be, 300 kB of text. All jobs of each are
# looked at that come due in its time.
HTTP_CALENDAR_TOPICS_MAX: Final = 100
# Topics of one page of dead letters by reason: 1.2 MB of text at most.
HTTP_DEAD_TOPICS_MAX: Final = 20

# A reserve takes no further job once the bodies are longer than this; the first always fits.
HTTP_RESERVED_BYTES_MAX: Final = 4 << 20
HTTP_ERRORS_MAX: Final = 100  # mistakes that one problem lists: enough to see the pattern

# Arrays and objects of a job's body, by its brackets; to read so many takes up to 100 ms. Without
# it 4 MiB of empty ones blocked all clients for more than a second.
HTTP_CONTAINERS_MAX: Final = 250_000
# How deep arrays and objects of a request may be nested for certain: the readers of JSON stop
# between here and 1,024, where depends on the interpreter's stack.
HTTP_DEPTH_READ: Final = 900

# A request of this length is read in one go, and so is each job of a longer one: 9 ms where it has
# the costliest there is, ladders of 255 texts; 1 ms for dense JSON.
HTTP_STEP_BYTES: Final = 16 << 10
# Reading so little takes no longer than everything else that is done for a request.
HTTP_FREE_BYTES: Final = 512
# For so long requests of more bytes are read, batches carried out and long answers written before
# other clients have a turn: of all requests together.
HTTP_SLICE_NS: Final = 2_000_000
HTTP_ITEMS_FEW: Final = 16  # of a batch or an answer: less than a slice, also where all fail
# Of those that are acknowledged or written, so many are before it looks how long that took: 0.3 ms.
HTTP_LOOK_ITEMS: Final = 32
# Jobs of a batch that are put together before it looks how long that took: 0.5 ms.
HTTP_RUN_JOBS_MAX: Final = 256
HTTP_RUN_BYTES: Final = 256 << 10  # the same where their bodies are long
# JSON of this length is looked through in one go for where the items of its list end, three times
# with turns between: 5 ms for 4 MiB of ordinary jobs, 8 where all is brackets, numbers or names. It
# is as long as a request may be by default, so a thousand jobs of 4 kB fit; more comes in lines.
HTTP_JSON_BYTES_MAX: Final = 4 << 20
# All that stands in an object beside the bodies of jobs is read in one go, 8 ms for empty arrays: a
# thousand tokens have half of it.
HTTP_FIELDS_BYTES_MAX: Final = 128 << 10
# "Did you mean" in one problem: each takes up to 1 ms.
HTTP_HINTS_MAX: Final = 5

# Of a mistake's field, and of what is wrong there: a request of 4 MiB may be one single name.
HTTP_ERROR_CHARACTERS_MAX: Final = 1_000

# How long a request's head may take: from its first byte, the first one from the connection on. A
# head is a packet or two, which are lost twice at most in that time.
HTTP_HEADER_MS_DEFAULT: Final = 10_000

# How long a connection may be idle after an answer: longer than the minute for which most proxies
# keep theirs, so that they close first.
HTTP_IDLE_MS_DEFAULT: Final = 75_000

# How long a request's body may take in all: 4 MiB then need half a megabit a second.
HTTP_BODY_MS_DEFAULT: Final = 60_000
HTTP_BODY_GRACE_MS: Final = 10_000  # for this time a body may be slower than the following
# How long a client may take too little of an answer before it is closed.
HTTP_TAKE_MS: Final = 10_000
HTTP_TIMEOUT_MS_MIN: Final = 1_000  # the deadlines are looked at once a second, when one has come
HTTP_TIMEOUT_MS_MAX: Final = 3_600_000  # an hour; more is as good as no deadline
HTTP_LOOK_MS: Final = 10_000  # how often a connection is checked while its request is being handled
# The same for a client that sends no more, or is not read from: whether it still takes an answer.
HTTP_GONE_LOOK_MS: Final = 1_000
# Connections looked at before others have a turn: 0.3 ms, 3 ms if all of them are closed.
LOOKS_MAX: Final = 256
# Of a request's path with its query: what Apache and others take.
HTTP_LINE_BYTES_MAX: Final = 8_190
# Of one header's value. One more than above, by which it is known which of them was too long.
HTTP_HEADER_BYTES_MAX: Final = 8_191
HTTP_HEADERS_MAX: Final = 128  # headers of a request

# Requests of one connection that have come before the first is answered; then none is read until
# half of them are. As aiohttp has it.
HTTP_ROW_MAX: Final = 32

# Of a body that comes faster than its handler reads it: with twice as much reading pauses. Most
# bodies fit, and those of a thousand connections fit into memory.
HTTP_BODY_BUFFER_BYTES: Final = 256 << 10

# A request of this length is never refused because others fill the space for bodies: so workers can
# still acknowledge, and operators can look at the daemon.
HTTP_SMALL_BYTES: Final = 16 << 10

# Requests that have been read and not been answered, together: 16 of the longest.
HTTP_HELD_BYTES_DEFAULT: Final = 64 << 20
HTTP_HELD_BYTES_MIN: Final = 1 << 20  # below that a handful of clients would block each other
HTTP_HELD_BYTES_MAX: Final = 16 << 30  # more than most machines have
HTTP_CONNECTIONS_PER_IP_DEFAULT: Final = 1_000  # of one address; those of this machine do not count
# The same for connections on which no valid token has been shown yet.
HTTP_UNAUTHENTICATED_PER_IP_DEFAULT: Final = 100
# With more than this waiting for a client, no more of its requests are handled.
HTTP_REPLY_PAUSE_BYTES: Final = 64 << 10
TLS_HANDSHAKE_MS: Final = 10_000  # as long as for a request's head
TLS_CLOSE_MS: Final = 5_000  # how long a peer may take to close
HTTP_STOP_MS_MAX: Final = 5_000  # how long a stop waits for answers that are being written
HTTP_STOP_STEP_MS: Final = 20  # how often it looks whether they are taken
IDEMPOTENCY_KEY_BYTES_MAX: Final = 255  # of the header's value
# How many are remembered at once: 100 MB, and three puts a second that have one, all day.
IDEMPOTENCY_KEYS_DEFAULT: Final = 250_000
# How long a put's Idempotency-Key is remembered: longer than any sensible client retries.
IDEMPOTENCY_MS: Final = 24 * 3_600 * 1_000
# The ttr of a job put over HTTP without one, in a topic whose policy has none.
TTR_MS_DEFAULT: Final = 60_000
# The priority of a job put over HTTP without one: what beanstalk clients use.
PRIORITY_DEFAULT: Final = 65_536
# Values of the Host header that were accepted and need no second check.
HTTP_HOSTS_KNOWN_MAX: Final = 64
# Seconds that are kept as they are written: a tenth of a megabyte.
SECONDS_WRITTEN_MAX: Final = 1_024
# Paths whose route is remembered: 2 µs less for each request of a producer.
TARGETS_KNOWN_MAX: Final = 1_024
# The length of such a path at most, so that clients cannot fill the memory with long ones.
TARGET_KNOWN_CHARACTERS: Final = 256
# Retry ladders whose steps are remembered by how they were written: 2 MB if all are long.
LADDERS_KNOWN_MAX: Final = 64
# Delays and ttrs in whole seconds over HTTP that are remembered: 0.3 µs less for a job of a batch.
LENGTHS_KNOWN_MAX: Final = 1_024
