"""The configuration: defaults, a TOML file, the environment and flags become one checked value.

Each setting is one row of `SETTINGS`: its name in the file (`section.key`), the field of `Config`
it fills, the function that reads it, and its flag. From the name follows its variable:
`line.listen` is `DELAYD_LINE_LISTEN`. A later source wins: default, file, environment, flag. But
every value that is given is checked, also one that is overridden, and **all** errors are told at
once:

    delayd.toml: line.listen = "11300": must be HOST:PORT or unix:PATH
    delayd.toml: wheel.tik: there is no such setting; did you mean wheel.tick?
    environment: DELAYD_JOURNAL_SYNC = "sometimes": must be one of always, interval, never

Who has a `Config` has a valid one; nobody checks these values again. The environment comes in as a
mapping. The module refuses to know what the settings do, and imports little, since `delayd serve`
listens only after it.
"""

import enum
import itertools
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from delayd import limits, readers
from delayd.logs import LogFormat, LogLevel
from delayd.net.addresses import UNIX_MODE_DEFAULT, Address, TcpAddress, is_local
from delayd.readers import Reader, Said, WrongInside, shown
from delayd.text import did_you_mean

if TYPE_CHECKING:
    from delayd.core.policy import Patterns

LINE_LISTEN_DEFAULT: Final = TcpAddress("127.0.0.1", 11300)
HTTP_LISTEN_DEFAULT: Final = TcpAddress("127.0.0.1", 11301)

ENVIRONMENT_PREFIX: Final = "DELAYD_"
CONFIG_FILE_VARIABLE: Final = "DELAYD_CONFIG"
"""Names the file itself, so it cannot be a setting in it."""

SERVICE_LINK_PREFIXES: Final = ("DELAYD_PORT", "DELAYD_SERVICE_")
"""What Kubernetes puts into every pod of a namespace that has a service called delayd."""


class SyncPolicy(enum.Enum):
    """When records reach the disk, and so what an acknowledgement means."""

    ALWAYS = "always"
    """Before the reply: an acknowledgement means that the job is on disk."""

    INTERVAL = "interval"
    """At most an interval after the reply: a power cut loses that much."""

    NEVER = "never"
    """When the operating system likes; a killed daemon loses nothing, a power cut seconds."""


class ClockKind(enum.Enum):
    """What time the jobs live by."""

    SYSTEM = "system"

    VIRTUAL = "virtual"
    """One that stands still until a client advances it, for tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that can be chosen, with its default; `config.example.toml` says what it means."""

    data_dir: str | None = "delayd-data"
    """None keeps nothing on disk: only `delayd-beanstalkd` without `-b` does that."""
    clock: ClockKind = ClockKind.SYSTEM
    insecure_no_auth: bool = False

    line_listen: Address | None = LINE_LISTEN_DEFAULT
    line_unix_mode: int = UNIX_MODE_DEFAULT
    line_tls: bool = False
    line_connections_max: int = limits.CONNECTIONS_DEFAULT
    line_write_buffer_bytes_max: int = limits.WRITE_BUFFER_BYTES_DEFAULT

    http_listen: Address | None = HTTP_LISTEN_DEFAULT
    http_unix_mode: int = UNIX_MODE_DEFAULT
    http_tls: bool = False
    http_hosts: tuple[str, ...] = ()
    """Names by which clients may address the API, beside localhost and every numeric address."""
    http_connections_max: int = limits.CONNECTIONS_DEFAULT
    http_connections_per_ip_max: int = limits.HTTP_CONNECTIONS_PER_IP_DEFAULT
    http_strangers_per_ip_max: int = limits.HTTP_STRANGERS_PER_IP_DEFAULT
    http_header_ms: int = limits.HTTP_HEADER_MS_DEFAULT
    http_body_ms: int = limits.HTTP_BODY_MS_DEFAULT
    http_idle_ms: int = limits.HTTP_IDLE_MS_DEFAULT
    http_body_bytes_max: int = limits.HTTP_BODY_BYTES_DEFAULT
    http_held_bytes_max: int = limits.HTTP_HELD_BYTES_DEFAULT
    http_write_buffer_bytes_max: int = limits.WRITE_BUFFER_BYTES_DEFAULT

    auth_tokens: str | None = None
    """The file of the tokens; None: nobody has to say who they are."""
    auth_unix_uids: frozenset[int] | None = None
    """Who may come over a unix socket without a token; with None for both its mode decides."""
    auth_unix_gids: frozenset[int] | None = None

    tls_certificate: str | None = None
    tls_key: str | None = None
    """None: it is in the file of the certificate."""
    tls_client_ca: str | None = None
    """Clients need a certificate of one of these authorities; None: they need none."""

    sync: SyncPolicy = SyncPolicy.ALWAYS
    sync_interval_ms: int = limits.SYNC_INTERVAL_MS_DEFAULT
    segment_bytes: int = limits.JOURNAL_SEGMENT_BYTES_DEFAULT

    tick_ms: int = limits.WHEEL_TICK_MS_DEFAULT
    wheel_size: int = limits.WHEEL_SIZE_DEFAULT

    body_bytes_max: int = limits.BODY_BYTES_DEFAULT
    jobs_max: int | None = None
    bytes_max: int | None = None
    topics: "Patterns | None" = None
    """The policies of topics, by patterns of their names."""

    log_format: LogFormat = LogFormat.TEXT
    log_level: LogLevel = LogLevel.INFO


