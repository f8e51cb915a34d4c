"""The manifests in docs/ are what the schemas of Kubernetes allow, without a field that none knows.

The schemas come with kubernetes-validate, which `make test-clients` installs: they are too large
for every day. What the manifests mean is the subject of `tests/test_kubernetes.py`.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import yaml  # type: ignore[import-untyped]  # comes with openapi-spec-validator

DOCS: Final = Path(__file__).parents[2] / "docs"
MANIFESTS: Final[list[dict[str, Any]]] = [
    manifest
    for file in sorted(DOCS.rglob("*.yaml"))
    for manifest in yaml.safe_load_all(file.read_text(encoding="utf-8"))
    if "apiVersion" in manifest
]
VERSIONS: Final = ("1.25", "1.37")
"""The oldest and the newest one whose schemas are there."""


@pytest.fixture
def wrong() -> Callable[[dict[str, Any], str], str]:
    """What the schema of a version says against a manifest."""
    reason = "needs kubernetes-validate, which `make test-clients` installs"
    package = pytest.importorskip("kubernetes_validate", reason=reason)

    def wrong(manifest: dict[str, Any], version: str) -> str:
        try:
            assert package.validate(manifest, version, strict=True) == version
        except package.ValidationError as error:
            return f"{'.'.join(map(str, error.path))}: {error.message}"
        return ""

    return wrong


@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_is_one_by_its_schema(
    wrong: Callable[[dict[str, Any], str], str], version: str
) -> None:
    kinds = [manifest["kind"] for manifest in MANIFESTS]
    assert kinds == ["ConfigMap", "Service", "Service", "StatefulSet"]
    assert [wrong(manifest, version) for manifest in MANIFESTS] == [""] * len(MANIFESTS)


def test_a_field_that_no_schema_knows_and_a_value_of_another_type_are_found(
    wrong: Callable[[dict[str, Any], str], str],
) -> None:
    stateful = copy.deepcopy(MANIFESTS[-1])
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    container["readynessProbe"] = container.pop("readinessProbe")
    assert "'readynessProbe' was unexpected" in wrong(stateful, VERSIONS[-1])
    stateful = copy.deepcopy(MANIFESTS[-1])
    stateful["spec"]["replicas"] = "2"
    assert wrong(stateful, VERSIONS[-1]).startswith("spec.replicas: ")
