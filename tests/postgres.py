"""A PostgreSQL server of a test's own, from Debian's package: started in a new folder, killed and started again."""

import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

PATIENCE_S = 60


def programs():
    """The programs of the newest version that is installed, if one is."""
    found = [folder / "bin" for folder in Path("/usr/lib/postgresql").glob("*") if (folder / "bin/initdb").exists()]
    return max(found, default=None)


def unprivileged(*command):
    """The command as a user that PostgreSQL accepts: it refuses to run as root."""
    as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--"] if os.getuid() == 0 else []
    return [*as_user, *map(str, command)]


class Postgres:
    """A running server, with an empty database."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="throng-postgres-")
        os.chmod(self.folder.name, 0o777)
        self.data = Path(self.folder.name) / "data"
        run = lambda *command: subprocess.run(unprivileged(*command), cwd="/", check=True, capture_output=True, timeout=PATIENCE_S)
        run(programs() / "initdb", "--username=postgres", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C", "-D", self.data)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.start()
        run(programs() / "createdb", "--host=127.0.0.1", "--username=postgres", f"--port={self.port}", "kept")
        self.url = f"postgres://postgres@127.0.0.1:{self.port}/kept"

    def start(self):
        settings = ["fsync=off", "listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=50"]
        command = [programs() / "postgres", "-D", self.data, "-p", self.port, *(word for each in settings for word in ("-c", each))]
        end = time.monotonic() + PATIENCE_S
        self.server = None
        while not self._is_ready():
            assert time.monotonic() < end, "PostgreSQL does not start"
            # It gives up while a worker of the server that was killed still has its shared memory.
            if self.server is None or self.server.poll() is not None:
                self.server = subprocess.Popen(unprivileged(*command), cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(0.02)

    def _is_ready(self):
        asked = [programs() / "pg_isready", "--quiet", "--host=127.0.0.1", f"--port={self.port}"]
        return self.server is not None and subprocess.run(asked, cwd="/", timeout=PATIENCE_S).returncode == 0

    def kill(self):
        """Kills the server and its workers at once, twice, since it may start a worker meanwhile."""
        for _ in range(2):
            children = Path(f"/proc/{self.server.pid}/task/{self.server.pid}/children")
            workers = [int(pid) for pid in children.read_text().split()] if children.exists() else []
            for pid in [self.server.pid, *workers]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        self.server.wait()

    def stop(self):
        self.kill()
        self.folder.cleanup()