class ConfigError(NamedTuple):
    """One thing that is wrong: where it was said, what was said, and the rule it breaks."""

    source: str
    said: str
    rule: str

    def __str__(self) -> str:
        """The error as it is shown."""
        return ": ".join(part for part in self if part)


class ConfigErrors(Exception):
    """The configuration is not valid; nothing was started."""

    def __init__(self, errors: list[ConfigError]) -> None:
        super().__init__("\n".join(map(str, errors)))
        self.errors = tuple(errors)


class Setting(NamedTuple):
    """One row of the table: its name in the file, the field it fills, how it is read, its flag."""

    name: str
    field: str
    read: Reader
    flag: str = ""

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return ENVIRONMENT_PREFIX + self.name.replace(".", "_").upper()


_CLOCKS: Final = {kind.value: kind for kind in ClockKind}
_SYNC_POLICIES: Final = {policy.value: policy for policy in SyncPolicy}
_LOG_FORMATS: Final = {form.value: form for form in LogFormat}
_LOG_LEVELS: Final = {level.name.lower(): level for level in LogLevel}

_FILE: Final = readers.text("must be the path of a file")
_CONNECTIONS: Final = readers.whole(1, limits.CONNECTIONS_MAX)
_WRITE_BUFFER: Final = readers.size(limits.WRITE_BUFFER_BYTES_MIN, limits.WRITE_BUFFER_BYTES_MAX)
_HTTP_TIMEOUT: Final = readers.duration(limits.HTTP_TIMEOUT_MS_MIN, limits.HTTP_TIMEOUT_MS_MAX)

