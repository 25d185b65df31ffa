"""The files that set up a fleet: Kubernetes accepts the manifests, systemd the units, and the program what they tell it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

PACKAGING = Path(__file__).resolve().parent.parent / "packaging"


def manifests():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return [document for document in yaml.safe_load_all((PACKAGING / "kubernetes/throng.yaml").read_text()) if document]


def test_kubernetes_accepts_the_manifests():
    checker = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    documents = manifests()
    assert len(documents) == 8
    for document in documents:
        checker.validate(document, checker.latest_version(), strict=True)
    with pytest.raises(Exception, match="replica"):
        checker.validate({**documents[1], "replica": 1}, checker.latest_version(), strict=True)


def test_the_pods_of_a_group_are_accepted_and_found(binary):
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    checker = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    service, group = yaml.safe_load_all((PACKAGING / "kubernetes/group.yaml").read_text())
    checker.validate(service, checker.latest_version(), strict=True)
    template = group["spec"]["leaderWorkerTemplate"]
    leader, other = template["leaderTemplate"], template["workerTemplate"]
    for pod in (leader, other):
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", **pod["metadata"]}, "spec": pod["spec"]}
        checker.validate(document, checker.latest_version(), strict=True)
    assert service["spec"]["selector"] == leader["metadata"]["labels"] != other["metadata"]["labels"]
    command, *arguments = leader["spec"]["containers"][0]["args"]
    assert {argument for argument in arguments if argument.startswith("--")} <= known_flags(binary, command)


def test_the_manifests_belong_together():
    by_name = {(document["kind"], document["metadata"]["name"]): document for document in manifests()}
    worker, gateway = by_name["StatefulSet", "throng-worker"], by_name["Deployment", "throng-gateway"]
    container = gateway["spec"]["template"]["spec"]["containers"][0]
    replicas = next(one["value"] for one in container["env"] if one["name"] == "THRONG_REPLICA")
    service, port = worker["spec"]["serviceName"], worker["spec"]["template"]["spec"]["containers"][0]["ports"][0]
    assert replicas == f"dns://{service}:{port['containerPort']}"
    headless = by_name["Service", service]["spec"]
    assert headless["clusterIP"] == "None" and headless["publishNotReadyAddresses"]
    for name, document in (("throng-worker", worker), ("throng-gateway", gateway)):
        labels = document["spec"]["template"]["metadata"]["labels"]
        assert document["spec"]["selector"]["matchLabels"] == labels
        assert by_name["PodDisruptionBudget", name]["spec"]["selector"]["matchLabels"] == labels
    assert by_name["Service", "throng"]["spec"]["selector"] == gateway["spec"]["template"]["metadata"]["labels"]
    assert by_name["Service", "throng-worker"]["spec"]["selector"] == worker["spec"]["template"]["metadata"]["labels"]


def known_flags(binary, command):
    told = subprocess.run([binary, command, "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"--[a-z-]+", told))


def test_the_program_knows_what_it_is_told(binary):
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    compose = yaml.safe_load((PACKAGING / "compose.yaml").read_text())
    commands = [service["command"] for service in compose["services"].values()]
    for document in manifests():
        if document["kind"] in ("StatefulSet", "Deployment"):
            commands.append(document["spec"]["template"]["spec"]["containers"][0]["args"])
    for unit in ("throng-worker.service", "throng-gateway.service"):
        start = re.search(r"^ExecStart=\S+ (.*)$", (PACKAGING / unit).read_text(), re.M)
        commands.append(start.group(1).split())
    assert len(commands) == 7
    for command, *arguments in commands:
        flags = {argument for argument in arguments if argument.startswith("--")}
        assert flags <= known_flags(binary, command), (command, arguments)
    gateway = compose["services"]["gateway"]["environment"]["THRONG_REPLICA"].split(",")
    assert [url.removeprefix("throng://").split(":")[0] for url in gateway] == ["worker-1", "worker-2"]


@pytest.mark.parametrize("unit", ["throng-worker.service", "throng-gateway.service"])
def test_systemd_accepts_the_units(unit, binary, tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd is not installed")
    text = (PACKAGING / unit).read_text().replace("/usr/bin/throng", binary)
    (tmp_path / unit).write_text(text)
    told = subprocess.run(["systemd-analyze", "verify", "--man=no", tmp_path / unit], capture_output=True, text=True)
    assert told.returncode == 0 and not told.stderr.strip(), told.stderr
