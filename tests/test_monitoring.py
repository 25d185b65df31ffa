"""The alert rules and the Grafana dashboard of `packaging/monitoring`: promtool accepts the rules, and a real Prometheus that
scrapes a real server has a value for every expression in both."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from test_metrics import busy, prometheus  # noqa: F401: fixtures

pytestmark = pytest.mark.nightly

FOLDER = Path(__file__).resolve().parent.parent / "packaging/monitoring"
#: What has no sample while nothing goes wrong: the label sets come with the first error, refusal or cached prompt.
ABSENT_WHEN_WELL = {"vllm:admission_rejections_total"}
#: What only gateways over workers with roles have.
OF_ROLES = {"throng_role_sequences"}
#: What only servers with a database have.
OF_A_DATABASE = {"throng_audit_lost_lines_total"}


@pytest.fixture(scope="module")
def promtool(request):
    program = request.config.getoption("--prometheus")
    if program is None:
        pytest.skip("needs --prometheus PATH")
    found = shutil.which(program)
    return str(Path(found).with_name("promtool"))


def dashboard_expressions():
    dashboard = json.loads((FOLDER / "throng-grafana.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", "1m")
            yield expression.replace('"$instance"', '".*"').replace('"$model"', '".*"')


def test_promtool_accepts_the_rules(promtool):
    checked = subprocess.run(
        [promtool, "check", "rules", str(FOLDER / "throng-alerts.yml")], capture_output=True, text=True, timeout=60
    )
    assert checked.returncode == 0, checked.stderr
    assert "SUCCESS: 11 rules found" in checked.stdout


RULE_TEST = """
rule_files: [RULES]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'up{job="throng",instance="a"}', values: '1 1 0 0 0 0'}
      - {series: 'vllm:num_requests_waiting{instance="a",model_name="m",engine="0"}', values: '100x20'}
      - {series: 'throng_role_sequences{instance="a",model_name="m",engine="0",role="prefill",state="running"}', values: '0x30'}
      - {series: 'throng_role_sequences{instance="a",model_name="m",engine="0",role="prefill",state="waiting"}', values: '0x30'}
      - {series: 'throng_role_sequences{instance="a",model_name="m",engine="1",role="decode",state="running"}', values: '64x30'}
      - {series: 'throng_role_sequences{instance="a",model_name="m",engine="1",role="decode",state="waiting"}', values: '9x30'}
    alert_rule_test:
      - {eval_time: 5m, alertname: ThrongRoleIdle, exp_alerts: []}
      - eval_time: 15m
        alertname: ThrongRoleIdle
        exp_alerts:
          - exp_labels: {severity: warning, instance: a, model_name: m, role: prefill}
            exp_annotations: {summary: "The prefill workers of m idle while sequences wait at its others: change their roles."}
      - {eval_time: 1m, alertname: ThrongDown, exp_alerts: []}
      - eval_time: 5m
        alertname: ThrongDown
        exp_alerts:
          - exp_labels: {severity: critical, job: throng, instance: a}
            exp_annotations: {summary: "a does not answer its scrapes."}
      - eval_time: 10m
        alertname: ThrongQueueLong
        exp_alerts:
          - exp_labels: {severity: warning, instance: a, model_name: m}
            exp_annotations: {summary: "100 sequences wait for m: more is asked than the machine computes."}
"""


def test_alerts_fire_when_they_should(promtool, tmp_path):
    (tmp_path / "test.yml").write_text(RULE_TEST.replace("RULES", json.dumps(str(FOLDER / "throng-alerts.yml"))))
    ended = subprocess.run(
        [promtool, "test", "rules", str(tmp_path / "test.yml")], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_every_metric_that_is_asked_for_is_there(prometheus):  # noqa: F811
    rules = (FOLDER / "throng-alerts.yml").read_text()
    expressions = [*dashboard_expressions(), *re.findall(r"^ +expr: (.*)$", rules, re.MULTILINE)]
    names = {
        name.removesuffix("_bucket")
        for expression in expressions
        for name in re.findall(r"\b(?:vllm:|throng_|http_|process_)[a-z0-9_]+", expression)
        if name not in ("http_requests",)
    }
    assert len(names) > 20
    for name in sorted(names - ABSENT_WHEN_WELL - OF_ROLES - OF_A_DATABASE):
        assert prometheus(f'count({{__name__=~"{name}(_bucket)?"}})')[0] > 0, name


def test_the_dashboard_s_queries_are_valid(prometheus):  # noqa: F811
    for expression in dashboard_expressions():
        # An invalid query is answered with 400, which is an error here; one without samples with none.
        prometheus(f"count({expression}) or vector(0)")
