"""The configuration: defaults, a TOML file, the environment and flags become one checked value.

Each setting is an attribute of `Config`, which has its default, and a row of `SETTINGS`: its name
in the file (`section.key`), its kind of values (`fields`), and its flag. From the name follows its
variable: `line.listen` is `DELAYD_LINE_LISTEN`. A later source wins: default, file, environment,
flag. But every value that is given is checked, also one that is overridden, and the errors of all
values are reported at once, those of values that do not fit each other after them:

    delayd.toml: line.listen = "11300": must be HOST:PORT or unix:PATH
    delayd.toml: wheel.tik: there is no such setting; did you mean wheel.tick?
    environment: DELAYD_JOURNAL_SYNC = "sometimes": must be one of always, interval, never

A `Config` is always valid; its values are not checked again. The environment comes in as a mapping.
The module imports little, since `delayd serve` listens only after it.
"""

import enum
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from delayd import limits
from delayd.bounded_files import read_file
from delayd.fields import (
    FLAG,
    OFF,
    Field,
    GivenText,
    Invalid,
    ValueKind,
    Wrong,
    duration,
    invalid,
    list_of,
    matching,
    member_of,
    one_of,
    only,
    or_off,
    read_json,
    shown,
    size,
    text_of,
    unknown,
    whole,
    written,
)
from delayd.log_lines import LogFormat, LogLevel
from delayd.net.addresses import (
    HTTP_LISTEN_DEFAULT,
    LINE_LISTEN_DEFAULT,
    UNIX_MODE_DEFAULT,
    UNIX_PREFIX,
    Address,
    TcpAddress,
    UnixAddress,
    ip_address_of,
    is_local,
    parse_address,
)
from delayd.text import MASK, is_masked, with_shown_urls

if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network

    from delayd.core.policy import Patterns
    from delayd.schedules.definition import Definition

_HOST: Final = r"[A-Za-z0-9._-]+"
_HOST_GLOB: Final = r"[A-Za-z0-9._*?-]+|[0-9A-Fa-f.*?]*:[0-9A-Fa-f.*?]*:[0-9A-Fa-f:.*?]*"
"""A host with wildcards; what has two colons or more is the text of an IPv6 address."""
_NAME: Final = rf"[A-Za-z0-9._-]{{1,{limits.TARGET_NAME_BYTES_MAX}}}"
"""The name of a secret or of a sink."""
FILES_OF_SINKS: Final = ("password_file", "ca", "certificate", "key")
"""Options of all sinks with a server that are paths; `push.options` reads them."""
_OF_EVERY_SINK: Final = ("kind", "topics")
"""Options that are not of the kind."""
_NOT_SHOWN: Final = "passw|passphrase|secret|token|credential|api_?key"
"""In the name of an option of a sink: its value is not shown."""


ENVIRONMENT_PREFIX: Final = "DELAYD_"
CONFIG_FILE_VARIABLE: Final = "DELAYD_CONFIG"
"""Names the file itself, so it cannot be a setting in it."""

_OF_OTHERS: Final = "DELAYD_(URL|TOKEN|(TOKEN|CA|CERT|KEY)_FILE|OUTBOX_URL|COMPILED|JOB_[A-Z]+)"
"""For commands that talk to a daemon, of `delayd work` for what it runs, and for the installation;
not for the daemon."""

SERVICE_LINK_PREFIXES: Final = ("DELAYD_PORT", "DELAYD_SERVICE_")
"""What Kubernetes sets in every pod of a namespace with a service named delayd."""


class SyncPolicy(enum.Enum):
    """When records reach the disk, and so what an acknowledgement means."""

    ALWAYS = "always"  # before the reply: an acknowledgement means that the job is on disk
    INTERVAL = "interval"  # at most an interval after the reply: a power cut loses that much
    NEVER = "never"
    """When the operating system likes; a killed daemon loses nothing, a power cut seconds."""


class ClockKind(enum.Enum):
    """Which clock the jobs follow."""

    SYSTEM = "system"

    VIRTUAL = "virtual"  # one that stands still until a client advances it, for tests


class ConfigErrors(Exception):
    """The configuration is not valid; nothing was started."""

    def __init__(self, errors: Iterable[Wrong]) -> None:
        self.errors = tuple(errors)
        super().__init__("\n".join(map(str, self.errors)))


# --- Kinds of values that only settings have ------------------------------------------------------


