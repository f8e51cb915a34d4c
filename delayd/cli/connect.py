"""How every command that talks to a daemon finds it, and how it fails.

The url is that of `--url`, of `--line` for the line protocol, of DELAYD_URL, or the default; of
daemons that share a log several, with commas between them. A
token comes from `--token-file`, DELAYD_TOKEN_FILE or DELAYD_TOKEN; no option takes the token
itself, since every user of the machine can read the arguments of a process.

Every error of the client ends the command with a sentence and an exit code, by `EXITS`.
"""

import contextlib
import functools
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from delayd.cli.parameters import Run, takes
from delayd.cli.terminal import CommandFailed, complain
from delayd.client.errors import (
    ConnectionLost,
    DelaydError,
    Forbidden,
    Invalid,
    NoRoom,
    NotFound,
    NotNow,
    NotOnThisProtocol,
    Refused,
    TimedOut,
    Unauthorized,
    Unreachable,
    WrongProtocol,
)
from delayd.exits import Exit
from delayd.text import counted, shown_url

if TYPE_CHECKING:
    import ssl

    from delayd.client.sync import Client

URL_VARIABLE: Final = "DELAYD_URL"
TOKEN_VARIABLE: Final = "DELAYD_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_BYTES_MAX: Final = 4_096
PATIENCE_S: Final = 30.0
ANSWER_S: Final = 30.0
COMPLETION_S: Final = 0.5
"""How long a shell waits for the daemon that knows topics and keys."""
KEYS_MAX: Final = 100

SCOPES: Final = {
    **dict.fromkeys(("put", "change", "reschedule", "import"), "put"),
    "reserve": "reserve",
    "work": "reserve,delete,release,bury",
    **dict.fromkeys(("ack", "cancel"), "delete"),
    **dict.fromkeys(("nack", "touch"), "release"),
    "bury": "bury",
    "kick": "kick",
    "redrive": "kick,stats",
    **dict.fromkeys(("reasons", "export"), "peek,stats"),
    **dict.fromkeys(("jobs", "find", "peek", "calendar", "show"), "peek"),
    **dict.fromkeys(("pause", "resume"), "pause"),
    **dict.fromkeys(("topics", "stats", "get"), "stats"),
    "handover": "admin",
    "relay": "put,peek,delete",
    **dict.fromkeys(("top", "list"), "stats,peek"),
    **dict.fromkeys(("set", "clear"), "admin,stats"),
    **dict.fromkeys(("schedule list", "schedule show", "schedule preview"), "peek"),
    **dict.fromkeys(("schedule pause", "schedule resume", "schedule run"), "put"),
    **dict.fromkeys(("schedule put", "schedule remove"), "put"),
    "schedule backfill": "put,peek",
    **dict.fromkeys(("group list", "group show"), "stats"),
}
"""The scopes that a command needs, for a hint where the daemon's answer names none."""
NOT_FOR_TOKENS: Final = frozenset(("source_refused", "topic_internal", "schedule_configured"))
"""Refusals that no token would change."""


def _file_of_tls(name: str, about: str) -> Callable[[Run], Run]:
    """Return the option for a file of TLS, which a variable may name as well."""
    variable = f"DELAYD_{name.upper()}_FILE"
    return click.option(
        f"--{name}-file",
        metavar="FILE",
        envvar=variable,
        type=click.Path(exists=True, dir_okay=False),
        help=f"{about} [env: {variable}]",
    )


