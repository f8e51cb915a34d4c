r"""Options of sinks: read by a table, all mistakes told at once, and no secret in any of them.

    sinks.orders.list = 5: must be a text
    sinks.orders.url: must be redis://HOST[:PORT][/DATABASE], rediss:// for TLS, or unix:///PATH
    sinks.orders.pasword: there is no such option; did you mean password?

What servers have in common is here: a url with a user, a password, which may come from a file
instead, and TLS. A file with a password is read for each connection, so that it can be exchanged
while the daemon runs.

>>> from delayd.config import read_whole
>>> readers = {"list": read_text("must be a text"), "count": read_whole(1, 9)}
>>> read_options({"list": "due"}, readers)
{'list': 'due'}
>>> try: read_options({"lists": "due", "count": 10}, readers)
... except WrongInside as wrong: print(*wrong.errors, sep="\n")
('.lists', 'there is no such option; did you mean list?')
('.count = 10', 'must be a whole number from 1 to 9')
>>> read_url({"redis": 6379}, "must be redis://HOST")("redis://ada@localhost/2")
ServerUrl(scheme='redis', host='localhost', port=6379, user='ada', password='', path='2')
"""

import ssl
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, final
from urllib.parse import unquote, urlsplit

from delayd.config import Reader, WrongInside, read_duration, read_text, shown
from delayd.files import must_be_file, read_file
from delayd.limits import (
    SINK_CONNECT_MS_DEFAULT,
    SINK_CONNECT_MS_MAX,
    SINK_CONNECT_MS_MIN,
    SINK_PASSWORD_BYTES_MAX,
)
from delayd.text import did_you_mean

_SECRET: Final = frozenset(("url", "password"))
"""Options whose values no message may quote."""
_FILE: Final = read_text("must be the path of a file")
_SERVER: Final[Mapping[str, Reader]] = MappingProxyType(
    {
        "password": read_text("must be a text"),
        "password_file": _FILE,
        "ca": _FILE,
        "certificate": _FILE,
        "key": _FILE,
        "connect_timeout": read_duration(SINK_CONNECT_MS_MIN, SINK_CONNECT_MS_MAX),
    }
)


def read_options(options: Mapping[str, object], readers: Mapping[str, Reader]) -> dict[str, Any]:
    """Read each option with its reader. Raises `WrongInside` with all that is wrong."""
    values: dict[str, Any] = {}
    errors: list[tuple[str, str]] = []
    for name, value in options.items():
        if name not in readers:
            nearest = did_you_mean(name, sorted(readers))
            errors.append((f".{name}", f"there is no such option{nearest}"))
            continue
        try:
            values[name] = readers[name](value)
        except ValueError as error:
            quoted = "" if name in _SECRET else f" = {shown(value)}"
            errors.append((f".{name}{quoted}", str(error)))
    if errors:
        raise WrongInside(errors)
    return values


class ServerUrl(NamedTuple):
    """The parts of a server's url."""

    scheme: str
    host: str
    port: int
    user: str
    password: str
    path: str

    def __str__(self) -> str:
        """Where the server is, for messages."""
        return f"{self.host}:{self.port}" if self.host else f"/{self.path}"


def read_url(ports: Mapping[str, int], rule: str) -> Reader:
    """Read a url with one of these schemes, each with its port; with 0 it is a path."""

    def read(value: object) -> ServerUrl:
        try:
            url = urlsplit(value if isinstance(value, str) else "")
            port = url.port
        except ValueError:
            raise ValueError(rule) from None
        usual_port = ports.get(url.scheme, -1)
        path = unquote(url.path.removeprefix("/"))
        is_path = usual_port == 0
        if (
            usual_port < 0
            or url.query
            or url.fragment
            or bool(url.hostname) is is_path
            or (is_path and not path)
        ):
            raise ValueError(rule)
        user, password = unquote(url.username or ""), unquote(url.password or "")
        return ServerUrl(url.scheme, url.hostname or "", port or usual_port, user, password, path)

    return read


@final
class ServerOptions:
    """What the options say about the server and how to connect to it."""

    __slots__ = ("_password", "_password_file", "connect_s", "tls", "tls_files", "url", "values")

    def __init__(
        self, options: Mapping[str, object], readers: Mapping[str, Reader], *, tls_scheme: str
    ) -> None:
        """Read all options, with `readers` for those of the kind; `url` must be one of them.

        Raises `WrongInside`.
        """
        self.values: Final = read_options(options, {**_SERVER, **readers})
        if "url" not in self.values:
            raise WrongInside([(".url", "is missing")])
        self.url: Final[ServerUrl] = self.values["url"]
        self._password: Final[str] = self.url.password or self.values.get("password", "")
        self._password_file: Final[str] = self.values.get("password_file", "")
        self.connect_s: Final[float] = (
            self.values.get("connect_timeout", SINK_CONNECT_MS_DEFAULT) / 1_000
        )
        self.tls_files: Final = {
            name: self.values[name] for name in ("ca", "certificate", "key") if name in self.values
        }
        if sum(map(bool, (self.url.password, "password" in self.values, self._password_file))) > 1:
            raise WrongInside([("", "must have one password: in url, password or password_file")])
        self.tls: Final = self._context() if self.url.scheme == tls_scheme else None
        if self.tls is None and self.tls_files:
            rule = f"need a url that begins with {tls_scheme}://"
            raise WrongInside([("", f"{', '.join(self.tls_files)} {rule}")])
        try:
            self.password()
        except OSError as error:
            said = f".password_file = {shown(self._password_file)}"
            raise WrongInside([(said, f"cannot be read: {error.strerror}")]) from None
        except ValueError as error:
            said = f".password_file = {shown(self._password_file)}"
            raise WrongInside([(said, str(error))]) from None

    @property
    def has_password(self) -> bool:
        """Whether there is one."""
        return bool(self._password or self._password_file)

    def password(self) -> str:
        """Return the password, empty for none; raises OSError and ValueError, of its file."""
        if not self._password_file:
            return self._password
        data = read_file(self._password_file, SINK_PASSWORD_BYTES_MAX)
        try:
            return data.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise ValueError("must be UTF-8") from None

    def _context(self) -> ssl.SSLContext:
        """Make the context of TLS: the server must have a certificate for the host of the url."""
        files = self.tls_files
        try:
            if "ca" in files:
                must_be_file(files["ca"])
            context = ssl.create_default_context(cafile=files.get("ca"))
        except OSError as error:  # ssl.SSLError among them
            said = f".ca = {shown(files.get('ca'))}"
            raise WrongInside([(said, f"cannot be used: {error.strerror or error}")]) from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION  # each would cost us a handshake
        if "certificate" in files:
            try:
                for path in (files["certificate"], files.get("key", files["certificate"])):
                    must_be_file(path)
                # Without a password OpenSSL would ask on the terminal for that of an encrypted key.
                context.load_cert_chain(files["certificate"], files.get("key"), lambda: b"")
            except OSError as error:
                said = f".certificate = {shown(files['certificate'])}"
                rule = f"cannot be used with its key: {error.strerror or error}"
                raise WrongInside([(said, rule)]) from None
        elif "key" in files:
            raise WrongInside([(".key", "needs a certificate")])
        return context
