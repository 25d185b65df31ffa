"""The packages of `cargo xtask dist`: what is in them, and that a stranger gets an answer from each."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def packages(binary, tmp_path_factory):
    """Packages with the binary under test, without its debug information where there is a program that removes it."""
    folder = tmp_path_factory.mktemp("packages")
    packed = folder / "throng"
    shutil.copy(binary, packed)
    if shutil.which("strip"):
        subprocess.run(["strip", packed], check=True)
    out = folder / "out"
    subprocess.run(
        ["cargo", "xtask", "dist", "--binary", str(packed), "--out", str(out)],
        check=True,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    return out


def first_answer(way, packages):
    script = [sys.executable, str(ROOT / "bench/first_answer.py"), way, "--packages", str(packages)]
    run = subprocess.run(script, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    return json.loads(run.stdout.splitlines()[-1])["ways"][way]["answer"]


@pytest.mark.nightly
def test_the_archive_has_the_binary_manual_completions_and_the_right_sum(packages):
    (archive,) = packages.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.split("/", 1)[1] for name in tar.getnames() if "/" in name}
        assert all(member.uid == 0 for member in tar.getmembers())
    assert {
        "bin/throng",
        "LICENSE",
        "share/man/man1/throng.1.gz",
        "share/man/man1/throng-serve.1.gz",
        "share/bash-completion/completions/throng",
        "share/zsh/vendor-completions/_throng",
        "share/fish/vendor_completions.d/throng.fish",
        "lib/systemd/system/throng.service",
        "lib/systemd/system/throng-gateway.service",
        "lib/systemd/system/throng-worker.service",
        "etc/throng/credentials/README",
    } <= names
    sums = dict(reversed(line.split()) for line in (packages / "SHA256SUMS").read_text().splitlines())
    for name, expected in sums.items():
        assert hashlib.sha256((packages / name).read_bytes()).hexdigest() == expected
    assert len(sums) == 2


@pytest.mark.nightly
def test_the_archive_answers(packages):
    assert first_answer("archive", packages)


@pytest.mark.nightly
@pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="dpkg-deb is not there to read the package")
def test_dpkg_reads_the_package(packages):
    (package,) = packages.glob("*.deb")
    fields = subprocess.run(["dpkg-deb", "--field", package], check=True, capture_output=True, text=True).stdout
    assert "Package: throng\n" in fields and "Depends: libc6 (>= 2." in fields
    listed = subprocess.run(["dpkg-deb", "--contents", package], check=True, capture_output=True, text=True).stdout
    for path in ("usr/bin/throng", "etc/throng/throng.toml", "usr/lib/systemd/system/throng.service"):
        assert path in listed


@pytest.mark.nightly
@pytest.mark.alone
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("dpkg") or not shutil.which("setpriv"),
    reason="installing a package needs root, dpkg and setpriv",
)
@pytest.mark.skipif(bool(shutil.which("throng")), reason="throng is installed on this machine and would be replaced")
def test_the_debian_package_is_installed_answers_and_is_removed(packages):
    assert first_answer("deb", packages)
    assert not Path("/usr/bin/throng").exists()


SERVICES = ("throng", "throng-gateway", "throng-worker")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not there to check the unit")
@pytest.mark.parametrize("service", SERVICES)
def test_systemd_reads_the_unit(binary, tmp_path, service):
    unit = (ROOT / f"packaging/{service}.service").read_text().replace("/usr/bin/throng", binary)
    (tmp_path / f"{service}.service").write_text(unit)
    run = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / f"{service}.service"], capture_output=True, text=True
    )
    complaints = [line for line in run.stderr.splitlines() if f"{service}.service" in line]
    assert not complaints, run.stderr


class System:
    """A root folder with a stub of systemctl, in which the package's scripts run."""

    def __init__(self, folder, active=("throng",), reloads=True):
        self.root = folder / "root"
        (self.root / "run/systemd/system").mkdir(parents=True)
        for name in ("throng", "throng-gateway"):
            (self.root / "var/lib/private" / name).mkdir(parents=True)
            (self.root / "var/lib" / name).symlink_to(f"private/{name}")
        (self.root / "var/cache/private/throng").mkdir(parents=True)
        (self.root / "var/cache/private/throng/model").write_text("weights")
        programs = folder / "bin"
        programs.mkdir()
        self.calls = folder / "calls"
        is_active = "\n".join(f"is-active:{name}.service) exit 0;;" for name in active)
        (programs / "systemctl").write_text(
            f"""#!/bin/sh
echo "$@" >> {self.calls}
[ "$1" = --quiet ] && shift
case "$1:$2" in
{is_active}
is-active:*) exit 3;;
reload:*) exit {0 if reloads else 1};;
esac
"""
        )
        (programs / "systemctl").chmod(0o755)
        self.path = f"{programs}:{os.environ['PATH']}"

    def run(self, script, *arguments, **variables):
        environment = {**os.environ, "PATH": self.path, "DPKG_ROOT": str(self.root), **variables}
        command = ["sh", ROOT / "packaging" / script, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        calls = self.calls.read_text().splitlines() if self.calls.exists() else []
        self.calls.unlink(missing_ok=True)
        return calls, done.stderr


def test_the_package_starts_the_service_once_and_hands_over_on_an_upgrade(tmp_path):
    system = System(tmp_path)
    calls, _ = system.run("postinst", "configure")
    assert "enable --now throng.service" in calls
    assert (system.root / "etc/throng/credentials").stat().st_mode & 0o777 == 0o700
    calls, _ = system.run("postinst", "configure", "0.0.9")
    assert "reload throng.service" in calls and "daemon-reload" in calls
    assert not [call for call in calls if "restart" in call or "throng-worker" in call and "reload " in call]


def test_an_upgrade_that_cannot_hand_over_leaves_the_old_process(tmp_path):
    system = System(tmp_path, active=("throng", "throng-worker"), reloads=False)
    calls, told = system.run("postinst", "configure", "0.0.9")
    assert "reload throng.service" in calls and "reload throng-worker.service" in calls
    assert "throng goes on with the old version" in told and "throng-worker goes on" in told
    assert not [call for call in calls if "restart" in call]


def test_purging_keeps_data_unless_told(tmp_path):
    system = System(tmp_path)
    database = system.root / "var/lib/private/throng/throng.db"
    database.write_text("keys and usage")
    (system.root / "etc/throng/credentials").mkdir(parents=True)
    key = system.root / "etc/throng/credentials/key.pem"
    key.write_text("private")
    system.run("postrm", "remove")
    assert database.exists() and (system.root / "var/cache/private/throng/model").exists()
    _, told = system.run("postrm", "purge")
    assert database.exists() and key.exists() and str(database.parent) in told and "THRONG_PURGE_DATA=yes" in told
    assert not (system.root / "var/cache/private/throng").exists()
    assert not (system.root / "var/lib/private/throng-gateway").exists(), "an empty folder is no data"
    _, told = system.run("postrm", "purge", THRONG_PURGE_DATA="yes")
    assert not database.exists() and not key.exists() and not os.path.lexists(system.root / "var/lib/throng")
    assert "kept" not in told