OPTIONS: Final = (
    click.option(
        "--url",
        metavar="URL",
        envvar=URL_VARIABLE,
        help="Where the daemon is: http://HOST:PORT, https://HOST, http+unix:/PATH,"
        " beanstalk://HOST:PORT, unix:/PATH; several with commas if they share a log."
        " [env: DELAYD_URL; default: http://127.0.0.1:11301]",
    ),
    click.option(
        "--line", metavar="ADDRESS", help="Use the line protocol: HOST:PORT or unix:/PATH."
    ),
    click.option(
        "--token-file",
        metavar="FILE",
        envvar="DELAYD_TOKEN_FILE",
        type=click.File("rb"),
        help="The file with the token. [env: DELAYD_TOKEN_FILE, or the token in DELAYD_TOKEN]",
    ),
    _file_of_tls("ca", "The authority of the daemon's certificate, as PEM."),
    _file_of_tls("cert", "A certificate to show to the daemon, as PEM."),
    _file_of_tls("key", "Its private key, if that is in another file."),
)

WHERE: Final = ("url", "line", "token_file", "ca_file", "cert_file", "key_file")
"""Their names, as `client` takes them."""

EXITS: Final = (
    ((Unauthorized, Forbidden), Exit.NOT_ALLOWED),
    ((NotFound, TimedOut), Exit.NOTHING_THERE),
    ((Unreachable, ConnectionLost), Exit.UNREACHABLE),
    ((NotNow, NoRoom), Exit.NOT_NOW),
    ((Invalid, NotOnThisProtocol, WrongProtocol), Exit.USAGE),
    ((DelaydError,), Exit.REFUSED),
)
"""The exit code of each error of the client; the first row that fits counts."""


def with_client(command: Run) -> Run:
    """Give a command the options above, and call it with the client for them."""
    return with_patience(PATIENCE_S)(command)


def with_patience(patience_s: float) -> Callable[[Run], Run]:
    """The same, with a client that tries so long to reach again a daemon that is away.

    Not where it is watched: that shows at once that the daemon is away, and asks again itself.
    """

    def with_options(command: Run) -> Run:
        @functools.wraps(command)
        def run(**given: Any) -> int | None:
            where = {name: given.pop(name) for name in WHERE}
            patience = 0.0 if given.get("is_watched") else patience_s
            with client_errors(), client(**where, patience_s=patience) as found:
                found.outage.tell = tell_outage
                return command(found, **given)

        return takes(*OPTIONS)(run)

    return with_options


def client(
    url: str | None,
    line: str | None,
    token_file: object = None,
    ca_file: str | None = None,
    cert_file: str | None = None,
    key_file: str | None = None,
    patience_s: float = PATIENCE_S,
    answer_s: float = ANSWER_S,
) -> "Client":
    """Return a client; nothing is connected before its first call. Raises CommandFailed."""
    from delayd.client.sync import Client

    where = url_of(url, line)
    tls = context(ca_file, cert_file, key_file)
    try:
        return Client(
            where, token=token(token_file), tls=tls, timeout=answer_s, patience=patience_s
        )
    except ValueError as error:
        raise CommandFailed(Exit.USAGE, str(error)) from None


def url_of(url: str | None, line: str | None) -> str:
    """Return the url of the options.

    >>> url_of(None, None), url_of(None, "127.0.0.1:11300"), url_of("x", "unix:/run/line.sock")
    ('http://127.0.0.1:11301', 'beanstalk://127.0.0.1:11300', 'unix:/run/line.sock')
    >>> url_of(None, "db-1:11300,db-2:11300")
    'beanstalk://db-1:11300,beanstalk://db-2:11300'
    """
    from delayd.client.addresses import DEFAULT_URL

    if line is None:
        return url or DEFAULT_URL
    if line.startswith(("http:", "https:", "http+unix:")):
        raise CommandFailed(
            Exit.USAGE, f"--line is for the line protocol: use --url {shown_url(line)}"
        )
    if line.startswith(("unix:", "beanstalk://", "beanstalks://")):
        return line
    return ",".join(f"beanstalk://{each.strip()}" for each in line.split(","))


