"""How a number of things is said to people."""


def counted(count: int, noun: str) -> str:
    """Return the number with its noun, in the plural unless it is one.

    >>> counted(1, "job"), counted(0, "job"), counted(2, "intact frame")
    ('1 job', '0 jobs', '2 intact frames')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