def _read_topics(value: object) -> "Patterns | None":
    """Read the policies of topics: a table of tables, or the same as JSON in a variable."""
    from delayd.core.errors import PolicyInvalid  # noqa: PLC0415 - few have any, and it takes time
    from delayd.core.names import INTERNAL_TOPICS  # noqa: PLC0415
    from delayd.core.policy import PATTERN, PATTERN_RULE, Patterns, Policy  # noqa: PLC0415

    inner_rule = "must be a section"
    if isinstance(value, GivenText):
        inner_rule = 'must be an object such as {"retry": "15s 3m"}'
    rows = _sections(value, '[topics."mail.*"]', '{"mail.*": {"retry": "15s 3m"}}').items()
    by_pattern: dict[str, Policy] = {}
    errors = []
    for pattern, section in rows:
        where = shown(pattern)
        try:
            PATTERN.read(pattern)
        except ValueError:
            errors.append(Wrong(where, PATTERN_RULE))
        if not isinstance(section, dict):
            errors.append(Wrong(where, inner_rule, shown(section)))
            continue
        try:
            policy = by_pattern[pattern] = Policy.from_fields(section)
        except PolicyInvalid as refusal:
            errors += [wrong.below(where) for wrong in refusal.errors]
            continue
        reserved = "must be another topic: this one is reserved"
        if policy.exhausted in INTERNAL_TOPICS:
            errors.append(Wrong(f"{where}.exhausted", reserved, shown(policy.exhausted)))
        if policy.push is not None and pattern in INTERNAL_TOPICS:
            errors.append(Wrong(f"{where}.push", reserved))
        elif policy.push is not None and policy.push.topic in INTERNAL_TOPICS:
            errors.append(Wrong(f"{where}.push.topic", reserved, shown(policy.push.topic)))
    patterns = Patterns(by_pattern)
    errors += [Wrong(f"{shown(pattern)}.push", rule) for pattern, rule in patterns.circles()]
    if errors:
        raise Invalid(errors)
    return patterns if by_pattern else None


def _show_topics(patterns: "Patterns | None") -> dict[str, object]:
    import json  # noqa: PLC0415

    if patterns is None:
        return {}
    return {name: json.loads(policy.to_json()) for name, policy in patterns.by_pattern.items()}


def _read_schedules(value: object) -> "Mapping[str, tuple[Definition, bytes]] | None":
    """Read schedules: a table of tables, or the same as JSON in a variable."""
    from delayd.core.errors import ScheduleInvalid  # noqa: PLC0415 - few have any, and it takes time
    from delayd.schedules.definition import (  # noqa: PLC0415
        Definition,
        VerbatimJson,
        checked_schedule_name,
    )

    inner_rule = "must be a section"
    if isinstance(value, GivenText):
        inner_rule = 'must be an object such as {"topic": "reports", "cron": "30 2 * * *"}'
    example = '{"nightly": {"topic": "reports", "cron": "30 2 * * *", "body": ""}}'
    schedules: dict[str, tuple[Definition, bytes]] = {}
    errors: list[Wrong] = []
    for name, section in _sections(value, "[schedules.nightly]", example).items():
        where = name
        try:
            checked_schedule_name(name)
        except ScheduleInvalid as refusal:
            where = shown(name)
            errors += [Wrong(where, wrong.rule) for wrong in refusal.errors]
        if not isinstance(section, dict):
            errors.append(Wrong(where, inner_rule, shown(section)))
            continue
        fields = dict(section)
        if isinstance(body := fields.get("body"), str):  # other values are written as JSON
            fields["body"] = VerbatimJson(body.encode("utf-8", "surrogatepass"))
        for field in ("start", "end"):
            if hasattr(fields.get(field), "isoformat"):  # TOML has times
                fields[field] = fields[field].isoformat()
        try:
            schedules[name] = Definition.from_fields(fields)
        except ScheduleInvalid as refusal:
            errors += [wrong.below(where) for wrong in refusal.errors]
    if errors:
        raise Invalid(errors)
    return schedules or None


def _show_schedules(
    schedules: "Mapping[str, tuple[Definition, bytes]] | None",
) -> dict[str, object]:
    from delayd.schedules.definition import BODY_BASE64  # noqa: PLC0415 - few have any

    shown_as: dict[str, object] = {}
    for name, (definition, body) in (schedules or {}).items():
        try:
            fields: dict[str, object] = {"body": body.decode()}
        except UnicodeDecodeError:
            fields = {"body_base64": BODY_BASE64.show(body)}
        shown_as[name] = {**definition.to_fields(), **fields}
    return shown_as


def read_sinks(value: object) -> "Mapping[str, SinkSection]":
    """Read the sections of sinks, or the same as JSON in a variable; no error quotes a value.

    Options may be secret. What a kind makes of them is its own business (`push.sinks`).
    """
    rows = _sections(value, "[sinks.NAME]", '{"NAME": {"kind": "redis"}}').items()
    errors: list[Wrong] = []
    sinks: dict[str, SinkSection] = {}
    spelled: dict[str, str] = {}
    for name, section in rows:
        if re.fullmatch(_NAME, name) is None:
            rule = f"must be 1 to {limits.TARGET_NAME_BYTES_MAX} of A-Z a-z 0-9 . _ -"
            errors.append(Wrong(shown(name), rule))
        elif (other := spelled.setdefault(_in_variable(name), name)) != name:
            errors.append(Wrong(name, f"must differ from {other} in more than case and . _ -"))
        elif not isinstance(section, dict):
            errors.append(Wrong(name, "must be a section"))
        elif not isinstance(section.get("kind"), str):
            errors.append(Wrong(name, 'needs a kind, such as kind = "redis"'))
        else:
            options = {
                option: value for option, value in section.items() if option not in _OF_EVERY_SINK
            }
            try:
                topics = read_sink_topics(section["topics"]) if "topics" in section else None
            except ValueError as error:
                errors.append(Wrong(f"{name}.topics", str(error)))
            else:
                sinks[name] = SinkSection(section["kind"], options, topics)
    if errors:
        raise Invalid(errors)
    return sinks


