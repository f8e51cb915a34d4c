"""Findings about a machine: the problems that its facts are for a daemon, and what to do.

Each rule is a function of the facts that yields findings; `RULES` has them in the order in which
they are shown. The module itself reads nothing of the machine.

>>> from delayd.cli.machine import PortFacts
>>> [finding.text for finding in port_findings(PortFacts("line.listen", "[::1]:1", "free"))]
['[::1]:1 is free']
"""

import enum
import stat
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from delayd.bounded_files import OPEN_TO_OTHERS
from delayd.cli.machine import (
    ANOTHER,
    CLOCK_SOURCE,
    DELAYD,
    FREE,
    SILENT,
    FileFacts,
    Machine,
    PortFacts,
)
from delayd.durations import size_text
from delayd.limits import DESCRIPTORS_MIN, DESCRIPTORS_RESERVED

if TYPE_CHECKING:
    from delayd.config import Config


class Severity(enum.StrEnum):
    """How much a finding matters."""

    OK = "ok"
    NOTE = "note"  # no fault, but unusual
    WARNING = "warning"  # a daemon runs, but slower or less safely than it could
    WRONG = "wrong"  # a daemon would not start, or would lose jobs


class Finding(NamedTuple):
    """A finding about one subject."""

    level: Severity
    subject: str
    text: str
    advice: str = ""
    """What to do; empty if there is nothing."""


ok: Final = partial(Finding, Severity.OK)
note: Final = partial(Finding, Severity.NOTE)
warning: Final = partial(Finding, Severity.WARNING)
wrong: Final = partial(Finding, Severity.WRONG)


SLOW_SYNC_US: Final = 10_000
VERY_SLOW_SYNC_US: Final = 100_000
QUICK_SYNC_US: Final = 30
"""No disk that keeps acknowledged writes is quicker."""

MEMORY_FILE_SYSTEMS: Final = frozenset(("tmpfs", "ramfs"))
NETWORK_FILE_SYSTEMS: Final = frozenset(("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"))
SLOW_CLOCKS: Final = frozenset(("hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"))

Findings = Iterator[Finding]
Rule = Callable[[Machine, "Config"], Findings]


def directory(facts: Machine, _config: "Config") -> Findings:
    """The data directory: whether it can be used, and which users may read it."""
    found, subject = facts.directory, "data directory"
    if not found.is_directory:
        advice = "choose another data_dir, or remove the file"
        yield wrong(subject, f"{found.path} is not a directory", advice)
        return
    if not found.is_writable:
        advice = f"run this as the daemon's user, or: chown delayd: {found.path}"
        yield wrong(subject, f"user {facts.uid} cannot write to {found.path}", advice)
    elif not found.is_there:
        yield ok(subject, f"{found.wanted} is not there yet; a start makes it")
    else:
        held = f", in use by {found.holder}" if found.holder else ""
        yield ok(subject, f"{found.path}{held}")
    if found.is_there and found.mode & 0o077:
        text = f"other users may look into {found.path} (mode {found.mode:04o})"
        yield warning(subject, text, f"chmod 0700 {found.path}")


def file_system(facts: Machine, config: "Config") -> Findings:
    """The kind of its file system, and the free space there."""
    found, subject = facts.directory, "file system"
    if not found.is_directory:
        return
    kind = found.file_system
    if not kind:
        advice = "df -T shows it; it should be on a disk of this machine"
        yield note(subject, f"not known: no mount point of {found.path}", advice)
    elif kind in MEMORY_FILE_SYSTEMS:
        text = f"{kind}: it is in memory, and every job is lost when the machine stops"
        yield wrong(subject, text, "choose a data_dir on a disk")
    elif kind in NETWORK_FILE_SYSTEMS:
        text = f"{kind}: locks and syncs there are not what they are on a disk"
        yield warning(subject, text, "choose a data_dir on a disk of this machine")
    else:
        yield ok(subject, kind)
    segment = size_text(config.segment_bytes)
    text = f"{about(found.free_bytes)} are free; a file of the log has {segment}"
    if found.free_bytes < config.segment_bytes:
        yield wrong("free space", text, "make space, or lower journal.segment_bytes")
    elif found.free_bytes < 4 * config.segment_bytes:
        advice = "make space: log and snapshots take twice the jobs and one such file"
        yield warning("free space", text, advice)
    else:
        yield ok("free space", text)


