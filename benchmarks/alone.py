"""A process for one measurement: its memory and its garbage are those of nothing else."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Found = TypeVar("Found")


def in_a_process(
    function: Callable[Given, Found], *given: Given.args, **named: Given.kwargs
) -> Found:
    """Return what the function does in a new process, or raise what it raises there."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as process:
        return process.submit(function, *given, **named).result()