def read_sink_topics(value: object) -> tuple[str, ...]:
    """Read the patterns of the topics that may use a sink."""
    from delayd.core.policy import PATTERNS  # noqa: PLC0415 - few say it

    patterns: tuple[str, ...] = PATTERNS.read(value)
    return patterns


def _show_sinks(sinks: "Mapping[str, SinkSection]") -> dict[str, object]:
    return {name: section.without_secrets() for name, section in sinks.items()}


def _sections(value: object, example: str, json_example: str) -> dict[str, Any]:
    """Return a section of sections, from a file or as JSON from a variable.

    No error quotes the variable: in a text nobody can tell what is secret.
    """
    if isinstance(value, GivenText):
        rule = f"must be JSON such as {json_example}"
        try:
            value, twice = read_json(value)
        except ValueError as error:
            raise invalid("", f"{rule}: {error}") from None
        if twice:  # TOML refuses them too
            raise invalid("", f"{rule}: {'; '.join(map(str, twice))}")
        if not isinstance(value, dict):
            raise invalid("", rule)
    if not isinstance(value, dict):
        raise ValueError(f"must be sections such as {example}")  # noqa: TRY004 - as for all that is wrong
    return value


def _read_address(value: object) -> Address | None:
    """Read an address to listen on; off is None."""
    if value == OFF:
        return None
    if isinstance(value, str):
        return parse_address(value)
    raise ValueError("must be HOST:PORT, unix:PATH or off")


def _read_ids(value: object) -> frozenset[int]:
    """Read the numbers of users or groups: a list, or in a variable `1000,1001`."""
    parts = [*map(GivenText, value.split(","))] if isinstance(value, GivenText) else value
    if not isinstance(parts, list) or not parts:
        raise ValueError(_IDS_RULE)
    try:
        return frozenset(map(whole(0, limits.UNIX_ID_MAX).read, parts))
    except ValueError:
        raise ValueError(_IDS_RULE) from None


def _read_unix_mode(value: object) -> int:
    """Read a file mode in octal digits."""
    if isinstance(value, str) and len(value) <= 4 and value and set(value) <= set("01234567"):
        mode = int(value, 8)
        if mode <= 0o777:
            return mode
    raise ValueError('must be a file mode in octal digits, such as "0660"')


def _hosts(pattern: str, rule: str) -> ValueKind:
    """Return the kind of lists of hosts, in small letters."""
    host = matching(pattern, rule)
    return list_of(host._replace(read=lambda value: host.read(value).lower()), rule)


def _read_reached_at(value: object) -> str:
    """Read the name or the number of a machine; an IPv6 one has neither brackets nor a zone."""
    text = str(value) if isinstance(value, str) and "%" not in value else ""
    if re.fullmatch(_HOST, text) is None and ip_address_of(text) is None:
        raise ValueError  # `only` has the rule
    return text


def _read_network(value: object) -> "IPv4Network | IPv6Network":
    """Read a network such as `10.1.0.0/16`, or one address."""
    from ipaddress import ip_network  # noqa: PLC0415 - few have any, and it takes time

    try:
        return ip_network(str(value) if isinstance(value, str) else "")
    except ValueError:
        raise ValueError from None  # the list has the rule


# --- The settings --------------------------------------------------------------------------------


class SinkSection(NamedTuple):
    """A sink that the configuration names; secrets may be among its options."""

    kind: str
    options: Mapping[str, object]
    topics: tuple[str, ...] | None = None
    """Globs of the topics that may use it; None: all may."""

    def beside(self, home: str) -> "SinkSection":
        """Return the same with paths that count from this directory."""
        paths = {
            option: os.path.join(home, value)
            for option, value in self.options.items()
            if option in FILES_OF_SINKS and isinstance(value, str) and value
        }
        return self._replace(options={**self.options, **paths})

    def without_secrets(self) -> dict[str, object]:
        """Return the section as people may see it.

        >>> options = {"url": "redis://ada:s3cret@host/2", "password": "s3cret", "list": "due"}
        >>> SinkSection("redis", options).without_secrets()
        {'kind': 'redis', 'url': 'redis://***@host/2', 'password': '***', 'list': 'due'}
        """
        seen: dict[str, object] = {"kind": self.kind}
        if self.topics is not None:
            seen["topics"] = list(self.topics)
        for name, value in self.options.items():
            is_secret = re.search(_NOT_SHOWN, name) is not None and not name.endswith("_file")
            seen[name] = MASK if is_secret else with_shown_urls(value)
        return seen


