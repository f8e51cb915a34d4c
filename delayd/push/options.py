r"""Options of sinks: read by a table, with all mistakes at once, and no secret in any of them.

    sinks.orders.list = 5: must be a key of Redis; {topic} in it is the job's topic
    sinks.orders.url: must be redis://HOST[:PORT][/DATABASE], rediss:// for TLS, or unix:///PATH
    sinks.orders.pasword: there is no such option; did you mean password?

Options that all servers have are here: a url with a user, a password, which may be in a file, and
TLS. A file with a password is read for each connection, so that it can be exchanged while the
daemon runs.

>>> server_url({"redis": 6379}, "must be redis://HOST").kind.read("redis://ada@localhost/2")
ServerUrl(scheme='redis', host='localhost', port=6379, user='ada', password='', path='2')
"""

import ssl
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, final
from urllib.parse import unquote, urlsplit

from delayd.bounded_files import must_be_file, read_file
from delayd.config import FILES_OF_SINKS
from delayd.fields import Field, ValueKind, duration, invalid, read_all, shown, text_of
from delayd.limits import (
    SINK_CONNECT_MS_DEFAULT,
    SINK_CONNECT_MS_MAX,
    SINK_CONNECT_MS_MIN,
    SINK_PASSWORD_BYTES_MAX,
)
from delayd.net.tls import client_context

_FILE: Final = text_of("must be the path of a file")
SERVER_FIELDS: Final = (
    Field("password", "password", text_of("must be a text"), is_secret=True),
    *(Field(name, name, _FILE) for name in FILES_OF_SINKS),
    Field("connect_timeout", "connect_ms", duration(SINK_CONNECT_MS_MIN, SINK_CONNECT_MS_MAX)),
)


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


def server_url(ports: Mapping[str, int], rule: str) -> Field:
    """Return the field of a url with one of these schemes, each with its port; with 0 a path."""

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

    return Field("url", "url", ValueKind(read), is_secret=True, is_needed=True)


@final
class ServerOptions:
    """The options for a server: its url, password, TLS and timeout."""

    def __init__(
        self, options: Mapping[str, object], fields: Iterable[Field], *, tls_scheme: str
    ) -> None:
        """Read all options, with `fields` for those of the kind; a `server_url` is one of them.

        Raises `Invalid`.
        """
        self.values: Final = read_all(options, (*SERVER_FIELDS, *fields), "option")
        self.url: Final[ServerUrl] = self.values["url"]
        self._password: Final[str] = self.url.password or self.values.get("password", "")
        self._password_file: Final[str] = self.values.get("password_file", "")
        self.connect_s: Final[float] = (
            self.values.get("connect_ms", SINK_CONNECT_MS_DEFAULT) / 1_000
        )
        self.tls_files: Final = {
            name: self.values[name] for name in ("ca", "certificate", "key") if name in self.values
        }
        if sum(map(bool, (self.url.password, "password" in self.values, self._password_file))) > 1:
            raise invalid("", "must have one password: in url, password or password_file")
        self.tls: Final = self._context() if self.url.scheme == tls_scheme else None
        if self.tls is None and self.tls_files:
            rule = f"need a url that begins with {tls_scheme}://"
            raise invalid("", f"{', '.join(self.tls_files)} {rule}")
        try:
            self.password()
        except OSError as error:
            rule = f"cannot be read: {error.strerror}"
            raise invalid("password_file", rule, shown(self._password_file)) from None
        except ValueError as error:
            raise invalid("password_file", str(error), shown(self._password_file)) from None

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
            context = client_context(files.get("ca"))
        except OSError as error:  # ssl.SSLError among them
            rule = f"cannot be used: {error.strerror or error}"
            raise invalid("ca", rule, shown(files.get("ca"))) from None
        if "certificate" in files:
            try:
                for path in (files["certificate"], files.get("key", files["certificate"])):
                    must_be_file(path)
                # Without a password OpenSSL would ask on the terminal for that of an encrypted key.
                context.load_cert_chain(files["certificate"], files.get("key"), lambda: b"")
            except OSError as error:
                rule = f"cannot be used with its key: {error.strerror or error}"
                raise invalid("certificate", rule, shown(files["certificate"])) from None
        elif "key" in files:
            raise invalid("key", "needs a certificate")
        return context