def token(file: object) -> str:
    """Return the token of the file, or that of the environment; empty if there is none."""
    if file is None:
        source, text = TOKEN_VARIABLE, os.environ.get(TOKEN_VARIABLE, "").strip()
        if not text:
            return ""
    else:
        read: Callable[[int], bytes] = getattr(file, "read")  # noqa: B009 - click's lazy file
        source, text = "the token file", read(TOKEN_BYTES_MAX).decode(errors="replace").strip()
    if not text or not text.isprintable() or " " in text:
        raise CommandFailed(Exit.USAGE, f"{source} holds no token: one line, dlyd_...")
    return text


def has_token() -> bool:
    """Tell whether the command that runs has a token."""
    return _has_file("token_file") or bool(os.environ.get(TOKEN_VARIABLE))


def _has_file(option: str) -> bool:
    """Tell whether the command that runs was given this file, by its option or variable."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and ctx.params.get(option) is not None


def seen() -> str:
    """Return a note for "there are none" if there is a token, which may be for some topics."""
    return " that this token may see" if has_token() else ""


def context(
    ca_file: str | None, cert_file: str | None = None, key_file: str | None = None
) -> "ssl.SSLContext | None":
    """Return a context that trusts this authority, and shows this certificate; None: neither."""
    if cert_file is None and key_file is not None:
        raise CommandFailed(Exit.USAGE, "--key-file is for the certificate of --cert-file")
    if ca_file is None and cert_file is None:
        return None
    from delayd.bounded_files import must_be_file
    from delayd.net.tls import client_context, no_passphrase

    rule = f"{ca_file} is not a certificate"
    try:
        for file in filter(None, (ca_file, cert_file, key_file)):
            must_be_file(file)
        found = client_context(ca_file)
        if cert_file is not None:
            rule = f"{cert_file} is no certificate with its key, or --key-file is to name that"
            found.load_cert_chain(cert_file, key_file, password=no_passphrase)
    except (OSError, ValueError) as error:
        raise CommandFailed(Exit.USAGE, f"{rule}: {error}") from None
    return found


@contextlib.contextmanager
def client_errors() -> Iterator[None]:
    """Make the command fail on an error of the client, with its exit code."""
    try:
        yield
    except DelaydError as error:
        raise CommandFailed(exit_of(error), *explained(error)) from error
    except RecursionError:
        why = "what the daemon answered is nested too deep to be shown"
        raise CommandFailed(Exit.REFUSED, why) from None


def exit_of(error: DelaydError) -> Exit:
    """Return the exit code of an error."""
    return next(code for kinds, code in EXITS if isinstance(error, kinds))


def _known(
    names: "Callable[[Client, str, str], Iterable[str]]", *, of_topic: bool = False
) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return what completes an argument for a shell: names that the daemon has.

    `names` is given the client, the topic of the command and how the name begins. If the daemon
    does not answer in time or refuses, there is nothing to complete.
    """

    def complete(ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
        import threading

        topic = ctx.params.get("topic") or ""
        if of_topic and not topic:
            return []
        found: list[str] = []
        where: Any = {name: ctx.params.get(name) for name in WHERE}

        def fetch() -> None:
            with contextlib.suppress(Exception), client(**where) as daemon:
                known = names(daemon, topic, begun)
                found.extend(name for name in known if name and name.startswith(begun))

        thread = threading.Thread(target=fetch, daemon=True)
        thread.start()
        thread.join(COMPLETION_S)
        return [*found]

    return complete


known_topics: Final = _known(lambda daemon, _topic, _begun: (each.name for each in daemon.topics()))
known_keys: Final = _known(
    lambda daemon, topic, begun: (
        job.key for job in daemon.jobs(topic, limit=KEYS_MAX, key_prefix=begun)
    ),
    of_topic=True,
)
known_groups: Final = _known(
    lambda daemon, topic, begun: (
        each.name for each in daemon.groups(topic, limit=KEYS_MAX, after=begun).groups
    ),
    of_topic=True,
)
known_schedules: Final = _known(
    lambda daemon, _topic, begun: (
        each.name for each in itertools.islice(daemon.schedules(prefix=begun), KEYS_MAX)
    )
)


def missing(error: Refused) -> tuple[str, str]:
    """Return the scopes and topics that a token would need, in capitals where they are not known.

    >>> missing(Forbidden("the token allows reserve for the topics mail.*, and not for 'other'"))
    ('reserve', 'other')
    """
    import shlex

    if found := re.search(r"allows (\w+) for .*, and not for (?:'([^']+)'|all)$", str(error)):
        return found[1], shlex.quote(found[2] or "*")
    ctx = click.get_current_context(silent=True)
    params = {} if ctx is None else ctx.params
    topics = [params.get("topic") or "", *(params.get("topics") or ())]
    known = shlex.quote(",".join(filter(None, topics)))
    command = "" if ctx is None else str(ctx.info_name)
    group = str(ctx.parent.info_name) if ctx is not None and ctx.parent is not None else ""
    known_scope = SCOPES.get(f"{group} {command}") or SCOPES.get(command, "SCOPE")
    scope = getattr(error, "scope", "") or known_scope
    return scope, known if any(topics) else "TOPIC"


def tell_outage(error: DelaydError | None) -> None:
    """Report that the daemon is away, and is asked again, or that it is back."""
    complain("the daemon is back" if error is None else f"{error}; trying again")
    if error is not None and (hint := hint_at_tls(error)):
        complain(hint)


def hint_at_tls(error: DelaydError) -> str:
    """Return what may be amiss with TLS where a connection was lost; empty: nothing.

    A port that wants TLS closes a connection without it, and says nothing.

    >>> url, why = "http://127.0.0.1:11301", "the daemon closed it"
    >>> hint_at_tls(ConnectionLost(url, why, may_have_happened=False))
    'if it wants TLS, its url begins with https:// or beanstalks://'
    """
    text = str(error)
    is_closed = isinstance(error, ConnectionLost) and "the daemon closed it" in text
    if is_closed and re.search(r" (http|beanstalk)://", text):
        return "if it wants TLS, its url begins with https:// or beanstalks://"
    is_alert = re.search("alert .*(certificate|unknown ca)", text) is not None
    if is_alert or (is_closed and re.search(r" (https|beanstalks)://", text)):
        if _has_file("cert_file"):
            return "it may not accept the certificate of --cert-file: its log says why"
        return "if it has tls.client_ca, it wants a certificate: --cert-file FILE --key-file FILE"
    return ""


def explained(error: DelaydError) -> Iterator[str]:
    """Yield the lines of an error for people: one for each mistake, and what to do."""
    if isinstance(error, Refused) and error.problems:
        yield from (f"{problem.field}: {problem.detail}" for problem in error.problems)
    else:
        yield str(error)
    if hint := hint_at_tls(error):
        yield hint
    if isinstance(error, Unauthorized):
        if has_token():
            yield "a token that was just created is accepted after: systemctl reload delayd"
        else:
            yield "show one with --token-file FILE, DELAYD_TOKEN_FILE or DELAYD_TOKEN"
    if isinstance(error, Unauthorized | Forbidden) and error.kind not in NOT_FOR_TOKENS:
        scope, topic = missing(error)
        how = f"delayd token create NAME --scope {scope} --topic {topic}"
        yield f"create a token that may: {how}"
    if isinstance(error, NotNow) and error.kind == "standing_by":
        yield "nothing was changed; ask the owner: name it with --url, or all addresses with commas"
    elif isinstance(error, NotNow | NoRoom):
        later = "later" if error.retry_after_s is None else f"in {error.retry_after_s:g} s"
        yield f"{_done_before(error) or 'nothing was changed'}; try again {later}"
    elif isinstance(error, Refused) and error.done:
        yield _done_before(error)


def _done_before(error: Refused) -> str:
    """Return how many jobs were put or changed before the refusal; empty: none were."""
    return f"{counted(error.done, 'job')} had been put or changed before" if error.done else ""