class Config(NamedTuple):
    """Everything that can be chosen; `config.example.toml` says what it means."""

    # None keeps nothing on disk: only `delayd-beanstalkd` without `-b` does that.
    data_dir: str | None = "delayd-data"
    clock: ClockKind = ClockKind.SYSTEM
    insecure_no_auth: bool = False
    busy_poll: bool = True

    line_listen: Address | None = LINE_LISTEN_DEFAULT
    line_unix_mode: int = UNIX_MODE_DEFAULT
    line_tls: bool = False
    line_connections_max: int = limits.CONNECTIONS_DEFAULT
    line_write_buffer_bytes_max: int = limits.WRITE_BUFFER_BYTES_DEFAULT

    http_listen: Address | None = HTTP_LISTEN_DEFAULT
    http_unix_mode: int = UNIX_MODE_DEFAULT
    http_tls: bool = False
    # Host names that clients may use, besides localhost and IP addresses.
    http_hosts: tuple[str, ...] = ()
    http_ui: bool = True
    http_connections_max: int = limits.CONNECTIONS_DEFAULT
    http_connections_per_ip_max: int = limits.HTTP_CONNECTIONS_PER_IP_DEFAULT
    http_unauthenticated_per_ip_max: int = limits.HTTP_UNAUTHENTICATED_PER_IP_DEFAULT
    http_header_ms: int = limits.HTTP_HEADER_MS_DEFAULT
    http_body_ms: int = limits.HTTP_BODY_MS_DEFAULT
    http_idle_ms: int = limits.HTTP_IDLE_MS_DEFAULT
    http_body_bytes_max: int = limits.HTTP_BODY_BYTES_DEFAULT
    http_held_bytes_max: int = limits.HTTP_HELD_BYTES_DEFAULT
    http_write_buffer_bytes_max: int = limits.WRITE_BUFFER_BYTES_DEFAULT
    http_idempotency_keys_max: int = limits.IDEMPOTENCY_KEYS_DEFAULT

    # The tokens file; None: no token is needed.
    auth_tokens: str | None = None
    # Users who need no token on a unix socket; with None for both its mode decides.
    auth_unix_uids: frozenset[int] | None = None
    auth_unix_gids: frozenset[int] | None = None

    tls_certificate: str | None = None
    # None: it is in the file of the certificate.
    tls_key: str | None = None
    # Clients need a certificate of one of these authorities; None: they need none.
    tls_client_ca: str | None = None

    sync: SyncPolicy = SyncPolicy.ALWAYS
    sync_interval_ms: int = limits.SYNC_INTERVAL_MS_DEFAULT
    sync_in_turn: bool = True
    segment_bytes: int = limits.JOURNAL_SEGMENT_BYTES_DEFAULT

    # The database that keeps the log in place of a directory; None: there is none.
    postgres_url: str | None = None
    # The schema of the log.
    postgres_name: str = "delayd"
    postgres_password_file: str | None = None
    # The name or number by which other machines reach this one; None: what it listens on.
    postgres_address: str | None = None
    postgres_lease_ms: int = limits.DATABASE_LEASE_MS_DEFAULT
    # Settings of the server that are accepted although they may lose jobs.
    postgres_accept: tuple[str, ...] = ()

    tick_ms: int = limits.WHEEL_TICK_MS_DEFAULT
    wheel_size: int = limits.WHEEL_SIZE_DEFAULT

    body_bytes_max: int = limits.BODY_BYTES_DEFAULT
    jobs_max: int | None = None
    bytes_max: int | None = None
    # The policies of topics, by patterns of their names.
    topics: "Patterns | None" = None
    # Schedules that belong to the deployment: definition and body by name.
    schedules: "Mapping[str, tuple[Definition, bytes]] | None" = None

    push_enabled: bool = True
    # Which hosts may be called, by patterns of their names.
    push_hosts: tuple[str, ...] = ("*",)
    # Networks that may be called although they are not public.
    push_private_networks: "tuple[IPv4Network | IPv6Network, ...]" = ()
    push_allow_http: bool = False
    push_ports: tuple[int, ...] = (limits.HTTPS_PORT,)
    # The secrets file; None: no call is signed.
    push_secrets: str | None = None
    # The secrets of targets that name none.
    push_sign_with: tuple[str, ...] = ()
    push_calls_max: int = limits.PUSH_CALLS_DEFAULT
    push_calls_per_host_max: int = limits.PUSH_CALLS_PER_HOST_DEFAULT
    push_timeout_ms: int = limits.PUSH_TIMEOUT_MS_DEFAULT
    push_connect_timeout_ms: int = limits.PUSH_CONNECT_TIMEOUT_MS_DEFAULT
    push_stop_grace_ms: int = limits.PUSH_STOP_GRACE_MS_DEFAULT
    # Places that due jobs can be sent to, by name.
    sinks: Mapping[str, SinkSection] = MappingProxyType({})

    log_format: LogFormat = LogFormat.TEXT
    log_level: LogLevel = LogLevel.INFO


