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
    } <= names
    sums = dict(reversed(line.split()) for line in (packages / "SHA256SUMS").read_text().splitlines())
    for name, expected in sums.items():
        assert hashlib.sha256((packages / name).read_bytes()).hexdigest() == expected
    assert len(sums) == 2


def test_the_archive_answers(packages):
    assert first_answer("archive", packages)


@pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="dpkg-deb is not there to read the package")
def test_dpkg_reads_the_package(packages):
    (package,) = packages.glob("*.deb")
    fields = subprocess.run(["dpkg-deb", "--field", package], check=True, capture_output=True, text=True).stdout
    assert "Package: throng\n" in fields and "Depends: libc6 (>= 2." in fields
    listed = subprocess.run(["dpkg-deb", "--contents", package], check=True, capture_output=True, text=True).stdout
    for path in ("usr/bin/throng", "etc/throng/throng.toml", "usr/lib/systemd/system/throng.service"):
        assert path in listed


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("dpkg") or not shutil.which("setpriv"),
    reason="installing a package needs root, dpkg and setpriv",
)
@pytest.mark.skipif(bool(shutil.which("throng")), reason="throng is installed on this machine and would be replaced")
def test_the_debian_package_is_installed_answers_and_is_removed(packages):
    assert first_answer("deb", packages)
    assert not Path("/usr/bin/throng").exists()


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not there to check the unit")
def test_systemd_reads_the_unit(binary, tmp_path):
    unit = (ROOT / "packaging/throng.service").read_text().replace("/usr/bin/throng", binary)
    (tmp_path / "throng.service").write_text(unit)
    run = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / "throng.service"], capture_output=True, text=True
    )
    complaints = [line for line in run.stderr.splitlines() if "throng.service" in line]
    assert not complaints, run.stderr
