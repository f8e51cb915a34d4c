"""The files of the dashboard, as they are sent.

A file's name has a digest of its contents, so a browser may keep it for ever, and a new version of
delayd is seen at once; only the page itself is requested each time. References to plain names
(`./api.js`) are replaced:

    delayd/ui/index.html, app.js      /ui/, /ui/app.4f0c1a2b3c4d.js

They are read and compressed at the first request for one.
"""

import gzip
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

from delayd.http.connection import HttpRequest
from delayd.http.problems import NoSuchCall
from delayd.http.responses import Reply

UI_PATH: Final = "/ui/"
PAGE: Final = "index.html"
MEDIA_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
SECURITY_HEADERS: Final = {
    # Nothing inline, nothing from elsewhere, no frame around it.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_REFERENCE: Final = re.compile(rb'(?<=")\./([a-z_]+\.(?:css|js|svg))(?=")')
_DIGEST_CHARACTERS: Final = 12


class UiFile(NamedTuple):
    """A file as it is sent."""

    media_type: str
    body: bytes
    gzipped: bytes
    cache_control: str


@cache
def ui_files() -> dict[str, UiFile]:
    """Return the files by the last part of their path; "" is the page."""
    folder = files("delayd.ui")
    contents = {
        entry.name: entry.read_bytes()
        for entry in folder.iterdir()
        if entry.name.rpartition(".")[2] in MEDIA_TYPES
    }
    names: dict[str, str] = {}
    named: dict[str, UiFile] = {}

    def known(plain: bytes) -> bytes:
        name = name_of(plain.decode())
        assert name, f"{plain.decode()} refers to itself"
        return name.encode()

    def name_of(plain: str) -> str:
        """Return the name with a digest of the content, in which references are replaced."""
        if plain not in names:
            names[plain] = ""  # a circle of references fails the assertion above
            body = _REFERENCE.sub(lambda found: b"./" + known(found[1]), contents[plain])
            stem, _, kind = plain.rpartition(".")
            is_page = plain == PAGE
            digest = hashlib.sha256(body).hexdigest()[:_DIGEST_CHARACTERS]
            names[plain] = "" if is_page else f"{stem}.{digest}.{kind}"
            kept = "no-cache" if is_page else "public, max-age=31536000, immutable"
            zipped = gzip.compress(body, mtime=0)
            named[names[plain]] = UiFile(MEDIA_TYPES[kind], body, zipped, kept)
        return names[plain]

    for plain in sorted(contents):
        name_of(plain)
    return named


def page_reply(request: HttpRequest, names: Mapping[str, str]) -> Reply:
    """Return a file of the dashboard, compressed if the client can read that; `NoSuchCall`."""
    name = names.get("file", "")
    file = ui_files().get(name)
    if file is None:
        raise NoSuchCall(UI_PATH + name)
    headers = {**SECURITY_HEADERS, "Cache-Control": file.cache_control, "Vary": "Accept-Encoding"}
    if "gzip" not in request.headers.get("Accept-Encoding", ""):
        return Reply(200, file.body, file.media_type, headers)
    return Reply(200, file.gzipped, file.media_type, {**headers, "Content-Encoding": "gzip"})


def to_the_page(_request: HttpRequest, _names: Mapping[str, str]) -> Reply:
    """Redirect `/ui` to `/ui/`."""
    return Reply(308, b"", "text/plain", {"Location": UI_PATH})
