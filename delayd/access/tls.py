"""TLS of the two front ends: contexts of a certificate, and new certificates without a restart.

A context is made once; a renewed certificate is loaded into the living one, so listeners need not
know of it: connections that stand go on with the old one, new ones get the new one. What cannot be
loaded is tried on a context of its own first, and so leaves the living one alone.

TLS 1.2 is the oldest that is spoken. With authorities given, a client must show a certificate that
one of them has signed. The authorities themselves are read at the start: OpenSSL has no way to take
one out of a living context.
"""

import os
import ssl
from typing import Final, NamedTuple

from delayd.access.errors import CertificateInvalid

HTTP_PROTOCOLS: Final = ("http/1.1",)
"""What is offered to clients that ask what is spoken behind TLS (ALPN)."""

CERTIFICATE_RULE: Final = "must hold a certificate, and then its chain, in PEM"
KEY_RULE: Final = "must hold the certificate's private key in PEM"
BOTH_RULE: Final = (
    "must hold a certificate and its private key in PEM, or tls.key name another file"
)
AUTHORITIES_RULE: Final = "must hold certificates of authorities in PEM"

_MISMATCHES: Final = frozenset({"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"})


class Files(NamedTuple):
    """PEM files by the settings that name them."""

    certificate: str
    key: str | None = None
    """None: it is in the file of the certificate."""
    client_ca: str | None = None


def server_context(files: Files, protocols: tuple[str, ...] = ()) -> ssl.SSLContext:
    """Make the context of a server. Raises `CertificateInvalid` with everything that is wrong."""
    errors = [
        f"tls.{name} = {path}: cannot be read: {reason}"
        for name, path in files._asdict().items()
        if path is not None and (reason := _unreadable(path))
    ]
    if errors:
        raise CertificateInvalid(errors)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # The default of OpenSSL 3 only: each would cost us a handshake, and a client a message.
    context.options |= ssl.OP_NO_RENEGOTIATION
    if protocols:
        context.set_alpn_protocols(list(protocols))
    try:
        _load(context, files)
    except CertificateInvalid as invalid:
        errors += invalid.errors
    if files.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(files.client_ca)
        except (OSError, ValueError) as error:
            reason = _reason(error, AUTHORITIES_RULE)
            errors.append(f"tls.client_ca = {files.client_ca}: {reason}")
    if errors:
        raise CertificateInvalid(errors)
    return context


def renew(context: ssl.SSLContext, files: Files) -> None:
    """Load what the files hold now into a living context.

    Raises `CertificateInvalid`, and then the context is as it was.
    """
    server_context(files._replace(client_ca=None))
    _load(context, files)


def _load(context: ssl.SSLContext, files: Files) -> None:
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_passphrase)
    except (OSError, ValueError) as error:
        said, rule = f"tls.certificate = {files.certificate}", CERTIFICATE_RULE
        if files.key is None:
            rule = BOTH_RULE
        elif _is_about_the_key(error, files.certificate):
            said, rule = f"tls.key = {files.key}", KEY_RULE
        raise CertificateInvalid([f"{said}: {_reason(error, rule)}"]) from None


def _no_passphrase() -> str:
    # Without this OpenSSL would ask at the terminal, and the daemon wait for an answer.
    raise ValueError("must hold a private key without a passphrase")


def _is_about_the_key(error: Exception, certificate: str) -> bool:
    """Tell which of the two files it is; OpenSSL does not always."""
    if getattr(error, "reason", None) in _MISMATCHES or not isinstance(error, ssl.SSLError):
        return True
    try:
        # What has certificates can be read as authorities.
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_verify_locations(certificate)
    except ssl.SSLError:
        return False
    return True


def _unreadable(path: str) -> str:
    try:
        with open(path, "rb") as file:
            os.read(file.fileno(), 1)
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


def _reason(error: Exception, rule: str) -> str:
    """Return the rule, and what OpenSSL calls it where that says more."""
    if isinstance(error, ssl.SSLError):
        return f"{rule} ({error.reason})" if error.reason else rule
    return getattr(error, "strerror", None) or str(error)
