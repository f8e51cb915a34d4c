"""The manifests of docs/two-machines.md fit together, and the daemon takes what is in them."""

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml  # type: ignore[import-untyped]  # comes with openapi-spec-validator

from delayd.bounded_files import OPEN_TO_OTHERS
from delayd.config import Config, load
from delayd.http.routes import ROUTES

ROOT: Final = Path(__file__).parent.parent
MANIFESTS: Final[list[dict[str, Any]]] = list(
    yaml.safe_load_all((ROOT / "docs" / "two-machines" / "kubernetes.yaml").read_text())
)


def manifest(kind: str, name: str = "delayd") -> dict[str, Any]:
    (found,) = (
        each for each in MANIFESTS if (each["kind"], each["metadata"]["name"]) == (kind, name)
    )
    return found


STATEFUL: Final = manifest("StatefulSet")["spec"]
POD: Final = STATEFUL["template"]
(CONTAINER,) = POD["spec"]["containers"]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    file = tmp_path / "delayd.toml"
    file.write_text(manifest("ConfigMap")["data"]["delayd.toml"])
    variables = {each["name"]: "10.0.0.7" for each in CONTAINER["env"]}
    return load(str(file), variables, {})


def test_two_pods_are_started_at_once_and_replaced_by_hand() -> None:
    """A standby is never ready: a rolling update would wait for it without end."""
    assert STATEFUL["replicas"] == 2
    assert STATEFUL["podManagementPolicy"] == "Parallel"
    assert STATEFUL["updateStrategy"] == {"type": "OnDelete"}
    assert STATEFUL["serviceName"] == manifest("Service", "delayd-pods")["metadata"]["name"]
    assert not [each for each in MANIFESTS if each["kind"] == "PodDisruptionBudget"]


def test_the_service_leads_to_the_ready_pod_at_the_ports_that_it_listens_on(config: Config) -> None:
    labels = POD["metadata"]["labels"]
    assert STATEFUL["selector"] == {"matchLabels": labels}
    ports = {each["name"]: each["containerPort"] for each in CONTAINER["ports"]}
    assert ports == {
        name: int(str(address).rpartition(":")[2])
        for name, address in (("line", config.line_listen), ("http", config.http_listen))
    }
    for name in ("delayd", "delayd-pods"):
        service = manifest("Service", name)["spec"]
        assert service["selector"] == labels
        for port in service["ports"]:
            assert ports[port["targetPort"]] == port["port"]
    assert "publishNotReadyAddresses" not in manifest("Service")["spec"]


def test_the_owner_is_ready_and_a_standby_is_alive() -> None:
    paths = {route.path for route in ROUTES}
    ready = {"path": "/readyz?puts=false", "port": "http"}  # also one that is to be drained
    assert CONTAINER["readinessProbe"]["httpGet"] == ready
    assert CONTAINER["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert paths > {"/readyz", "/healthz"}


def test_secrets_are_files_that_the_daemon_may_read_and_others_may_not(config: Config) -> None:
    volumes = {each["name"]: each for each in POD["spec"]["volumes"]}
    mounts = {each["mountPath"]: volumes[each["name"]] for each in CONTAINER["volumeMounts"]}
    for file in (config.auth_tokens, config.postgres_password_file):
        volume = mounts[str(file).rpartition("/")[0]]["secret"]
        assert not volume["defaultMode"] & OPEN_TO_OTHERS
        assert volume["defaultMode"] & 0o040, "the group of the pod reads it"
    user = re.findall(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    context = POD["spec"]["securityContext"]
    assert [(str(context["runAsUser"]), str(context["fsGroup"]))] == user
    assert CONTAINER["args"][:2] == ["serve", "--config"]
    path = CONTAINER["args"][2]
    assert mounts[path.rpartition("/")[0]]["configMap"]["name"] == "delayd"
    assert config.postgres_address == "10.0.0.7"