_DIRECTORY: Final = text_of("must be the path of a directory")
_FILE_OR_OFF: Final = or_off(text_of("must be the path of a file"))
_ADDRESS: Final = ValueKind(_read_address, lambda address: OFF if address is None else str(address))
_UNIX_MODE: Final = ValueKind(_read_unix_mode, lambda mode: f"{mode:04o}")
_IDS_RULE: Final = f"must be a list of whole numbers from 0 to {limits.UNIX_ID_MAX}"
_IDS: Final = or_off(ValueKind(_read_ids, sorted))
_CONNECTIONS: Final = whole(1, limits.CONNECTIONS_MAX)
_WRITE_BUFFER: Final = size(limits.WRITE_BUFFER_BYTES_MIN, limits.WRITE_BUFFER_BYTES_MAX)
_HTTP_BODY: Final = size(limits.HTTP_BODY_BYTES_MIN, limits.HTTP_BODY_BYTES_MAX)
_HTTP_HELD: Final = size(limits.HTTP_HELD_BYTES_MIN, limits.HTTP_HELD_BYTES_MAX)
_HTTP_TIMEOUT: Final = duration(limits.HTTP_TIMEOUT_MS_MIN, limits.HTTP_TIMEOUT_MS_MAX)
_SEGMENT: Final = size(limits.JOURNAL_SEGMENT_BYTES_MIN, limits.JOURNAL_SEGMENT_BYTES_MAX)
DATABASE_URL: Final = matching(
    # Neither a user with a password nor an option that is one: others see what a flag says.
    r"postgres(ql)?://([^/?#:@]*@)?[^/?#@]*(/[^?#@]*)?(\?(?!.*passw)[^#@]*)?",
    "must be a url such as postgresql://delayd@db.example.com/jobs without a password, which goes"
    " into PGPASSFILE, PGPASSWORD or postgres.password_file",
)
LOG_NAME: Final = matching(
    "(?!pg_)[a-z_][a-z0-9_]{0,62}", "must be a name of a schema in small letters, such as delayd"
)
_REACHED_AT: Final = or_off(
    only(
        'must be a name or an IP address of this machine, such as "a.example.com", without a port',
        ValueKind(_read_reached_at),
    )
)
_LEASE: Final = duration(limits.DATABASE_LEASE_MS_MIN, limits.DATABASE_LEASE_MS_MAX)
_ACCEPT_RULE: Final = 'must be a list of "fsync", "full_page_writes"'
_ACCEPT: Final = list_of(
    only(_ACCEPT_RULE, one_of({name: name for name in ("fsync", "full_page_writes")})), _ACCEPT_RULE
)
_BODY: Final = size(1, limits.BODY_BYTES_CEILING)
_HOSTS: Final = _hosts(_HOST, 'must be names of hosts, such as ["jobs.example.com"], without ports')
_HOST_GLOBS: Final = _hosts(
    _HOST_GLOB, 'must be hosts or patterns such as ["*.example.com"], without ports'
)
_NETWORKS: Final = list_of(
    ValueKind(_read_network, str),
    'must be networks such as ["127.0.0.0/8", "10.1.0.0/16", "fd00::/8"]',
)
_PORTS_RULE: Final = f"must be a list of whole numbers from 1 to {limits.PORT_MAX}"
_PORTS: Final = list_of(only(_PORTS_RULE, whole(1, limits.PORT_MAX)), _PORTS_RULE)
_SIGNERS_RULE: Final = (
    f'must be at most {limits.TARGET_SECRETS_MAX} names of secrets, such as ["orders"]'
)
_SIGNERS: Final = list_of(
    matching(_NAME, _SIGNERS_RULE), _SIGNERS_RULE, highest=limits.TARGET_SECRETS_MAX
)
_PUSH_CALLS: Final = whole(1, limits.PUSH_CALLS_MAX)
_PUSH_TIMEOUT: Final = duration(limits.PUSH_TIMEOUT_MS_MIN, limits.PUSH_TIMEOUT_MS_MAX)
_LOG_LEVEL: Final = one_of({level.name.lower(): level for level in LogLevel})