def syncs(facts: Machine, config: "Config") -> Findings:
    """How long the disk takes for a sync, which every acknowledgement waits for."""
    found, subject = facts.directory, "disk sync"
    if found.sync_error:
        yield note(subject, f"not measured: {found.sync_error}")
    if not found.sync_us:
        return
    median_us = sorted(found.sync_us)[len(found.sync_us) // 2]
    text = f"{duration(median_us)} in the median, {duration(max(found.sync_us))} at most"
    is_waited_for = config.sync.value == "always"
    if median_us >= VERY_SLOW_SYNC_US and is_waited_for:
        advice = (
            "each acknowledgement takes that long: use another disk, or journal.sync ="
            ' "interval" if a power cut may cost the last milliseconds'
        )
        yield warning(subject, text, advice)
    elif median_us >= SLOW_SYNC_US and is_waited_for:
        advice = "a client that waits for each answer gets that many a second; many share a sync"
        yield note(subject, text, advice)
    elif median_us < QUICK_SYNC_US and found.file_system not in MEMORY_FILE_SYSTEMS:
        advice = "if a power cut can happen, make sure that the disk keeps what it acknowledges"
        yield note(subject, f"{text}: too fast for a disk", advice)
    else:
        yield ok(subject, text)


def limits(facts: Machine, config: "Config") -> Findings:
    """The system's limits of a process."""
    subject, limit = "open files", facts.files_max
    needed = config.line_connections_max + config.http_connections_max + DESCRIPTORS_RESERVED
    text = f"{limit} at most"
    if limit < 0 or limit >= needed:
        yield ok(subject, "no limit" if limit < 0 else text)
    elif limit < DESCRIPTORS_MIN:
        yield wrong(subject, text, f"ulimit -n {needed}, or LimitNOFILE= of the unit")
    else:
        advice = f"LimitNOFILE={needed} of the unit, or ulimit -n, or lower connections_max"
        text += f": fewer than both connections_max allow, which come to {needed}"
        yield note(subject, text, advice)
    if 0 <= facts.file_bytes_max < config.segment_bytes:
        text = f"{size_text(facts.file_bytes_max)}, less than journal.segment_bytes"
        yield wrong("file size limit", text, "ulimit -f unlimited, or LimitFSIZE=")
    if facts.core_bytes_max != 0:
        text = "allowed, and one would contain the bodies of jobs"
        yield note("core dumps", text, "ulimit -c 0, or LimitCORE=0 of the unit")
    if not facts.has_kernel_sync:
        text = "the kernel's asynchronous sync cannot be used; a thread syncs, a little slower"
        yield note("asynchronous sync", text, "look at sysctl fs.aio-max-nr")
    # No memory is locked, so RLIMIT_MEMLOCK does not matter.


def clock(facts: Machine, _config: "Config") -> Findings:
    """The machine's clock source, which a daemon reads at every turn."""
    source = facts.clock_source
    if source in SLOW_CLOCKS:
        text = f"{source}: each reading takes a microsecond or more"
        yield warning("clock source", text, f"if the machine offers it: echo tsc > {CLOCK_SOURCE}")
    elif source:
        yield ok("clock source", source)
    else:
        yield note("clock source", "the kernel does not tell")


def addresses(facts: Machine, _config: "Config") -> Findings:
    """The addresses on which the daemon is to listen."""
    for port in facts.ports:
        yield from port_findings(port)


def port_findings(port: PortFacts) -> Findings:
    """Judge one address."""
    whose = f"see who it is with `ss -lntxp | grep {port.address.rpartition(':')[2]}`"
    if port.state == FREE:
        yield ok(port.name, f"{port.address} is free")
    elif port.state == DELAYD:
        yield ok(port.name, f"a delayd answers on {port.address}")
    elif port.state == SILENT:
        text = f"{port.address} is taken, by a program that does not say what it is"
        advice = f"a delayd that wants a certificate or is busy does so, too; {whose}"
        yield note(port.name, text, advice)
    elif port.state == ANOTHER:
        text = f"another program listens on {port.address}"
        yield wrong(port.name, text, f"{whose}, or choose another")
    else:
        text = f"{port.address} cannot be listened on: {port.state}"
        yield wrong(port.name, text, "choose an address of this machine, with a port above 1023")


SECRET: Final = frozenset(("auth.tokens", "tls.key", "postgres.password_file"))


def permissions(facts: Machine, _config: "Config") -> Findings:
    """The permissions of the files of configuration, tokens and keys."""
    for file in facts.files:
        if file.mode is None:
            yield wrong(file.name, f"{file.path} is not there", "create it, or correct the path")
        elif not file.is_readable:
            text = f"user {facts.uid} cannot read {file.path}"
            yield wrong(file.name, text, f"chown delayd: {file.path}")
        else:
            yield from _mode_findings(file, file.mode)


def _mode_findings(file: FileFacts, mode: int) -> Findings:
    if file.name == "postgres.password_file" and mode & OPEN_TO_OTHERS:
        text = f"others may read {file.path} or write to it (mode {mode:04o}): a start refuses it"
        yield wrong(file.name, text, f"chmod 600 {file.path}")
        return
    too_open = (stat.S_IWGRP | stat.S_IWOTH) if file.name not in SECRET else 0o077
    if mode & stat.S_IWOTH:
        text = f"every user may change {file.path} (mode {mode:04o})"
        yield wrong(file.name, text, f"chmod o-w {file.path}")
    elif mode & too_open & ~stat.S_IRGRP:
        text = f"others may {'read' if file.name in SECRET else 'change'} {file.path}"
        right = "0640" if file.name in SECRET else "0644"
        text += f" (mode {mode:04o})"
        yield warning(file.name, text, f"chmod {right} {file.path}")
    else:
        yield ok(file.name, f"{file.path} (mode {mode:04o})")


def policies(_facts: Machine, config: "Config") -> Findings:
    """Policies of the configuration that say something without effect."""
    by_pattern = {} if config.topics is None else config.topics.by_pattern
    for pattern, policy in by_pattern.items():
        if policy.group_weights and not policy.fair:
            text = f"group_weights of {pattern!r} is without effect: its groups take no turns"
            yield warning("topics", text, "set fair = true, or leave them out")


def service(facts: Machine, _config: "Config") -> Findings:
    """The systemd unit of the daemon."""
    subject = "systemd"
    if not facts.has_systemd:
        yield note(subject, "does not run here: nothing starts the daemon again")
    elif not facts.unit:
        advice = "copy systemd/delayd.service to /etc/systemd/system; see docs/operations.md"
        yield note(subject, "no unit delayd.service is installed", advice)
    elif facts.unit_state == "failed":
        advice = "journalctl -u delayd -n 50, then systemctl restart delayd"
        yield wrong(subject, f"{facts.unit} has failed", advice)
    elif facts.unit_state == "active":
        yield ok(subject, f"{facts.unit} is active")
    else:
        text = f"{facts.unit} is {facts.unit_state or 'not active'}"
        yield note(subject, text, "systemctl enable --now delayd")


OF_DIRECTORY: Final[tuple[Rule, ...]] = (directory, file_system, syncs)
RULES: Final[tuple[Rule, ...]] = (
    *(*OF_DIRECTORY, limits, clock, addresses, permissions, policies, service),
)


def findings(facts: Machine, config: "Config") -> list[Finding]:
    """Apply all rules; those of the directory only where jobs are in one."""
    rules = RULES if config.postgres_url is None else RULES[len(OF_DIRECTORY) :]
    return [finding for rule in rules for finding in rule(facts, config)]


def about(size_bytes: int) -> str:
    """Write a size in its largest unit.

    >>> about(5 << 39), about(3 << 19), about(900), about(0)
    ('2.5 TiB', '1.5 MiB', '900 bytes', '0 bytes')
    """
    for shift, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size_bytes >= 1 << shift:
            return f"{size_bytes / (1 << shift):.1f} {unit}"
    return f"{size_bytes} bytes"


def duration(taken_us: int) -> str:
    """Write how long something took.

    >>> duration(80), duration(1_234), duration(45_000)
    ('0.08 ms', '1.23 ms', '45 ms')
    """
    if taken_us >= 10_000:
        return f"{taken_us / 1_000:.0f} ms"
    return f"{taken_us / 1_000:.2f} ms"
