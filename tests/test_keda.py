"""KEDA's external scaler, asked by gRPC's own client with stubs made from the service's definition."""

import sys

import httpx
import pytest
from certificates import self_signed
from ports import free_port
from test_fleet_of_models import TOKEN, gateway
from test_foreign_engines import process, wait_for

grpc = pytest.importorskip("grpc")

PROTO = """
syntax = "proto3";
package externalscaler;
service ExternalScaler {
  rpc IsActive(ScaledObjectRef) returns (IsActiveResponse) {}
  rpc StreamIsActive(ScaledObjectRef) returns (stream IsActiveResponse) {}
  rpc GetMetricSpec(ScaledObjectRef) returns (GetMetricSpecResponse) {}
  rpc GetMetrics(GetMetricsRequest) returns (GetMetricsResponse) {}
}
message ScaledObjectRef { string name = 1; string namespace = 2; map<string, string> scalerMetadata = 3; }
message IsActiveResponse { bool result = 1; }
message GetMetricSpecResponse { repeated MetricSpec metricSpecs = 1; }
message MetricSpec { string metricName = 1; int64 targetSize = 2; double targetSizeFloat = 3; }
message GetMetricsRequest { ScaledObjectRef scaledObjectRef = 1; string metricName = 2; }
message GetMetricsResponse { repeated MetricValue metricValues = 1; }
message MetricValue { string metricName = 1; int64 metricValue = 2; double metricValueFloat = 3; }
"""
MODEL = "throng-starter"


@pytest.fixture(scope="module")
def stubs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("proto")
    (folder / "external_scaler_of_keda.proto").write_text(PROTO)
    sys.path.insert(0, str(folder))
    yield grpc.protos_and_services("external_scaler_of_keda.proto")
    sys.path.remove(str(folder))


def config(tmp_path, port, **settings):
    lines = [f'keda_listen = "127.0.0.1:{port}"', *(f"{name} = {value}" for name, value in settings.items())]
    path = tmp_path / "gateway.toml"
    path.write_text("\n".join(["[gateway.autoscale]", *lines]))
    return ["--config", str(path)]


def test_keda_is_told_how_many_workers_there_should_be(binary, stubs, tmp_path):
    messages, services = stubs
    worker, scaler = free_port(), free_port()
    address = f"127.0.0.1:{worker}"
    url, gateway_process = gateway(binary, [f"throng://{address}"], *config(tmp_path, scaler, min_replicas=2, max_replicas=4))

    def status_of(call):
        with pytest.raises(grpc.RpcError) as failed:
            call()
        return failed.value.code()

    with gateway_process, grpc.insecure_channel(f"127.0.0.1:{scaler}") as channel:
        stub = services.ExternalScalerStub(channel)
        named = messages.ScaledObjectRef(name="worker", namespace="default", scalerMetadata={"model": MODEL})
        wait_for(lambda: httpx.get(f"{url}/version").status_code == 200, "the gateway")
        code = lambda: status_of(lambda: stub.IsActive(named, timeout=10, wait_for_ready=True))
        assert code() == grpc.StatusCode.UNAVAILABLE

        with process([binary, "worker", "--listen", address, "--threads", "1"], **TOKEN):
            wait_for(lambda: httpx.get(f"{url}/health").status_code == 200, "the worker")
            assert stub.IsActive(named, timeout=10).result
            [spec] = stub.GetMetricSpec(named, timeout=10).metricSpecs
            assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == ("throng_desired_replicas", 1, 1.0)
            request = messages.GetMetricsRequest(scaledObjectRef=named, metricName=f"s0-{spec.metricName}")
            [value] = stub.GetMetrics(request, timeout=10).metricValues
            metrics = httpx.get(f"{url}/metrics").text
            [line] = [line for line in metrics.splitlines() if line.startswith("throng_desired_replicas{")]
            assert value.metricName == request.metricName
            assert value.metricValue == value.metricValueFloat == float(line.split()[-1]) == 2

            # The only model need not be named; another name is of no model.
            assert stub.IsActive(messages.ScaledObjectRef(name="worker"), timeout=10).result
            other = messages.ScaledObjectRef(scalerMetadata={"model": "other"})
            assert status_of(lambda: stub.IsActive(other, timeout=10)) == grpc.StatusCode.NOT_FOUND
            unknown = channel.unary_unary("/externalscaler.ExternalScaler/Other")
            assert status_of(lambda: unknown(b"", timeout=10)) == grpc.StatusCode.UNIMPLEMENTED
            broken = channel.unary_unary("/externalscaler.ExternalScaler/IsActive")
            assert status_of(lambda: broken(b"\xff\xff", timeout=10)) == grpc.StatusCode.INVALID_ARGUMENT
            assert status_of(lambda: broken(b"\n" * 100_000, timeout=10)) == grpc.StatusCode.INVALID_ARGUMENT

            stream = stub.StreamIsActive(named, timeout=60)
            assert next(stream).result
            stream.cancel()


def test_keda_can_ask_over_tls(binary, stubs, tmp_path):
    messages, services = stubs
    certificate, key = self_signed(tmp_path, "localhost")
    scaler = free_port()
    files = f'{{ certificate = "{certificate}", key = "{key}", client_ca = "{certificate}" }}'
    settings = config(tmp_path, scaler, keda_tls=files)
    url, gateway_process = gateway(binary, [f"throng://127.0.0.1:{free_port()}"], *settings)
    target = f"127.0.0.1:{scaler}"
    options = [("grpc.ssl_target_name_override", "localhost")]
    credentials = lambda *own: grpc.ssl_channel_credentials(certificate.read_bytes(), *own)
    with_own, without = credentials(key.read_bytes(), certificate.read_bytes()), credentials()

    def told(channel):
        with channel, pytest.raises(grpc.RpcError) as failed:
            services.ExternalScalerStub(channel).IsActive(messages.ScaledObjectRef(name="worker"), timeout=10)
        return failed.value.details()

    with gateway_process:
        wait_for(lambda: httpx.get(f"{url}/version").status_code == 200, "the gateway")
        answered = "no worker has told its model yet"
        wait_for(lambda: told(grpc.secure_channel(target, with_own, options)) == answered, "an encrypted answer")
        assert told(grpc.secure_channel(target, without, options)) != answered
        assert told(grpc.insecure_channel(target)) != answered
