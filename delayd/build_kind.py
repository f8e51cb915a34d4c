"""How the delayd that runs was built: compiled or not, and with its docstrings or without."""

import importlib.util
import sys
from collections.abc import Mapping
from typing import Final


def is_compiled() -> bool:
    """Tell whether the hot packages are extension modules; one of them stands for all."""
    spec = importlib.util.find_spec("delayd.turns")
    return spec is not None and not str(spec.origin).endswith(".py")


LACKS_DOCSTRINGS: Final = sys.flags.optimize > 1
"""Python left them out: `python -OO`."""


def docstrings_of(module: str) -> Mapping[str, str]:
    """Return what an imported module says of its classes and functions, by name, in its source.

    For what people read that is made of docstrings: the help of commands, descriptions of schemas.
    Without the source there is nothing.
    """
    import ast  # noqa: PLC0415 - only where docstrings are missing
    import inspect  # noqa: PLC0415

    try:
        source = inspect.getsource(sys.modules[module])
    except OSError:
        return {}
    return {
        node.name: text
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node))
    }