SETTINGS: Final = (
    Setting("data_dir", "data_dir", readers.text("must be the path of a directory"), "--data-dir"),
    Setting("clock", "clock", readers.one_of(_CLOCKS), "--clock"),
    Setting("insecure_no_auth", "insecure_no_auth", readers.flag, "--insecure-no-auth"),
    Setting("line.listen", "line_listen", readers.address, "--line"),
    Setting("line.unix_mode", "line_unix_mode", readers.unix_mode),
    Setting("line.tls", "line_tls", readers.flag),
    Setting("line.connections_max", "line_connections_max", _CONNECTIONS),
    Setting("line.write_buffer_bytes_max", "line_write_buffer_bytes_max", _WRITE_BUFFER),
    Setting("http.listen", "http_listen", readers.address, "--http"),
    Setting("http.unix_mode", "http_unix_mode", readers.unix_mode),
    Setting("http.tls", "http_tls", readers.flag),
    Setting("http.hosts", "http_hosts", readers.host_names),
    Setting("http.connections_max", "http_connections_max", _CONNECTIONS),
    Setting("http.connections_per_ip_max", "http_connections_per_ip_max", _CONNECTIONS),
    Setting("http.strangers_per_ip_max", "http_strangers_per_ip_max", _CONNECTIONS),
    Setting("http.header_timeout", "http_header_ms", _HTTP_TIMEOUT),
    Setting("http.body_timeout", "http_body_ms", _HTTP_TIMEOUT),
    Setting("http.idle_timeout", "http_idle_ms", _HTTP_TIMEOUT),
    Setting(
        "http.body_bytes_max",
        "http_body_bytes_max",
        readers.size(limits.HTTP_BODY_BYTES_MIN, limits.HTTP_BODY_BYTES_MAX),
    ),
    Setting(
        "http.held_bytes_max",
        "http_held_bytes_max",
        readers.size(limits.HTTP_HELD_BYTES_MIN, limits.HTTP_HELD_BYTES_MAX),
    ),
    Setting("http.write_buffer_bytes_max", "http_write_buffer_bytes_max", _WRITE_BUFFER),
    Setting("auth.tokens", "auth_tokens", readers.or_off(_FILE)),
    Setting("auth.unix_uids", "auth_unix_uids", readers.or_off(readers.ids)),
    Setting("auth.unix_gids", "auth_unix_gids", readers.or_off(readers.ids)),
    Setting("tls.certificate", "tls_certificate", readers.or_off(_FILE)),
    Setting("tls.key", "tls_key", readers.or_off(_FILE)),
    Setting("tls.client_ca", "tls_client_ca", readers.or_off(_FILE)),
    Setting("journal.sync", "sync", readers.one_of(_SYNC_POLICIES), "--sync"),
    Setting(
        "journal.sync_interval",
        "sync_interval_ms",
        readers.duration(1, limits.SYNC_INTERVAL_MS_MAX),
    ),
    Setting(
        "journal.segment_bytes",
        "segment_bytes",
        readers.size(limits.JOURNAL_SEGMENT_BYTES_MIN, limits.JOURNAL_SEGMENT_BYTES_MAX),
    ),
    Setting("wheel.tick", "tick_ms", readers.duration(1, limits.WHEEL_TICK_MS_MAX)),
    Setting(
        "wheel.size", "wheel_size", readers.whole(limits.WHEEL_SIZE_MIN, limits.WHEEL_SIZE_MAX)
    ),
    Setting("jobs.body_bytes_max", "body_bytes_max", readers.size(1, limits.BODY_BYTES_CEILING)),
    Setting("jobs.jobs_max", "jobs_max", readers.or_off(readers.whole(1, limits.CAP_MAX))),
    Setting("jobs.bytes_max", "bytes_max", readers.or_off(readers.size(1, limits.CAP_MAX))),
    Setting("topics", "topics", readers.topics),
    Setting("log.format", "log_format", readers.one_of(_LOG_FORMATS), "--log-format"),
    Setting("log.level", "log_level", readers.one_of(_LOG_LEVELS)),
)
BY_NAME: Final = {setting.name: setting for setting in SETTINGS}
BY_VARIABLE: Final = {setting.variable: setting for setting in SETTINGS}
BY_FLAG: Final = {setting.flag: setting for setting in SETTINGS if setting.flag}
SECTIONS: Final = {name.partition(".")[0] for name in BY_NAME if "." in name}
TABLES: Final = {*SECTIONS, "topics"}


def load(
    path: str | None,
    environment: Mapping[str, str],
    flags: Mapping[str, object],
) -> Config:
    """Put the configuration together. Raises `ConfigErrors` with every error there is.

    `path` is the TOML file, if any; `flags` holds what was said on the command line: `--sync`.
    """
    errors: list[ConfigError] = []
    fields: dict[str, Any] = {}
    # Each source yields what it can and adds what it cannot to the errors, so they are in order.
    given = itertools.chain(
        _from_file(path, errors),
        _from_environment(environment, errors),
        _from_flags(flags),
    )
    for setting, value, source, said_as in given:
        try:
            fields[setting.field] = setting.read(value)
        except WrongInside as wrong:
            errors += [ConfigError(source, said_as + said, rule) for said, rule in wrong.errors]
        except ValueError as error:
            errors.append(ConfigError(source, f"{said_as} = {shown(value)}", str(error)))
    if errors:
        raise ConfigErrors(errors)
    config = replace(Config(), **fields)
    errors = list(_broken_rules(config))
    if errors:
        raise ConfigErrors(errors)
    return config


Given = tuple[Setting, object, str, str]


