"""Metrics as monitoring reads them: the parsers of the official Python client, and a real Prometheus that scrapes and
answers queries."""

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
from ports import free_port
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

OPEN_METRICS = "application/openmetrics-text;version=1.0.0"
PATIENCE_S = 60
KEY = "monitoring-key"
ADMIN_KEY = "operators-key"


@pytest.fixture(scope="module")
def busy(start):
    """A server with a key that has answered some requests."""
    with start("--api-key", KEY, "--admin-key", ADMIN_KEY) as server:
        client = server.client(api_key=KEY)
        for n in (1, 2):
            messages = [{"role": "user", "content": "Hello!"}]
            client.chat.completions.create(model="throng-starter", messages=messages, max_tokens=8, n=n)
        yield server


def scrape(server, accept):
    headers = {"accept": accept, "authorization": f"Bearer {ADMIN_KEY}"}
    with urllib.request.urlopen(urllib.request.Request(server.url + "/metrics", headers=headers), timeout=30) as answer:
        return answer.read().decode()


@pytest.mark.parametrize(("accept", "parse"), [("text/plain", parse_text), (OPEN_METRICS, parse_open_metrics)])
def test_the_official_parsers_read_every_metric(busy, accept, parse):
    families = {family.name: family for family in parse(scrape(busy, accept))}
    assert all(family.type != "unknown" and family.documentation for family in families.values())
    samples = [sample for family in families.values() for sample in family.samples]
    assert len({(sample.name, *sorted(sample.labels.items())) for sample in samples}) == len(samples)
    assert {"vllm:iteration_tokens_total", "vllm:time_to_first_token_seconds"} <= families.keys()
    assert sum(s.value for s in samples if s.name == "vllm:request_success_total") == 3


@pytest.fixture(scope="module")
def prometheus(request, busy, tmp_path_factory):
    """A Prometheus that scrapes the server with the operator's key. Answers queries."""
    program = request.config.getoption("--prometheus")
    if program is None:
        pytest.skip("needs --prometheus PATH")
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "key").write_text(ADMIN_KEY)
    scrape_config = {
        "job_name": "throng",
        "scrape_interval": "1s",
        "static_configs": [{"targets": [busy.url.removeprefix("http://")]}],
        "authorization": {"credentials_file": str(folder / "key")},
    }
    (folder / "prometheus.yml").write_text(json.dumps({"scrape_configs": [scrape_config]}))
    address = f"127.0.0.1:{free_port()}"
    arguments = [
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([program, *arguments], stdout=log, stderr=log, cwd=folder)

    def query(expression):
        url = f"http://{address}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(url, timeout=30) as answer:
            return [float(found["value"][1]) for found in json.load(answer)["data"]["result"]]

    def wait_for(expression):
        """The values of the expression, once it has some."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and process.poll() is None:
            try:
                if values := query(expression):
                    return values
            except urllib.error.URLError:
                pass
            time.sleep(0.2)
        raise AssertionError(f"no value for {expression}:\n" + (folder / "log").read_text())

    yield wait_for
    process.terminate()
    process.wait(30)


@pytest.mark.nightly
def test_a_real_prometheus_scrapes_and_answers(prometheus):
    assert prometheus('up{job="throng"} == 1') == [1]
    assert prometheus("sum(vllm:request_success_total)") == [3]
    for name in ("iteration_tokens_total", "time_to_first_token_seconds", "request_max_num_generation_tokens"):
        [median] = prometheus(f"histogram_quantile(0.5, sum by (le) (vllm:{name}_bucket))")
        assert median > 0, name  # a histogram without +Inf has NaN
    [resident] = prometheus("process_resident_memory_bytes")
    assert resident > 1e6
    [with_version] = prometheus('count(throng_build_info{version!="",commit!="",isa!=""})')
    assert with_version == 1
    assert prometheus('count(throng_model_info{model_name="throng-starter"})') == [1]
