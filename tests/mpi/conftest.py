"""Servers whose ranks are the processes of an MPI job, on this host or on several."""

import contextlib
import os

import pytest
from jobs import MPIRUN, OPTIONS, Job, agent_of, on_hosts


@pytest.fixture(scope="session")
def start_job(binary):
    """Starts a job on this host: `with start_job(N, MODEL, "--flag", value) as server`."""

    @contextlib.contextmanager
    def started(n_ranks, *arguments):
        job = Job([MPIRUN, *OPTIONS, "-n", str(n_ranks)], binary, *arguments, "--force")
        try:
            yield job
        finally:
            job.stop()

    return started


@pytest.fixture(scope="session")
def start_on_hosts(binary, tmp_path_factory):
    """Starts a job with one rank on each of several hosts: `with start_on_hosts(N, MODEL) as (server, network)`."""

    @contextlib.contextmanager
    def started(n_hosts, *arguments):
        folder = tmp_path_factory.mktemp("hosts")
        with on_hosts(n_hosts, int.from_bytes(os.urandom(4), "little")) as network:
            hosts = ",".join(f"{address}:1" for address in network.addresses)
            agent = ["--prtemca", "plm_ssh_agent", agent_of(network, folder)]
            launcher = network.inside(0, MPIRUN, *OPTIONS, *agent, "--host", hosts, "-n", str(n_hosts))
            job = Job(launcher, binary, "--host", network.addresses[0], "--allow-unauthenticated", *arguments, "--force", environment={"TMPDIR": str(folder)})
            try:
                yield job, network
            finally:
                job.stop()

    return started
