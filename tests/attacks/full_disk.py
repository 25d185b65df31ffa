"""A disk that fills up under the database and its journal, and gets room again."""

import contextlib
import json
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

from attack import ADMIN_KEY, attack, chat
from server import Server

DISK_KIB = 4 << 10
# Far more entries than the journal has reserved room for on such a disk.
MAX_ENTRIES = 4_000
# The ledger and the store try again by themselves.
RECOVERY_LIMIT_S = 30


class SmallDisk:
    """A file system that can be filled to the last byte."""

    def __init__(self, folder):
        self._filler = folder / "filler"

    def fill(self):
        """Leaves no room for a single byte."""
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError), open(self._filler, "ab", buffering=0) as file:
                while file.write(b"x" * size):
                    pass

    def free(self):
        """Gives the room back."""
        self._filler.unlink()


@contextmanager
def small_disk(folder):
    """A `tmpfs` over a folder; `None` where it cannot be mounted, which only root can."""
    folder.mkdir(parents=True, exist_ok=True)
    options = ["-t", "tmpfs", "-o", f"size={DISK_KIB}k", "throng-attack", str(folder)]
    is_mounted = subprocess.run(["mount", *options], stderr=subprocess.DEVNULL, check=False).returncode == 0
    try:
        yield SmallDisk(folder) if is_mounted else None
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=False)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Gateway:
    """A server whose database and journal are on that disk, with an organisation that has a budget and one without."""

    def __init__(self, target, folder):
        self._target, self._port, self._admin_port = target, None, free_port()
        self._database = folder / "throng.db"
        flags = ("--database", self._database, "--admin-listen", f"127.0.0.1:{self._admin_port}")
        self.server = Server(target.binary, f"{target.folder}/server.log", flags, keys=("unused",))
        self._port = self.server.port
        self.n_answered = 0
        self.budgeted = self.make_key("budgeted").get("key")
        self.free = self.make_key("free").get("key")
        self.admin("/admin/limits", {"organisation": "budgeted", "limits": {"tokens_per_day": 1 << 40}})

    def _ask(self, port, key, path, document=None, **fields):
        self._target.port = port
        return self._target.ask(path, document, authorization=f"Bearer {key}", **fields)

    def admin(self, path, document):
        """A change that the operator makes: its answer."""
        return self._ask(self._admin_port, ADMIN_KEY, path, document)

    def make_key(self, organisation):
        answer = self.admin("/admin/keys", {"organisation": organisation})
        return json.loads(answer.body) if answer.status == 201 else {}

    def chat(self, key, **fields):
        """A chat of one token; one that is answered has an entry in the ledger."""
        answer = self._ask(self._port, key, "/v1/chat/completions", chat(max_tokens=1), **fields)
        self.n_answered += answer.status == 200 and "idempotent-replayed" not in answer.headers
        return answer

    def is_degraded(self):
        """What the health check says of a server that goes on without its database; `None` if it says that it does not."""
        answer = self._ask(self._port, ADMIN_KEY, "/health")
        return b"degraded" in answer.body if answer.status == 200 else None

    def metric(self, name):
        self._target.port, self._target.key = self._port, ADMIN_KEY
        return self._target.metric(name)

    def n_written(self):
        """The entries that the ledger has, as the operator sees them."""
        answer = self._ask(
            self._port, ADMIN_KEY, f"/v1/organization/usage/completions?start_time={int(time.time()) - 86400}"
        )
        found = json.loads(answer.body).get("data", []) if answer.status == 200 else []
        return sum(result["num_model_requests"] for bucket in found for result in bucket["results"])


def within(limit_s, holds):
    """Whether it holds before that time is over."""
    end = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def fill_and_free(target, gateway, disk, round):
    """Fills the disk until no place can take an entry, and gives the room back: everything works as before."""
    disk.fill()
    refused = None
    for _ in range(MAX_ENTRIES // 10):
        answer = gateway.chat(gateway.budgeted)
        if answer.status != 200:
            refused = answer
            break
        for _ in range(9):
            gateway.chat(gateway.free)
    said = (refused.status, refused.code) if refused else "nothing"
    target.claim(
        said == (503, "ledger_unavailable"), f"round {round}: without room for an entry, a key with a budget gets {said}"
    )
    target.claim(gateway.chat(gateway.free).status == 200, f"round {round}: a key without a budget is answered")
    target.claim(within(5, gateway.is_degraded), f"round {round}: the health check says degraded")
    gateway.make_key("late")
    gateway.chat(gateway.free, idempotency_key=f"full {round}")
    disk.free()
    target.claim(
        within(RECOVERY_LIMIT_S, lambda: gateway.chat(gateway.budgeted).status == 200),
        f"round {round}: with room again, a key with a budget is answered",
    )
    target.claim(
        within(RECOVERY_LIMIT_S, lambda: "key" in gateway.make_key("late")), f"round {round}: a key can be made again"
    )
    same = [gateway.chat(gateway.free, idempotency_key=f"free {round}") for _ in range(2)]
    target.claim(
        [answer.status for answer in same] == [200, 200] and same[0].body == same[1].body,
        f"round {round}: an Idempotency-Key is answered {[answer.status for answer in same]}, with the same bytes",
    )
    target.claim(
        within(RECOVERY_LIMIT_S, lambda: gateway.is_degraded() is False), f"round {round}: the health check says so no more"
    )


def fill_twice(target, gateway, disk):
    for round in range(2):
        fill_and_free(target, gateway, disk, round)

    def is_complete():
        return gateway.n_written() + gateway.metric("throng_ledger_lost_entries_total") == gateway.n_answered

    is_whole = within(RECOVERY_LIMIT_S, is_complete)
    n_lost = int(gateway.metric("throng_ledger_lost_entries_total"))
    target.claim(
        is_whole, f"of {gateway.n_answered} answers {gateway.n_written()} are in the ledger, {n_lost} are counted as lost"
    )
    # Between the first entry without room and the refusal that follows: those of keys without a budget.
    target.claim(n_lost <= 2 * 20, f"{n_lost} entries of keys without a budget are lost")
    return target.claim(gateway.server.stop() == 0, "exit status 0")


@attack("full_disk", alone=True, limit_s=180)
def full_disk(target):
    """The disk of the database and the journal fills up and gets room, twice: no acknowledged entry is lost."""
    folder = Path(target.folder) / "disk"
    with small_disk(folder) as disk:
        if disk is None:
            return target.claim(True, "not run: no file system can be mounted here (only root can)")
        gateway = Gateway(target, folder)
        try:
            return fill_twice(target, gateway, disk)
        finally:
            if gateway.server.is_running():
                gateway.server.kill()
