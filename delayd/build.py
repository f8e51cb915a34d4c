"""Which build of delayd runs: its hot packages compiled to extension modules, or interpreted."""

import importlib.util


def is_compiled() -> bool:
    """Tell whether the hot packages are extension modules; one of them stands for all."""
    spec = importlib.util.find_spec("delayd.turns")
    return spec is not None and not str(spec.origin).endswith(".py")
