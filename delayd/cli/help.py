"""The examples below the help of each command."""


def examples(*lines: str) -> str:
    r"""Return the epilog of a command: lines to type, not to be wrapped.

    >>> examples("delayd version")
    '\x08\nExamples:\n  delayd version'
    """
    return "\n  ".join(("\b\nExamples:", *lines))
