"""The number of workers that there should be, read from a gateway as KEDA's scaler `metrics-api` does: with a key, in the
format of Prometheus, one sample."""

import httpx
from ports import free_port
from prometheus_client.parser import text_string_to_metric_families
from test_fleet_of_models import TOKEN, gateway
from test_foreign_engines import process, wait_for

METRIC = "throng_desired_replicas"
KEY, OPERATOR = "key-of-clients", "key-of-the-operator"


def test_keda_is_told_how_many_workers_there_should_be(binary, tmp_path):
    config = tmp_path / "gateway.toml"
    config.write_text("[gateway.autoscale]\nmin_replicas = 2\nmax_replicas = 4\n")
    address = f"127.0.0.1:{free_port()}"
    url, gateway_process = gateway(binary, [f"throng://{address}"], "--config", str(config), "--api-key", KEY, "--admin-key", OPERATOR)

    def ask(path, **headers):
        return httpx.get(f"{url}{path}", headers=headers)

    def samples():
        # The scaler names no format in `Accept`.
        answer = ask("/metrics", authorization=f"Bearer {OPERATOR}")
        assert answer.status_code == 200
        families = text_string_to_metric_families(answer.text)
        return [sample for family in families if family.name == METRIC for sample in family.samples]

    with gateway_process:
        wait_for(lambda: ask("/version").status_code == 200, "the gateway")
        assert ask("/metrics").status_code == 401
        assert ask("/metrics", authorization=f"Bearer {KEY}").status_code == 403
        # No worker has told its model yet: without a value KEDA leaves the number as it is.
        assert samples() == []
        with process([binary, "worker", "--listen", address, "--threads", "1"], **TOKEN):
            wait_for(lambda: ask("/health").status_code == 200, "the worker")
            [sample] = samples()
            assert (sample.labels["model_name"], sample.value) == ("throng-starter", 2)
