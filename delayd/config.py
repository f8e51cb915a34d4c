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
import json
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from delayd.core import limits
from delayd.core.durations import duration_text, parse_duration_ms, parse_size_bytes, size_text
from delayd.logs import LogFormat, LogLevel
from delayd.sockets import UNIX_MODE_DEFAULT, Address, TcpAddress, is_local, parse_address

if TYPE_CHECKING:
    from delayd.core.policy import Patterns

LINE_LISTEN_DEFAULT: Final = TcpAddress("127.0.0.1", 11300)
OFF: Final = "off"

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
    line_connections_max: int = limits.CONNECTIONS_DEFAULT
    line_write_buffer_bytes_max: int = limits.WRITE_BUFFER_BYTES_DEFAULT

    http_listen: Address | None = None

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


class WrongInside(ValueError):
    """A value of several parts, some of which are wrong."""

    def __init__(self, errors: Iterable[tuple[str, str]]) -> None:
        """Name each: what was said, beginning with where in the value, and the rule."""
        super().__init__("has parts that are wrong")
        self.errors = tuple(errors)


# A reader turns what TOML, a variable or a flag holds into the value of a field, or raises
# ValueError with the rule as its message.
Reader = Callable[[object], Any]


def _text(rule: str) -> Reader:
    def read(value: object) -> str:
        if not isinstance(value, str) or not value or "\0" in value:
            raise ValueError(rule)
        return value

    return read


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if value in {"true", "false"}:
        return value == "true"
    raise ValueError("must be true or false")


def _one_of(choices: Mapping[str, object]) -> Reader:
    def read(value: object) -> object:
        if isinstance(value, str) and value in choices:
            return choices[value]
        raise ValueError("must be one of " + ", ".join(choices))

    return read


def _whole(lowest: int, highest: int) -> Reader:
    def read(value: object) -> int:
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            raise ValueError(f"must be a whole number from {lowest} to {highest}")
        return value

    return read


def _duration(lowest_ms: int, highest_ms: int) -> Reader:
    def read(value: object) -> int:
        duration_ms = parse_duration_ms(value)
        if not lowest_ms <= duration_ms <= highest_ms:
            bounds = f'"{duration_text(lowest_ms)}" to "{duration_text(highest_ms)}"'
            raise ValueError(f"must be from {bounds}")
        return duration_ms

    return read


def _size(lowest_bytes: int, highest_bytes: int) -> Reader:
    def read(value: object) -> int:
        size_bytes = parse_size_bytes(value)
        if not lowest_bytes <= size_bytes <= highest_bytes:
            bounds = f"{lowest_bytes} to {highest_bytes} bytes"
            if not str(value).isdigit():  # who writes units is answered in units
                bounds = f'"{size_text(lowest_bytes)}" to "{size_text(highest_bytes)}"'
            raise ValueError(f"must be from {bounds}")
        return size_bytes

    return read


def _or_off(read: Reader) -> Reader:
    def read_unless_off(value: object) -> object:
        if value == OFF:
            return None
        try:
            return read(value)
        except ValueError as error:
            raise ValueError(f"{error}, or off") from None

    return read_unless_off


