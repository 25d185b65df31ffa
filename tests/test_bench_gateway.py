"""`throng bench gateway`: every server that it starts answers, and all streams that it opens are open at a time."""

import json
import subprocess

import pytest


# A worker has one connection for all streams of a gateway.
REMOTE = pytest.param(["--remote"], 4200, id="a worker", marks=pytest.mark.nightly)


@pytest.mark.alone
@pytest.mark.parametrize(("place", "n_streams"), [pytest.param([], 40, id="one process"), REMOTE])
def test_the_gateway_is_measured_beside_a_server_without_one(binary, place, n_streams):
    command = ["bench", "gateway", "--rate", "50", "--seconds", "1", "--connections", "4", "--open-streams", str(n_streams), "--json"]
    ran = subprocess.run([binary, *command, *place], capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr
    bare, gateway, streams = [json.loads(line) for line in ran.stdout.splitlines()]
    for line in (bare, gateway):
        assert line["n_failed"] == 0 and line["n_answered"] == 50, line
    assert (bare["name"], gateway["name"], streams["n_open"]) == ("server without gateway", "throng", n_streams)
    assert streams["bytes_before"] > 0 and streams["bytes_open"] > 0