_SHARED: Final = (
    *("postgres.lease", "wheel.tick", "topics", "schedules", "jobs.body_bytes_max"),
    *("jobs.jobs_max", "jobs.bytes_max", "push.enabled", "push.sign_with"),
)
SETTINGS: Final = (
    Field("data_dir", "data_dir", _DIRECTORY, "--data-dir"),
    Field("clock", "clock", member_of(ClockKind), "--clock"),
    Field("insecure_no_auth", "insecure_no_auth", FLAG, "--insecure-no-auth"),
    Field("busy_poll", "busy_poll", FLAG),
    Field("line.listen", "line_listen", _ADDRESS, "--line"),
    Field("line.unix_mode", "line_unix_mode", _UNIX_MODE),
    Field("line.tls", "line_tls", FLAG),
    Field("line.connections_max", "line_connections_max", _CONNECTIONS),
    Field("line.write_buffer_bytes_max", "line_write_buffer_bytes_max", _WRITE_BUFFER),
    Field("http.listen", "http_listen", _ADDRESS, "--http"),
    Field("http.unix_mode", "http_unix_mode", _UNIX_MODE),
    Field("http.tls", "http_tls", FLAG),
    Field("http.hosts", "http_hosts", _HOSTS),
    Field("http.ui", "http_ui", FLAG),
    Field("http.connections_max", "http_connections_max", _CONNECTIONS),
    Field("http.connections_per_ip_max", "http_connections_per_ip_max", _CONNECTIONS),
    Field("http.unauthenticated_per_ip_max", "http_unauthenticated_per_ip_max", _CONNECTIONS),
    Field("http.header_timeout", "http_header_ms", _HTTP_TIMEOUT),
    Field("http.body_timeout", "http_body_ms", _HTTP_TIMEOUT),
    Field("http.idle_timeout", "http_idle_ms", _HTTP_TIMEOUT),
    Field("http.body_bytes_max", "http_body_bytes_max", _HTTP_BODY),
    Field("http.held_bytes_max", "http_held_bytes_max", _HTTP_HELD),
    Field("http.write_buffer_bytes_max", "http_write_buffer_bytes_max", _WRITE_BUFFER),
    Field("http.idempotency_keys_max", "http_idempotency_keys_max", whole(1, limits.CAP_MAX)),
    Field("auth.tokens", "auth_tokens", _FILE_OR_OFF),
    Field("auth.unix_uids", "auth_unix_uids", _IDS),
    Field("auth.unix_gids", "auth_unix_gids", _IDS),
    Field("tls.certificate", "tls_certificate", _FILE_OR_OFF),
    Field("tls.key", "tls_key", _FILE_OR_OFF),
    Field("tls.client_ca", "tls_client_ca", _FILE_OR_OFF),
    Field("journal.sync", "sync", member_of(SyncPolicy), "--sync"),
    Field("journal.sync_interval", "sync_interval_ms", duration(1, limits.SYNC_INTERVAL_MS_MAX)),
    Field("journal.sync_in_turn", "sync_in_turn", FLAG),
    Field("journal.segment_bytes", "segment_bytes", _SEGMENT),
    Field("postgres.url", "postgres_url", or_off(DATABASE_URL), "--postgres", is_secret=True),
    Field("postgres.name", "postgres_name", LOG_NAME),
    Field("postgres.password_file", "postgres_password_file", _FILE_OR_OFF),
    Field("postgres.address", "postgres_address", _REACHED_AT),
    Field("postgres.lease", "postgres_lease_ms", _LEASE),
    Field("postgres.accept", "postgres_accept", _ACCEPT),
    Field("wheel.tick", "tick_ms", duration(1, limits.WHEEL_TICK_MS_MAX)),
    Field("wheel.size", "wheel_size", whole(limits.WHEEL_SIZE_MIN, limits.WHEEL_SIZE_MAX)),
    Field("jobs.body_bytes_max", "body_bytes_max", _BODY),
    Field("jobs.jobs_max", "jobs_max", or_off(whole(1, limits.CAP_MAX))),
    Field("jobs.bytes_max", "bytes_max", or_off(size(1, limits.CAP_MAX))),
    Field("topics", "topics", ValueKind(_read_topics, _show_topics)),
    Field("schedules", "schedules", ValueKind(_read_schedules, _show_schedules)),
    Field("push.enabled", "push_enabled", FLAG),
    Field("push.hosts", "push_hosts", _HOST_GLOBS),
    Field("push.private_networks", "push_private_networks", _NETWORKS),
    Field("push.allow_http", "push_allow_http", FLAG),
    Field("push.ports", "push_ports", _PORTS),
    Field("push.secrets", "push_secrets", _FILE_OR_OFF),
    Field("push.sign_with", "push_sign_with", _SIGNERS),
    Field("push.calls_max", "push_calls_max", _PUSH_CALLS),
    Field("push.calls_per_host_max", "push_calls_per_host_max", _PUSH_CALLS),
    Field("push.timeout", "push_timeout_ms", _PUSH_TIMEOUT),
    Field("push.connect_timeout", "push_connect_timeout_ms", _PUSH_TIMEOUT),
    Field("push.stop_grace", "push_stop_grace_ms", duration(0, limits.PUSH_STOP_GRACE_MS_MAX)),
    Field("sinks", "sinks", ValueKind(read_sinks, _show_sinks), is_secret=True),
    Field("log.format", "log_format", member_of(LogFormat), "--log-format"),
    Field("log.level", "log_level", _LOG_LEVEL),
)


def variable_of(name: str) -> str:
    """Return the variable of a setting: of `line.listen` it is DELAYD_LINE_LISTEN."""
    return ENVIRONMENT_PREFIX + name.replace(".", "_").upper()


BY_NAME: Final = {setting.name: setting for setting in SETTINGS}
BY_VARIABLE: Final = {variable_of(setting.name): setting for setting in SETTINGS}
BY_FLAG: Final = {setting.flag: setting for setting in SETTINGS if setting.flag}
SECTIONS: Final = {name.partition(".")[0] for name in BY_NAME if "." in name}
TABLES: Final = {*SECTIONS, "topics", "schedules", "sinks"}
SINKS_PREFIX: Final = f"{ENVIRONMENT_PREFIX}SINKS_"
"""What begins the variables of single options of sinks."""


def load(path: str | None, environment: Mapping[str, str], flags: Mapping[str, object]) -> Config:
    """Put the configuration together. Raises `ConfigErrors`.

    `path` is the TOML file, if any; `flags` has the values of the command line, by `--sync`.
    """
    errors: list[Wrong] = []
    fields: dict[str, Any] = {}
    home = os.path.dirname(os.path.abspath(path or ""))
    for setting, value, source, name in _by_source(path, environment, flags, errors):
        try:
            is_in_file = name == setting.name  # variables and flags have names of their own
            fields[setting.inside] = (
                _in_file(setting, value, home) if is_in_file else setting.read(value, name)
            )
        except Invalid as wrong:
            errors += [each._replace(source=source) for each in wrong.errors]
    _add_sink_options(fields, environment, errors)
    if errors:
        raise ConfigErrors(errors)
    config = Config(**fields)
    errors = list(_broken_rules(config))
    if errors:
        raise ConfigErrors(errors)
    return config


