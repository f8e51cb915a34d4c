r"""Texts for people: numbers with nouns, hints at names, and the texts and urls of others.

>>> parse_whole("0080"), parse_whole("8e1")
(80, None)
>>> shown_url("amqp://ada:s3cret@host:5672/v?key=s3cret")
'amqp://***@host:5672/v?***'

How a text of others is shown, on a terminal or in a log: what cannot be seen as itself is written
as an escape, so that it neither commands the terminal nor looks like another.

>>> print(visible("caf\u00e9 \x1b[2J \u202eexe.fdp"))
café \x1b[2J \u202eexe.fdp
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from delayd.limits import MARKS_SHOWN_MAX, QUANTITY_CHARACTERS_MAX


def parse_whole(text: str, digits_max: int = 20) -> int | None:
    """Read a whole number in ASCII digits, as many as the largest u64 has; None if it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= digits_max else None


def counted(count: int, noun: str) -> str:
    """Write a number with its noun, in the plural unless it is one.

    >>> counted(1, "job"), counted(0, "job"), counted(2, "intact frame")
    ('1 job', '0 jobs', '2 intact frames')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def some_of(names: Sequence[str], shown_max: int) -> str:
    """Write so many of the names, with an ellipsis where there are more.

    >>> some_of(["a", "b", "c"], 2), some_of(["a"], 2)
    ('a, b, ...', 'a')
    """
    return ", ".join((*names[:shown_max], *(["..."] if len(names) > shown_max else ())))


def did_you_mean(name: str, known: Iterable[str], prefix: str = "", *, cutoff: float = 0.5) -> str:
    """Return a hint at the known name that is nearest, to be added to a sentence; or nothing.

    A prefix that all names share makes nothing nearer. Nothing is as near as 1.

    >>> "no such field" + did_you_mean("prioritty", ["ttr", "priority"])
    'no such field; did you mean priority?'
    >>> did_you_mean("colour", ["ttr", "priority"])
    ''
    """
    import difflib  # noqa: PLC0415 - only after a mistake

    if len(name) > QUANTITY_CHARACTERS_MAX:
        return ""
    endings = [each.removeprefix(prefix) for each in known]
    close = difflib.get_close_matches(name.removeprefix(prefix), endings, n=1, cutoff=cutoff)
    return f"; did you mean {prefix}{close[0]}?" if close else ""


# --- Texts of others -----------------------------------------------------------------------------


def in_python(character: str) -> str:
    """Write a character as Python, and most people, would escape it."""
    return character.encode("unicode_escape").decode("ascii")


def in_json(character: str) -> str:
    r"""Write a character as it can stand in a string of JSON.

    >>> print(in_json("\U000e0001"))
    \udb40\udc01
    """
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def in_toml(character: str) -> str:
    """Write a character as it can stand in a string of TOML."""
    code = ord(character)
    return f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"


def visible(text: str, keeps: str = "", write: Callable[[str], str] = in_python) -> str:
    r"""Return a text in which everything can be seen as what it is; what cannot is `write`n.

    That is what Unicode counts among controls, formats, surrogates, private and unassigned
    characters, and separators but for the space (Cc, Cf, Cs, Co, Cn, Zl, Zp, Zs), but for those of
    `keeps`; and marks (Mn, Me) without a character that they stand on, or beyond
    `MARKS_SHOWN_MAX` on one. O(characters), and hardly more than a look at them where all are
    printable.

    >>> print(visible("a\u0301"), visible("\u0301a"), visible("=\u0301"))
    a\u0301 \u0301a =\u0301
    """
    if text.isascii() and text.isprintable():
        return text
    hidden = {c for c in set(text) if not (c.isprintable() or c in keeps)}
    if hidden:
        text = text.translate({ord(c): write(c) for c in hidden})
    if text.isascii():
        return text
    import unicodedata  # noqa: PLC0415 - few texts need it

    marks = "".join(c for c in set(text) if unicodedata.category(c) in {"Mn", "Me"})
    if not marks:
        return text

    def limited(run: re.Match[str]) -> str:
        base, above = run[1], run[2]
        held = MARKS_SHOWN_MAX if base.isalnum() or not base.isascii() else 0
        return base + above[:held] + "".join(map(write, above[held:]))

    return re.sub(f"([^{marks}]?)([{marks}]+)", limited, text, flags=re.DOTALL)


# --- Urls ----------------------------------------------------------------------------------------

MASK: Final = "***"
"""Takes the place of what may be secret."""

# `re` compiles these at their first use, and keeps them.
_URL: Final = r"([A-Za-z][A-Za-z0-9+.-]*://)([^/?#]*)([^?#]*)(.*)"
_PLACE: Final = r"(\[[0-9A-Fa-f:.]*\]|[\w.~*-]*)(:[0-9]*)?"
_MASKED: Final = r"://\*\*\*(?:@|$)|://.*[?#]\*\*\*$"
# It begins at the first letter of a run and nowhere else in it, since texts of others are read.
_IN_TEXT: Final = r"(?<![A-Za-z0-9+.-])([0-9+.-]*)([A-Za-z][A-Za-z0-9+.-]*://[^\s\"'<>]*)"


def shown_url(url: str) -> str:
    """Write a url for people: without user, password, query and fragment.

    It may be one that was refused, so it need not have the form of any. Where it is in doubt what
    is a password, all but the scheme is hidden: one may have been written with a / or ? in it.

    >>> shown_url("https://example.com/a?b"), shown_url("https://ada:pa/ss@host/"), shown_url("a@b")
    ('https://example.com/a?***', 'https://***', '***')
    """
    match = re.fullmatch(_URL, url, re.DOTALL)
    if match is None:
        return MASK if any(mark in url for mark in "@?#") else url
    scheme, authority, path, rest = match.groups()
    _, at, place = authority.rpartition("@")
    found = re.fullmatch(_PLACE, place)
    is_doubtful = found is None or "\\" in url or not url.isprintable()
    if is_doubtful or ("@" in path + rest and (at or (found and found[2]))):
        return f"{scheme}{MASK}"
    return f"{scheme}{f'{MASK}@' if at else ''}{place}{path}{f'{rest[0]}{MASK}' if rest else ''}"


def with_shown_urls(value: object, name: str = "") -> object:
    """Return a value of JSON or TOML with its urls as people may see them, and without headers.

    `name` is the value's own in an object: `url` is one whatever it looks like, and what `headers`
    has may be credentials.

    >>> with_shown_urls({"url": "redis://:s3cret@host/0", "list": ["due", 7]})
    {'url': 'redis://***@host/0', 'list': ['due', 7]}
    >>> with_shown_urls([{"url": "host/?k=s3cret", "headers": {"Authorization": "Bearer s3cret"}}])
    [{'url': '***', 'headers': {'Authorization': '***'}}]
    """
    if name == "headers":
        return dict.fromkeys(value, MASK) if isinstance(value, dict) else MASK
    try:
        if isinstance(value, str):
            return shown_url(value) if "://" in value or name == "url" else value
        if isinstance(value, dict):
            return {name: with_shown_urls(inner, name) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [with_shown_urls(inner) for inner in value]
    except RecursionError:  # it goes as deep as can just be read
        return "..."
    return value


def is_masked(value: object) -> bool:
    """Tell whether a value of JSON or TOML has `MASK` where it takes the place of a secret.

    >>> is_masked(["***"]), is_masked({"url": "redis://***@host/0"}), is_masked("https://host/***")
    (True, True, False)
    """
    if isinstance(value, str):
        return value == MASK or re.search(_MASKED, value) is not None
    if isinstance(value, dict):
        return any(map(is_masked, value.values()))
    return isinstance(value, list | tuple) and any(map(is_masked, value))


def hide_in_urls(text: str) -> str:
    """Return a text of another program with the urls in it as people may see them.

    >>> hide_in_urls("no answer of https://a.example/b?key=s3cret: timed out")
    'no answer of https://a.example/b?*** timed out'
    """
    if "://" not in text:
        return text
    return re.sub(_IN_TEXT, lambda match: match[1] + shown_url(match[2]), text)
