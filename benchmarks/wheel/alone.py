"""Takes one reading in a process of its own, which `cases.alone` starts, and prints it as JSON.

So none has another's memory or garbage, and the compiled wheel is chosen by PYTHONPATH.
"""

import json

import delayd.core.wheel.wheel
from benchmarks.wheel.operations import OPERATIONS
from benchmarks.wheel.timers import TIMERS


def main(subject: str, operation: str, entries: str, wheel_size: str) -> None:
    """Measure, and print the values."""
    if subject.startswith("delayd"):
        is_compiled = not delayd.core.wheel.wheel.__file__.endswith(".py")
        assert is_compiled == subject.endswith("compiled"), "this is another delayd"
    values = OPERATIONS[operation](TIMERS[subject], int(wheel_size), int(entries))
    print(json.dumps(values))
