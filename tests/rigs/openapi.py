"""The OpenAPI document, and who judges by the schemas in it.

Both are made when a test asks for them: each process of a run imports all tests and plays some.
"""

from functools import cache
from typing import Any

from delayd.http.openapi import document
from delayd.http.routes import ROUTES


@cache
def whole_document() -> dict[str, Any]:
    """Return the document of all calls."""
    return document(ROUTES)


def validator(schema: object) -> Any:  # noqa: ANN401 - what the library makes
    """Return what judges values by a schema of OpenAPI 3.1."""
    from openapi_schema_validator import OAS31Validator

    return OAS31Validator(schema)
