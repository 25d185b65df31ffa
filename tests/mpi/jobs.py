"""MPI jobs of `throng serve` and the hosts that they run on."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from network import Network, Unavailable
from servers import Server

MPIRUN = str(Path(sys.prefix) / "bin/mpirun")
# No binding to cores: ranks of a test share them. The rest makes mpirun start more processes than there are cores, and by root.
OPTIONS = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-x", "LD_LIBRARY_PATH", "-x", "TEST_JOB"]
DELAY_S, LOSS = 0.001, 0.01


class Job(Server):
    """`mpirun throng serve`: rank 0 is the server."""

    def __init__(self, launcher, binary, *arguments, environment=()):
        self.launcher, self.more = launcher, dict(environment)
        super().__init__(binary, *arguments)

    def command(self, line):
        return [*self.launcher, *line]

    def environment(self, own):
        path = os.pathsep.join([str(Path(MPIRUN).parent), own.get("PATH", "")])
        library = str(Path(sys.prefix) / "lib")
        return {**own, "PATH": path, "LD_LIBRARY_PATH": library, "TEST_JOB": str(id(self)), **self.more}

    def ranks(self):
        """The processes of the ranks, in order."""
        return ranks_of_job(str(id(self)), self.binary)

    def stop(self):
        """Ends rank 0 in order, and with it the job; returns the launcher's exit status."""
        if self.process.poll() is None and (ranks := self.ranks()):
            os.kill(ranks[0], signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            for pid in self.ranks():
                os.kill(pid, signal.SIGKILL)
            self.process.kill()
            raise


def ranks_of_job(name, binary):
    """The processes of the ranks of a job, in order."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, KeyError, ValueError):
            variables = dict(pair.split("=", 1) for pair in (folder / "environ").read_text().split("\0") if "=" in pair)
            is_alive = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
            if is_alive and variables.get("TEST_JOB") == name and os.readlink(folder / "exe") == binary:
                found[int(variables["OMPI_COMM_WORLD_RANK"])] = int(folder.name)
    return [found[rank] for rank in sorted(found)]


@contextlib.contextmanager
def on_hosts(n_hosts, seed):
    """Several hosts with a slow network between them that loses packets; skips the test where there can be none."""
    print(f"seed of the network: {seed}")
    with contextlib.ExitStack() as stack:
        try:
            network = stack.enter_context(Network(n_hosts, DELAY_S, LOSS, seed))
        except Unavailable as error:
            pytest.skip(f"no network namespaces: {error}")
        yield network


def agent_of(network, folder):
    """A program that `mpirun` starts in place of ssh: its first argument is the host."""
    agent = folder / "agent.sh"
    cases = "".join(f"{address}) host={name} ;;\n" for name, address in zip(network.names, network.addresses, strict=True))
    agent.write_text(
        f'#!/bin/sh\ncase "$1" in\n{cases}esac\nshift\nmkdir -p {folder}/$host\n'
        f'exec ip netns exec "$host" env TMPDIR={folder}/$host PATH="$PATH" LD_LIBRARY_PATH="$LD_LIBRARY_PATH" sh -c "$*"\n'
    )
    agent.chmod(agent.stat().st_mode | stat.S_IXUSR)
    return str(agent)
