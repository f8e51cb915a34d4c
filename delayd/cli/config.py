"""`delayd config`: check a configuration, and show every setting.

The output of `show` is a configuration file again, with every setting: it can be kept, compared
and, once secrets are in it again, loaded. The module does not know the meaning of the settings.
"""

import json
import math
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from delayd.cli.parameters import Subcommands
from delayd.cli.tables import json_text
from delayd.cli.terminal import CommandFailed, complain, load_config, print_lines
from delayd.exits import Exit
from delayd.text import in_toml, visible, with_shown_urls

if TYPE_CHECKING:
    from delayd.config import Config
    from delayd.fields import Field

CONFIG_OPTION: Final = click.option(
    "--config",
    "path",
    metavar="FILE",
    envvar="DELAYD_CONFIG",
    help="TOML file; see config.example.toml. [env: DELAYD_CONFIG]",
)


@click.group(cls=Subcommands)
def config() -> None:
    """Check and show the configuration."""


@config.command(
    "delayd config check --config /etc/delayd/delayd.toml",
    short_help="Check the configuration as a start would.",
)
@CONFIG_OPTION
def check(path: str | None) -> None:
    """Check the configuration as a start of the daemon would, and start nothing.

    The file, the variables (DELAYD_...) and the files of tokens, secrets and certificates are read,
    the packages of sinks loaded, and the targets of policies judged. The errors of all settings are
    shown at once, then those of what they name; exit code 78.
    """
    from delayd.access.errors import AccessInvalid
    from delayd.access.reload import AccessControl
    from delayd.clock import system_wall_ms
    from delayd.config import ConfigErrors
    from delayd.moments import moment_text
    from delayd.net.addresses import Listeners
    from delayd.push.sinks import open_sinks
    from delayd.service import push_of

    loaded = load_config(path, {})
    errors: list[object] = []
    access = None
    try:
        access = AccessControl.open(loaded)
    except AccessInvalid as wrong:
        errors += wrong.errors
    try:
        if access is None:  # the secrets are not known
            open_sinks(loaded)
        else:
            push_of(loaded, access, Listeners())
    except ConfigErrors as bad:
        errors += bad.errors
    if errors or access is None:
        raise CommandFailed(Exit.BAD_CONFIGURATION, *map(str, errors))
    for kind, names in zip(("secret", "sink"), access.for_all_topics(), strict=True):
        for name in names:
            complain(f"warning: every topic may use the {kind} {name}; see docs/security.md")
    for name, (definition, _) in (loaded.schedules or {}).items():
        if definition.end_ms is not None and definition.end_ms < system_wall_ms():
            end = moment_text(definition.end_ms)
            complain(f"warning: the schedule {name} has ended, at {end}: no run is due any more")
    where = path or "the defaults and the environment"
    print_lines([f"{visible(where)}: the configuration is valid"])


@config.command(
    "delayd config show",
    "delayd config show --config delayd.toml --json | jq '.settings[\"journal.sync\"]'",
    short_help="Show every setting, and where it comes from.",
)
@CONFIG_OPTION
@click.option("--json", "as_json", is_flag=True, help="One JSON object: values and their sources.")
def show(path: str | None, *, as_json: bool) -> None:
    """Show every setting as a daemon would have it, and where it comes from.

    The output is a configuration file. Policies of topics are in it; tokens and keys are not, since
    settings only name the files that hold them. In place of passwords of sinks, values of headers
    and queries of urls it has ***, which a daemon refuses: put the secrets in again.
    """
    from delayd.config import sources

    loaded = load_config(path, {})
    origins = sources(path, os.environ)
    if as_json:
        settings = {
            setting.name: {
                "value": _for_json(written(setting, loaded)),
                "source": origins.get(setting.name, "default"),
            }
            for setting in _settings()
        }
        print_lines([json_text({"settings": settings})])
    else:
        print_lines(lines(loaded, origins))


def _settings() -> "tuple[Field, ...]":
    from delayd.config import SETTINGS

    return SETTINGS


def lines(loaded: "Config", origins: dict[str, str]) -> Iterator[str]:
    """Write a configuration as the lines of a file: first settings without a section."""
    section = ""
    for setting in sorted(_settings(), key=lambda setting: "." in setting.name):
        value = written(setting, loaded)
        if isinstance(value, dict):  # sections of their own, which come last
            continue
        before, _, name = setting.name.rpartition(".")
        if before != section:
            section = before
            yield f"\n[{section}]"
        source = origins.get(setting.name)
        yield f"{name} = {toml(value)}" + (f"  # {visible(source)}" if source else "")
    for setting in _settings():
        value = written(setting, loaded)
        if isinstance(value, dict):
            for pattern, policy in value.items():
                yield f"\n[{setting.name}.{toml(pattern)}]"
                yield from (
                    f"{_toml_name(name)} = {toml(setting)}" for name, setting in policy.items()
                )


def toml(value: Any) -> str:
    """Write a value as TOML has it, on one line.

    >>> toml({"steps": ["15s", 3], "on": True, "the end": float("inf")})
    '{steps = ["15s", 3], on = true, "the end" = inf}'
    """
    if isinstance(value, dict):
        inner = (f"{_toml_name(name)} = {toml(item)}" for name, item in value.items())
        return f"{{{', '.join(inner)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, str):  # JSON escapes what is beyond U+FFFF as TOML cannot
        return visible(json.dumps(value, ensure_ascii=False), write=in_toml)
    if isinstance(value, bool | int):
        return json.dumps(value)
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _toml_name(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else toml(name)


def written(setting: "Field", loaded: "Config") -> Any:
    """Return the value of a setting as a file has it: texts, numbers, lists and sections of these.

    Secrets of sections are not shown; the body of a schedule is, as it is. A sink's options may be
    of any type that TOML has.

    >>> from delayd.config import BY_NAME, Config
    >>> [written(BY_NAME[name], Config()) for name in ("journal.sync_interval", "auth.tokens")]
    ['50ms', 'off']
    """
    value = setting.kind.show(getattr(loaded, setting.inside))
    if not isinstance(value, dict):
        return value
    return {
        name: {
            field: inner if field == "body" else with_shown_urls(inner, field)
            for field, inner in section.items()
        }
        for name, section in value.items()
    }


def _for_json(value: Any) -> Any:
    """Return a value that JSON can hold: a time or an infinite number becomes a text."""
    if isinstance(value, dict):
        return {name: _for_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return list(map(_for_json, value))
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value.isoformat() if hasattr(value, "isoformat") else value
