"""Exit codes by name, so that systemd units and scripts can tell what to do next.

The numbers are those of sysexits.h, because supervisors and people know them. A unit restarts the
daemon after any of them except those that a restart cannot repair: see `RestartPreventExitStatus`
in systemd/delayd.service.
"""

import enum


class Exit(enum.IntEnum):
    """What the process says about its end. Each code has one meaning."""

    OK = 0  # it did its work, or stopped as requested
    USAGE = 64  # the command line is wrong; nothing was started
    CORRUPT_JOURNAL = 65
    """The journal is damaged beyond a torn tail, or not delayd's at all; nothing was touched."""

    NOTHING_THERE = 66
    """There is no such job, key or topic, or no job was ready in time."""

    JOBS_FAILED = 67  # `delayd work --drain` has run all that was ready, and commands have failed
    UNREACHABLE = 69
    """No daemon answers, or the connection was lost; the message says where and what to do;
    or the receiver did not take the sample of `delayd push test`."""

    OUR_FAULT = 70
    """A fault in delayd itself; it stopped at once, and a start recovers what was acknowledged."""

    CANNOT_LISTEN = 71  # an address is in use or cannot be listened on; the message names it
    OUTPUT_FAILED = 72
    """Standard output cannot be written: it is full, closed, or (of `reserve`) not read.
    What the command was to do is done, unless it says otherwise."""

    NOT_NOW = 73  # the daemon cannot accept this now: it drains, is full, or is busy; try again
    JOURNAL_FAILED = 74
    """Reading or writing the journal failed; nothing was acknowledged after that."""

    DIRECTORY_LOCKED = 75
    """Another daemon holds the data directory, or another command the file of tokens or secrets."""

    REFUSED = 76
    """The daemon refused: the key is taken, the reservation has ended, another state is needed."""

    NOT_ALLOWED = 77  # a valid token is needed, or the token lacks a scope, which is named
    FENCED = 79
    """Another daemon owns the log by now; nothing was answered after that. A restart stands by."""

    HANDED_OVER = 80
    """The log was given up on request, so that a standby took it over. A restart stands by."""

    BAD_CONFIGURATION = 78
    """Values of the configuration break rules, all of them listed; or the files of tokens,
    secrets or certificates cannot be used; or the database may lose jobs, or its url, role or
    password is wrong; or a clock was chosen that the data directory was not
    used with; or the process may open too few files; or `delayd doctor` found something wrong;
    or `delayd push test` was not allowed to make the call."""