def _topics(value: object) -> "Patterns | None":
    """Read the policies of topics: a table of tables, or the same as JSON in a variable."""
    from delayd.core.errors import PolicyInvalid  # noqa: PLC0415 - few have any, and it takes time
    from delayd.core.policy import PATTERN_RULE, Patterns, Policy, is_pattern  # noqa: PLC0415

    rule, inner_rule = 'must be sections such as [topics."mail.*"]', "must be a section"
    if isinstance(value, str):
        inner_rule = 'must be an object such as {"retry": "15s 3m"}'
        rule = 'must be JSON such as {"mail.*": {"retry": "15s 3m"}}'
        try:
            value = json.loads(value, object_pairs_hook=_without_repeats)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{rule}: {error}") from None
    rows = value.items() if isinstance(value, dict) else None
    if rows is None:
        raise ValueError(rule)
    by_pattern: dict[str, Policy] = {}
    errors = []
    for pattern, given in rows:
        where = f".{_shown(pattern)}"
        if not is_pattern(pattern):
            errors.append((where, PATTERN_RULE))
        if not isinstance(given, dict):
            errors.append((f"{where} = {_shown(given)}", inner_rule))
        else:
            try:
                by_pattern[pattern] = Policy.from_fields(given)
            except PolicyInvalid as refusal:
                errors += [(f"{where}.{error}", "") for error in refusal.errors]
    if errors:
        raise WrongInside(errors)
    return Patterns(by_pattern) if by_pattern else None


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object; TOML refuses names that are given twice, and so do we."""
    fields: dict[str, object] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"{_shown(name)} is given twice")
        fields[name] = value
    return fields


def _line_listen(value: object) -> Address | None:
    if value == OFF:
        return None
    if isinstance(value, str):
        return parse_address(value)
    raise ValueError("must be HOST:PORT, unix:PATH or off")


def _http_listen(value: object) -> None:
    if value != OFF:
        raise ValueError("must be off: this version speaks the line protocol only")


def _unix_mode(value: object) -> int:
    if isinstance(value, str) and len(value) <= 4 and value and set(value) <= set("01234567"):
        mode = int(value, 8)
        if mode <= 0o777:
            return mode
    raise ValueError('must be a file mode in octal digits, such as "0660"')


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

SETTINGS: Final = (
    Setting("data_dir", "data_dir", _text("must be the path of a directory"), "--data-dir"),
    Setting("clock", "clock", _one_of(_CLOCKS), "--clock"),
    Setting("insecure_no_auth", "insecure_no_auth", _flag, "--insecure-no-auth"),
    Setting("line.listen", "line_listen", _line_listen, "--line"),
    Setting("line.unix_mode", "line_unix_mode", _unix_mode),
    Setting("line.connections_max", "line_connections_max", _whole(1, limits.CONNECTIONS_MAX)),
    Setting(
        "line.write_buffer_bytes_max",
        "line_write_buffer_bytes_max",
        _size(limits.WRITE_BUFFER_BYTES_MIN, limits.WRITE_BUFFER_BYTES_MAX),
    ),
    Setting("http.listen", "http_listen", _http_listen, "--http"),
    Setting("journal.sync", "sync", _one_of(_SYNC_POLICIES), "--sync"),
    Setting("journal.sync_interval", "sync_interval_ms", _duration(1, limits.SYNC_INTERVAL_MS_MAX)),
    Setting(
        "journal.segment_bytes",
        "segment_bytes",
        _size(limits.JOURNAL_SEGMENT_BYTES_MIN, limits.JOURNAL_SEGMENT_BYTES_MAX),
    ),
    Setting("wheel.tick", "tick_ms", _duration(1, limits.WHEEL_TICK_MS_MAX)),
    Setting("wheel.size", "wheel_size", _whole(limits.WHEEL_SIZE_MIN, limits.WHEEL_SIZE_MAX)),
    Setting("jobs.body_bytes_max", "body_bytes_max", _size(1, limits.BODY_BYTES_CEILING)),
    Setting("jobs.jobs_max", "jobs_max", _or_off(_whole(1, limits.CAP_MAX))),
    Setting("jobs.bytes_max", "bytes_max", _or_off(_size(1, limits.CAP_MAX))),
    Setting("topics", "topics", _topics),
    Setting("log.format", "log_format", _one_of(_LOG_FORMATS), "--log-format"),
    Setting("log.level", "log_level", _one_of(_LOG_LEVELS)),
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
        ((BY_FLAG[flag], value, "command line", flag) for flag, value in flags.items()),
    )
    for setting, value, source, said_as in given:
        try:
            fields[setting.field] = setting.read(value)
        except WrongInside as wrong:
            errors += [ConfigError(source, said_as + said, rule) for said, rule in wrong.errors]
        except ValueError as error:
            errors.append(ConfigError(source, f"{said_as} = {_shown(value)}", str(error)))
    if errors:
        raise ConfigErrors(errors)
    config = replace(Config(), **fields)
    errors = list(_broken_rules(config))
    if errors:
        raise ConfigErrors(errors)
    return config


def _shown(value: object) -> str:
    """A value on one line, control characters escaped, as it would be written in the file."""
    return json.dumps(value, default=str)


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
            errors.append(ConfigError(path, f"{key} = {_shown(value)}", "must be a section"))
        else:
            yield key, value


def _from_environment(environment: Mapping[str, str], errors: list[ConfigError]) -> Iterator[Given]:
    source = "environment"
    for name, value in sorted(environment.items()):
        if name in BY_VARIABLE:
            yield BY_VARIABLE[name], value, source, name
        elif (
            name.startswith(ENVIRONMENT_PREFIX)
            and name != CONFIG_FILE_VARIABLE
            and not name.startswith(SERVICE_LINK_PREFIXES)
        ):
            known = {*BY_VARIABLE, CONFIG_FILE_VARIABLE}
            errors.append(
                ConfigError(source, name, _unknown("variable", name, known, ENVIRONMENT_PREFIX))
            )


def _unknown(kind: str, name: str, known: Collection[str], prefix: str = "") -> str:
    """Say so, and name what comes nearest; a prefix that all names share makes nothing nearer."""
    import difflib  # noqa: PLC0415 - only for who made a mistake

    endings = [each.removeprefix(prefix) for each in sorted(known)]
    close = difflib.get_close_matches(name.removeprefix(prefix), endings, n=1, cutoff=0.5)
    hint = f"; did you mean {prefix}{close[0]}?" if close else ""
    return f"there is no such {kind}{hint}"


def _broken_rules(config: Config) -> Iterator[ConfigError]:
    """The rules that concern more than one setting."""
    if config.line_listen is None and config.http_listen is None:
        yield ConfigError("", "line.listen and http.listen", "must not both be off")
    if config.insecure_no_auth:
        return
    for name, address in (("line.listen", config.line_listen), ("http.listen", config.http_listen)):
        if address is not None and not is_local(address):
            yield exposed(name, address)


def exposed(name: str, address: Address) -> ConfigError:
    """The error of an address that others can reach while nobody has to say who they are."""
    return ConfigError(
        "",
        f'{name} = "{address}"',
        "must be a loopback address, localhost or a unix socket, because whoever reaches it can"
        " use every job; --insecure-no-auth accepts that",
    )