def shared_settings(config: Config) -> str:
    """Return what the daemons of one log should have in common: names with checksums, as words.

    >>> shared_settings(Config()).split()[0]
    'postgres.lease=d8adf403'
    """
    import json  # noqa: PLC0415 - only where jobs are in a database
    from zlib import crc32  # noqa: PLC0415

    shown = written([BY_NAME[name] for name in _SHARED], config)
    texts = {name: json.dumps(shown.get(name), sort_keys=True) for name in _SHARED}
    return " ".join(f"{name}={crc32(text.encode()):08x}" for name, text in texts.items())


def sources(path: str | None, environment: Mapping[str, str]) -> dict[str, str]:
    """Return where each setting that is not a default comes from: a file, or `environment`."""
    values = _by_source(path, environment, {}, [])
    return {setting.name: source for setting, _, source, _ in values}


SettingValue = tuple[Field, object, str, str]
"""A setting, its value, the source of that, and the name that the source has for it."""


def _by_source(
    path: str | None,
    environment: Mapping[str, str],
    flags: Mapping[str, object],
    errors: list[Wrong],
) -> Iterator[SettingValue]:
    """Yield the values of all sources, the winning one last; add what is wrong to the errors."""
    return itertools.chain(
        _from_file(path, errors), _from_environment(environment, errors), _from_flags(flags)
    )


def _from_file(path: str | None, errors: list[Wrong]) -> Iterator[SettingValue]:
    if path is None:
        return
    import tomllib  # noqa: PLC0415 - takes 2 ms

    try:
        document = tomllib.loads(read_file(path, limits.CONFIG_BYTES_MAX).decode())
    except OSError as error:
        errors.append(Wrong("", f"cannot be read: {error.strerror}", source=path))
        return
    except (ValueError, RecursionError) as error:
        errors.append(Wrong("", f"is not TOML: {error}", source=path))
        return
    for name, value in _flattened(document, path, errors):
        if name in BY_NAME:
            yield BY_NAME[name], value, path, name
        else:
            errors.append(Wrong(name, unknown(name, sorted(BY_NAME), "setting"), source=path))


def _in_file(setting: Field, value: object, home: str) -> Any:  # noqa: ANN401 - what a setting is
    """Read the value of a file in which paths count from its directory. Raises `Invalid`.

    >>> _in_file(BY_NAME["data_dir"], "jobs", "/etc/delayd")
    '/etc/delayd/jobs'
    >>> print(_in_file(BY_NAME["line.listen"], "unix:line.sock", "/run"))
    unix:/run/line.sock
    """
    read = setting.read(value)
    if setting.kind in (_DIRECTORY, _FILE_OR_OFF) and read is not None:
        path = os.path.join(home, read)
        if setting.kind == _DIRECTORY and not os.path.exists(path) and os.path.isdir(read):
            rule = (
                "counts from the directory of this file, where it is not there, but it is in the"
                f" working directory: write {shown(os.path.abspath(read))} if that is meant"
            )
            raise invalid(setting.name, rule, shown(value))
        return path
    if isinstance(read, UnixAddress):
        return setting.read(UNIX_PREFIX + os.path.join(home, read.path))
    if setting.name == "sinks":
        return {name: section.beside(home) for name, section in read.items()}
    return read


def _flattened(
    document: dict[str, object], path: str, errors: list[Wrong]
) -> Iterator[tuple[str, object]]:
    """Flatten the document to the names of `SETTINGS`: `section.key`."""
    for key, value in document.items():
        if isinstance(value, dict) and key in SECTIONS:
            for inner_key, inner_value in value.items():
                yield f"{key}.{inner_key}", inner_value
        elif isinstance(value, dict) and key not in BY_NAME:
            errors.append(Wrong(f"[{key}]", unknown(key, sorted(TABLES), "section"), source=path))
        elif key in SECTIONS:
            errors.append(Wrong(key, "must be a section", shown(value), path))
        else:
            yield key, value


def _from_environment(
    environment: Mapping[str, str], errors: list[Wrong]
) -> Iterator[SettingValue]:
    source = "environment"
    for name, value in sorted(environment.items()):
        if name in BY_VARIABLE:
            yield BY_VARIABLE[name], GivenText(value), source, name
        elif (
            name.startswith(ENVIRONMENT_PREFIX)
            and name != CONFIG_FILE_VARIABLE
            and not re.fullmatch(_OF_OTHERS, name)
            and not name.startswith((*SERVICE_LINK_PREFIXES, SINKS_PREFIX))
        ):
            known = {*BY_VARIABLE, CONFIG_FILE_VARIABLE}
            rule = unknown(name, sorted(known), "variable", ENVIRONMENT_PREFIX)
            errors.append(Wrong(name, rule, source=source))