def _from_file(path: str | None, errors: list[ConfigError]) -> Iterator[Given]:
    if path is None:
        return
    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        errors.append(ConfigError(path, "", f"cannot be read: {error.strerror}"))
        return
    except (ValueError, RecursionError) as error:
        errors.append(ConfigError(path, "", f"is not TOML: {error}"))
        return
    for name, value in _flattened(document, path, errors):
        if name in BY_NAME:
            yield BY_NAME[name], value, path, name
        else:
            errors.append(ConfigError(path, name, _unknown("setting", name, BY_NAME)))


def _flattened(
    document: dict[str, object], path: str, errors: list[ConfigError]
) -> Iterator[tuple[str, object]]:
    """Name what the document holds as `SETTINGS` does: `section.key`."""
    for key, value in document.items():
        if isinstance(value, dict) and key in SECTIONS:
            for inner_key, inner_value in value.items():
                yield f"{key}.{inner_key}", inner_value
        elif isinstance(value, dict) and key not in BY_NAME:
            errors.append(ConfigError(path, f"[{key}]", _unknown("section", key, TABLES)))
        elif key in SECTIONS:
            errors.append(ConfigError(path, f"{key} = {shown(value)}", "must be a section"))
        else:
            yield key, value


def _from_environment(environment: Mapping[str, str], errors: list[ConfigError]) -> Iterator[Given]:
    source = "environment"
    for name, value in sorted(environment.items()):
        if name in BY_VARIABLE:
            yield BY_VARIABLE[name], Said(value), source, name
        elif (
            name.startswith(ENVIRONMENT_PREFIX)
            and name != CONFIG_FILE_VARIABLE
            and not name.startswith(SERVICE_LINK_PREFIXES)
        ):
            known = {*BY_VARIABLE, CONFIG_FILE_VARIABLE}
            errors.append(
                ConfigError(source, name, _unknown("variable", name, known, ENVIRONMENT_PREFIX))
            )


def _from_flags(flags: Mapping[str, object]) -> Iterator[Given]:
    for flag, value in flags.items():
        given = Said(value) if isinstance(value, str) else value
        yield BY_FLAG[flag], given, "command line", flag


def _unknown(kind: str, name: str, known: Collection[str], prefix: str = "") -> str:
    """Say so, and name what comes nearest."""
    return f"there is no such {kind}{did_you_mean(name, sorted(known), prefix)}"


def _broken_rules(config: Config) -> Iterator[ConfigError]:
    """The rules that concern more than one setting."""
    if config.line_listen is None and config.http_listen is None:
        yield ConfigError("", "line.listen and http.listen", "must not both be off")
    yield from _broken_tls_rules(config)
    for name, address, has_tls in (
        ("line.listen", config.line_listen, config.line_tls),
        ("http.listen", config.http_listen, config.http_tls),
    ):
        if address is not None and is_exposed(config, address, has_tls=has_tls):
            yield exposed(name, address)


def _broken_tls_rules(config: Config) -> Iterator[ConfigError]:
    if config.tls_certificate is not None:
        if not (config.line_tls or config.http_tls):
            rule = "is of no use while line.tls and http.tls are false"
            yield ConfigError("", f"tls.certificate = {shown(config.tls_certificate)}", rule)
        return
    for name, value in (
        ("line.tls", config.line_tls),
        ("http.tls", config.http_tls),
        ("tls.key", config.tls_key),
        ("tls.client_ca", config.tls_client_ca),
    ):
        if value:
            yield ConfigError("", f"{name} = {shown(value)}", "needs a tls.certificate")


def is_exposed(config: Config, address: Address, *, has_tls: bool) -> bool:
    """Whether machines reach the address that have to say neither by token nor certificate who."""
    is_guarded = config.auth_tokens is not None or (has_tls and config.tls_client_ca is not None)
    return not (is_guarded or config.insecure_no_auth or is_local(address))


def exposed(name: str, address: Address) -> ConfigError:
    """The error of an address that others can reach while nobody has to say who they are."""
    return ConfigError(
        "",
        f'{name} = "{address}"',
        "must be a loopback address, localhost or a unix socket, because whoever reaches it can"
        " use every job; auth.tokens or tls.client_ca keep strangers out, --insecure-no-auth lets"
        " them in",
    )
