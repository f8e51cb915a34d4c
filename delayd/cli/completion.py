"""`delayd completion`: the scripts by which a shell completes commands and flags of `delayd`.

The scripts are click's: they call `delayd` again with the words typed so far.
"""

from typing import Final

import click

from delayd.cli.parameters import command
from delayd.cli.terminal import print_lines

VARIABLE: Final = "_DELAYD_COMPLETE"
"""The variable that the script sets; click derives it from the program's name."""

SHELLS: Final = ("bash", "zsh", "fish")


@command(
    "source <(delayd completion bash)   # in ~/.bashrc",
    "source <(delayd completion zsh)    # in ~/.zshrc",
    "delayd completion fish > ~/.config/fish/completions/delayd.fish",
)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script for a SHELL: bash, zsh or fish."""
    from click.shell_completion import get_completion_class

    from delayd.cli.main import delayd

    kind = get_completion_class(shell)
    assert kind is not None, shell
    # Not the class's own `source`, which runs bash to find its version.
    script = kind.source_template % kind(delayd, {}, "delayd", VARIABLE).source_vars()
    print_lines([script.rstrip()])