def _add_sink_options(
    fields: dict[str, Any], environment: Mapping[str, str], errors: list[Wrong]
) -> None:
    """Set options of sinks by variables: `password` of `orders` by DELAYD_SINKS_ORDERS_PASSWORD."""
    variables = [name for name in sorted(environment) if name.startswith(SINKS_PREFIX)]
    if not variables or (errors and "sinks" not in fields):
        return
    sinks: dict[str, SinkSection] = dict(fields.get("sinks", {}))
    prefixes = {f"{SINKS_PREFIX}{_in_variable(name)}_": name for name in sinks}
    for variable in variables:
        # The sinks a and a_b may both be there: the longest name is meant.
        prefix = max(filter(variable.startswith, prefixes), key=len, default="")
        if not prefix or variable == prefix:
            rule = "must be DELAYD_SINKS_NAME_OPTION, of a sink that is configured"
            errors.append(Wrong(variable, rule, source="environment"))
            continue
        name = prefixes[prefix]
        option = variable.removeprefix(prefix).lower()
        value = GivenText(environment[variable])
        if option == "topics":
            try:
                sinks[name] = sinks[name]._replace(topics=read_sink_topics(value))
            except ValueError as error:
                errors.append(Wrong(variable, str(error), shown(value), "environment"))
            continue
        sinks[name] = sinks[name]._replace(options={**sinks[name].options, option: value})
    fields["sinks"] = sinks


def _in_variable(sink_name: str) -> str:
    """Return how names of variables spell the name of a sink."""
    return re.sub("[.-]", "_", sink_name).upper()


def _from_flags(flags: Mapping[str, object]) -> Iterator[SettingValue]:
    for flag, value in flags.items():
        read = GivenText(value) if isinstance(value, str) else value
        yield BY_FLAG[flag], read, "command line", flag


def _broken_rules(config: Config) -> Iterator[Wrong]:
    """The rules that concern more than one setting."""
    if config.line_listen is None and config.http_listen is None:
        yield Wrong("line.listen and http.listen", "must not both be off")
    elif config.line_listen == config.http_listen and not _is_any_port(config.line_listen):
        rule = "must not be the same address; each protocol needs its own"
        yield Wrong("line.listen and http.listen", rule, shown(str(config.line_listen)))
    yield from _broken_tls_rules(config)
    if config.postgres_url is not None:
        yield from _broken_database_rules(config)
    for place in _masked_places(config):
        rule = "has *** in place of a secret, as `delayd config show` writes it: put the secret in"
        yield Wrong(place, rule)
    if config.push_sign_with and config.push_secrets is None:
        yield Wrong("push.sign_with", "needs push.secrets", shown(config.push_sign_with))
    for name, (_, body) in (config.schedules or {}).items():
        if len(body) > config.body_bytes_max:
            rule = f"has {len(body)} bytes, and a job may have {config.body_bytes_max}"
            yield Wrong(f"schedules.{name}.body", f"{rule}: see jobs.body_bytes_max")
    for name, address, has_tls in (
        ("line.listen", config.line_listen, config.line_tls),
        ("http.listen", config.http_listen, config.http_tls),
    ):
        if address is not None:
            yield from exposed(config, name, address, has_tls=has_tls)


def _is_any_port(address: Address | None) -> bool:
    return isinstance(address, TcpAddress) and address.port == 0


def _broken_tls_rules(config: Config) -> Iterator[Wrong]:
    if config.tls_certificate is not None:
        if not (config.line_tls or config.http_tls):
            rule = "has no effect while line.tls and http.tls are false"
            yield Wrong("tls.certificate", rule, shown(config.tls_certificate))
        return
    for name, value in (
        ("line.tls", config.line_tls),
        ("http.tls", config.http_tls),
        ("tls.key", config.tls_key),
        ("tls.client_ca", config.tls_client_ca),
    ):
        if value:
            yield Wrong(name, "needs tls.certificate", shown(value))


def _broken_database_rules(config: Config) -> Iterator[Wrong]:
    most = limits.DATABASE_BODY_BYTES_MAX
    for name, is_broken, rule in (
        ("clock", config.clock is not ClockKind.SYSTEM, 'must be "system"'),
        ("journal.sync", config.sync is not SyncPolicy.ALWAYS, 'must be "always"'),
        (
            "jobs.body_bytes_max",
            config.body_bytes_max > most,
            f'must be at most "{_BODY.show(most)}"',
        ),
    ):
        if is_broken:
            value = written([BY_NAME[name]], config)[name]
            yield Wrong(name, f"{rule} with postgres.url", shown(value))


def _masked_places(config: Config) -> Iterator[str]:
    """Yield where the configuration has what was written for people in place of a secret."""
    for name, sink in config.sinks.items():
        for option, value in sink.options.items():
            if is_masked(value):
                yield f"sinks.{name}.{option}"
    for pattern, policy in (config.topics.by_pattern if config.topics else {}).items():
        if policy.push is not None and is_masked([policy.push.url, policy.push.headers]):
            yield f"topics.{shown(pattern)}.push"
    for name, (definition, _) in (config.schedules or {}).items():
        for field, value in (("url", definition.url), ("headers", definition.headers)):
            if is_masked(value):
                yield f"schedules.{name}.{field}"


def exposed(config: Config, name: str, address: Address, *, has_tls: bool) -> Iterator[Wrong]:
    """Yield an error if other machines can reach the address without token and certificate."""
    is_guarded = config.auth_tokens is not None or (has_tls and config.tls_client_ca is not None)
    if not (is_guarded or config.insecure_no_auth or is_local(address)):
        rule = (
            "must be a loopback address, localhost or a unix socket, because every client that"
            " reaches it can use every job; require auth.tokens or tls.client_ca, or allow it with"
            " --insecure-no-auth"
        )
        yield Wrong(name, rule, shown(str(address)))
