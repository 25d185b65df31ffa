"""The libraries of the chat page are npm's, byte by byte, and their licences are with them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

VENDOR = Path(__file__).resolve().parent.parent / "crates/gateway/src/web/vendor"
PACKAGES = json.loads((VENDOR / "packages.json").read_text())


def test_every_file_has_a_package_and_every_package_a_licence():
    listed = {file for package in PACKAGES for file in package["files"].values()}
    assert listed | {"README.md", "fetch.py", "packages.json"} == {path.name for path in VENDOR.iterdir()}
    notice = (VENDOR / "README.md").read_text()
    for package in PACKAGES:
        assert any(file.startswith("LICENSE.") for file in package["files"].values()), package["package"]
        assert f"| {package['version']}" in notice, package["package"]


def test_the_files_are_those_of_npm(tmp_path):
    if shutil.which("npm") is None:
        pytest.skip("needs npm")
    if subprocess.run([sys.executable, VENDOR / "fetch.py", tmp_path], timeout=300).returncode:
        pytest.skip("npm's registry cannot be reached")
    assert len(list(tmp_path.iterdir())) == sum(len(package["files"]) for package in PACKAGES)
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (VENDOR / path.name).read_bytes(), path.name
