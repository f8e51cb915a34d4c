"""Tokens, unix users, certificates, secrets: opened at the start and reloaded on SIGHUP.

The service opens it before anything else and passes its parts to the front ends. At the start an
invalid file ends the daemon; at a reload it is logged and the previous contents stay in force, for
each file separately: a broken certificate does not keep a revoked token alive. The service then
closes the clients of the line whose tokens are gone; over HTTP each request is asked anew.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from delayd.access.authenticator import Authenticator
from delayd.access.errors import AccessInvalid, SecretsInvalid, TokensInvalid, redacted, shown
from delayd.access.scopes import Scope
from delayd.clock import system_wall_ms
from delayd.limits import CERTIFICATE_SOON_S, CERTIFICATE_SOON_SHARE, NAMES_LOGGED_MAX
from delayd.log_lines import Log
from delayd.moments import time_text
from delayd.net.addresses import Listeners, is_local
from delayd.text import some_of

if TYPE_CHECKING:
    import ssl

    from delayd.access.signing_secrets import Secrets
    from delayd.config import Config


class AccessControl(NamedTuple):
    """The authenticator, and the TLS contexts of the front ends that use it."""

    authenticator: Authenticator
    line_tls: "ssl.SSLContext | None" = None
    """None: the line does not use TLS."""
    http_tls: "ssl.SSLContext | None" = None
    settings: "Config | None" = None
    wall_ms: Callable[[], int] = system_wall_ms
    secrets: "Secrets | None" = None
    """What calls are signed with; None: no file has any."""

    @property
    def is_open(self) -> bool:
        """Whether the line needs neither token nor TLS, so that the line to paste works."""
        return self.line_tls is None and not self.authenticator.needs_token

    @classmethod
    def open(
        cls, settings: "Config", wall_ms: Callable[[], int] = system_wall_ms
    ) -> "AccessControl":
        """Read the files. Raises `AccessInvalid` with everything that is wrong in any of them."""
        errors: list[str] = []
        tokens = None
        if settings.auth_tokens is not None:
            from delayd.access.tokens import Tokens  # noqa: PLC0415 - takes 10 ms

            try:
                tokens = Tokens.load(settings.auth_tokens)
            except TokensInvalid as error:
                errors += (f"auth.tokens = {problem}" for problem in error.errors)
        line_tls = http_tls = None
        if settings.tls_certificate is not None:
            line_tls, http_tls = _contexts(settings, settings.tls_certificate, errors)
        secrets = _secrets(settings, errors)
        if errors:
            raise AccessInvalid(errors)
        authenticator = Authenticator(
            tokens,
            unix_uids=settings.auth_unix_uids,
            unix_gids=settings.auth_unix_gids,
            wall_ms=wall_ms,
        )
        return cls(authenticator, line_tls, http_tls, settings, wall_ms, secrets)

    def reload(self, log: Log) -> None:
        """Reload tokens, secrets and certificate, and log the result."""
        tokens = self.authenticator.tokens
        has_tokens = tokens is not None and bool(tokens.path)
        if has_tokens:
            self._reload_tokens(log)
        contexts = [context for context in (self.line_tls, self.http_tls) if context is not None]
        if contexts and self.settings is not None:
            self._renew(contexts, self.settings, log)
        if self.secrets is not None:
            self._reload_secrets(self.secrets, log)
            self._warn_of_all_topics(log)
        if not (has_tokens or contexts or self.secrets is not None):
            log.info("nothing to reload: only tokens, secrets and certificates are read again")

    def _reload_tokens(self, log: Log) -> None:
        problems = self.authenticator.reload()
        for problem in problems:
            log.error("the tokens are not read again: the old ones stay", reason=problem)
        if not problems and (tokens := self.authenticator.tokens) is not None:
            log.info("the tokens were read again", tokens=len(tokens.entries))

    def _reload_secrets(self, secrets: "Secrets", log: Log) -> None:
        problems = secrets.reload()
        for problem in problems:
            log.error("the secrets are not read again: the old ones stay", reason=problem)
        if not problems:
            log.info("the secrets were read again", secrets=len(secrets))
        signers = () if self.settings is None else self.settings.push_sign_with
        for name in secrets.unknown(signers):
            log.error("calls cannot be signed: the secret is not in the file", secret=name)

    def warn(self, listeners: Listeners, log: Log) -> None:
        """Warn where tokens are sent in clear text, and of a certificate that is not valid."""
        self._warn_of_certificate(log)
        self._warn_of_all_topics(log)
        if self.authenticator.tokens is None:
            return
        for front_end, opened, context in (
            ("line", listeners.line, self.line_tls),
            ("http", listeners.http, self.http_tls),
        ):
            for listener in opened:
                if context is None and not is_local(listener.address):
                    where = f"{front_end} {listener.address}"
                    log.warning("tokens are sent in clear: this address has no TLS", address=where)

    def for_all_topics(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the secrets, and the sinks, that a token for some topics may use for those.

        They have no topics of their own, and there is such a token: a target that it sets is signed
        or sent as if it were another topic's.
        """
        tokens = self.authenticator.tokens
        entries = () if tokens is None else tokens.entries
        if all(Scope.WEBHOOK not in each.scopes or "*" in each.topics for each in entries):
            return (), ()
        sinks = {} if self.settings is None else self.settings.sinks
        secrets = () if self.secrets is None else self.secrets.of_all_topics
        return secrets, tuple(name for name, section in sinks.items() if section.topics is None)

    def _warn_of_all_topics(self, log: Log) -> None:
        secrets, sinks = self.for_all_topics()
        if secrets:
            advice = (
                "every topic may have its calls signed with these: `delayd secret restrict` them"
            )
            log.warning(advice, secrets=some_of(secrets, NAMES_LOGGED_MAX))
        if sinks:
            advice = "every topic may use these sinks: say topics = [...] in their sections"
            log.warning(advice, sinks=some_of(sinks, NAMES_LOGGED_MAX))

    def keep_days(self, log: Log) -> None:
        """Write the days on which tokens were used; called once a minute, and at the end."""
        if reason := self.authenticator.write_usage():
            log.warning("the days on which tokens are used are not kept", reason=reason)

    def _warn_of_certificate(self, log: Log) -> None:
        """Warn of a certificate that clients refuse, or will soon."""
        if self.settings is None or (path := self.settings.tls_certificate) is None:
            return
        from delayd.net import tls  # noqa: PLC0415 - where TLS is spoken it is loaded already

        valid = tls.validity(path)
        if valid is None:
            return
        from_s, until_s = valid
        now_s = self.wall_ms() // 1_000
        soon_s = min(CERTIFICATE_SOON_S, (until_s - from_s) // CERTIFICATE_SOON_SHARE)
        details = {"certificate": path, "from": time_text(from_s), "until": time_text(until_s)}
        if now_s > until_s:
            log.warning("the certificate has expired: clients refuse it", **details)
        elif now_s < from_s:
            log.warning("the certificate is not valid yet: clients refuse it", **details)
        elif now_s > until_s - soon_s:
            log.warning("the certificate expires soon", **details)

    def _renew(self, contexts: "list[ssl.SSLContext]", settings: "Config", log: Log) -> None:
        from delayd.net import tls  # noqa: PLC0415

        assert settings.tls_certificate is not None
        files = tls.CertificateFiles(settings.tls_certificate, settings.tls_key)
        try:
            for context in contexts:
                tls.renew(context, files)
        except tls.CertificateInvalid as error:
            for problem in error.errors:
                log.error(  # noqa: TRY400 (our own log)
                    "the certificate is not read again: the old one stays", reason=redacted(problem)
                )
        else:
            log.info("the certificate was read again", certificate=settings.tls_certificate)
            self._warn_of_certificate(log)


def _secrets(settings: "Config", errors: list[str]) -> "Secrets | None":
    """Read the secrets of webhooks; add what is wrong to the errors."""
    if settings.push_secrets is None:
        return None
    from delayd.access.signing_secrets import Secrets  # noqa: PLC0415 - few have any

    try:
        secrets = Secrets.load(settings.push_secrets)
    except SecretsInvalid as error:
        errors += (f"push.secrets = {problem}" for problem in error.errors)
        return None
    if unknown := secrets.unknown(settings.push_sign_with):
        rule = f"there is no such secret in {settings.push_secrets}"
        errors.append(f"push.sign_with = {shown(unknown)}: {rule}")
    return secrets


def _contexts(
    settings: "Config", certificate: str, errors: list[str]
) -> "tuple[ssl.SSLContext | None, ssl.SSLContext | None]":
    """Make the contexts of the line and of HTTP; add what is wrong to the errors."""
    # OpenSSL takes some 20 ms and 5 MB; most daemons serve only their own machine.
    from delayd.net import tls  # noqa: PLC0415

    files = tls.CertificateFiles(certificate, settings.tls_key, settings.tls_client_ca)
    try:
        line = tls.server_context(files) if settings.line_tls else None
        http = tls.server_context(files, tls.HTTP_PROTOCOLS) if settings.http_tls else None
    except tls.CertificateInvalid as invalid:
        errors += invalid.errors
        return None, None
    return line, http
