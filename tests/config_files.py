"""What tests of the configuration share: a file to write it to, and its errors."""

from pathlib import Path

import pytest

from delayd.config import ConfigErrors, load

PROJECT = Path(__file__).parent.parent
EXAMPLE = PROJECT / "config.example.toml"


def written(directory: Path, text: str) -> str:
    """Write a configuration file and return its path."""
    path = directory / "delayd.toml"
    path.write_text(text)
    return str(path)


def errors_of(
    path: str | None = None,
    environment: dict[str, str] | None = None,
    flags: dict[str, object] | None = None,
) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        load(path, environment or {}, flags or {})
    errors = [str(error) for error in caught.value.errors]
    assert str(caught.value) == "\n".join(errors)
    return [error.removeprefix(f"{path}: ") for error in errors]
