"""Secrets for tests: drawn from a number, so that they are the same in every run."""

from pathlib import Path

from delayd.access.signing_secrets import (
    SECRET_BYTES,
    SECRETS_FILE,
    Active,
    NamedSecret,
    secret_text,
)


def key(number: int) -> bytes:
    return bytes((number * 16 + index) % 256 for index in range(SECRET_BYTES))


def text(number: int) -> str:
    """As its receivers have it."""
    return secret_text(key(number))


def named(name: str, *numbers: int) -> NamedSecret:
    """A name with these secrets, the oldest first."""
    return NamedSecret(name, tuple(Active(key(number), 1_000 + number) for number in numbers))


def written(path: Path, *entries: NamedSecret) -> str:
    """Write a file as `delayd secret` does and return its path."""
    path.write_bytes(SECRETS_FILE.to_bytes(entries))
    path.chmod(0o600)
    return str(path)
