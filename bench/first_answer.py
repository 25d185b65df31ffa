#!/usr/bin/env python3
"""Times the ways of a stranger to a first answer of the starter model.

    bench/first_answer.py                                  # all three ways: clone, archive, deb
    bench/first_answer.py archive deb --packages FOLDER    # with packages that `cargo xtask dist --out FOLDER` made

clone    `git clone` of this repository, `cargo run --release`, an answer; fetching the crates and compiling included
archive  unpacking the release archive, `throng serve`, an answer
deb      installing the Debian package, its service (through systemd where it runs, else by the command of the unit as the
         user nobody), an answer; then the package is removed with all it brought. Needs root and dpkg.

Prints one line a way and, last, one JSON object. Needs only Python's standard library.
"""

import argparse
import json
import os
import pathlib
import platform
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
UNIT = pathlib.Path("/usr/lib/systemd/system/throng.service")
#: Longer than a build on a slow machine takes.
LIMIT_S = 7200
POLL_S = 0.02
#: The port of the installed service.
SERVICE_PORT = 8000


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def ask(port):
    """The answer of the server at `port`, or None while there is no server."""
    body = {"model": "throng-starter", "max_tokens": 8, "messages": [{"role": "user", "content": "Hello!"}]}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        if error.code == 503:  # still loading
            return None
        raise
    except OSError:
        return None


def first_answer(port, process=None):
    """Asks until there is an answer."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        answer = ask(port)
        if answer:
            return answer
        if process is not None and process.poll() is not None:
            raise RuntimeError(f"the server ended with status {process.returncode}")
        time.sleep(POLL_S)
    raise RuntimeError("no answer")


def environment(**settings):
    own = {name: value for name, value in os.environ.items() if not name.startswith("THRONG_")}
    return {**own, **settings}


def answer_of(command, **options):
    """Starts a server and waits for its first answer."""
    port = free_port()
    settings = environment(THRONG_PORT=str(port), THRONG_LOG="warn")
    process = subprocess.Popen(
        command, env=settings, start_new_session=True, stdout=subprocess.DEVNULL, **options
    )
    try:
        return first_answer(port, process)
    finally:
        # The process and what it started: cargo does not pass signals on.
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def clone(_packages):
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        subprocess.run(["git", "clone", "--quiet", str(ROOT), f"{folder}/throng"], check=True)
        answer = answer_of(["cargo", "run", "--release"], cwd=f"{folder}/throng")
        return time.monotonic() - started, answer


def archive(packages):
    (package,) = packages.glob("throng-*.tar.gz")
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        subprocess.run(["tar", "-xzf", str(package), "-C", folder], check=True)
        (binary,) = pathlib.Path(folder).glob("*/bin/throng")
        answer = answer_of([str(binary)])
        return time.monotonic() - started, answer


def deb(packages):
    (package,) = packages.glob("throng_*.deb")
    if os.geteuid() != 0 or not shutil.which("dpkg"):
        sys.exit("deb: needs root and dpkg")
    if shutil.which("throng"):
        sys.exit("deb: throng is installed already; this would replace and then remove it")
    has_systemd = pathlib.Path("/run/systemd/system").is_dir()
    started = time.monotonic()
    try:
        subprocess.run(["dpkg", "--install", str(package)], check=True, stdout=subprocess.DEVNULL)
        answer = first_answer(SERVICE_PORT) if has_systemd else answer_of(command_of(UNIT.read_text()))
        took = time.monotonic() - started
    finally:
        subprocess.run(["dpkg", "--purge", "throng"], check=True, stdout=subprocess.DEVNULL)
    left = [path for path in ("/usr/bin/throng", "/etc/throng", str(UNIT)) if pathlib.Path(path).exists()]
    if left:
        raise RuntimeError(f"removing the package leaves {left}")
    return took, answer


def command_of(unit):
    """The command of a unit, as a user without rights."""
    command = shlex.split(re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE).group(1))
    return ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--no-new-privs", *command]


WAYS = {"clone": clone, "archive": archive, "deb": deb}


def machine():
    processor = platform.processor()
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = re.findall(r"^model name\s*:\s*(.*)$", cpuinfo.read_text(), re.MULTILINE)
        processor = names[0] if names else processor
    return f"{processor}, {len(os.sched_getaffinity(0))} processors"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", metavar="WAY", help="clone, archive, deb; all when absent")
    parser.add_argument("--packages", type=pathlib.Path, help="where the packages are; made when absent")
    arguments = parser.parse_args()
    ways = arguments.ways or list(WAYS)
    if unknown := [way for way in ways if way not in WAYS]:
        parser.error(f"{unknown[0]} is none of {', '.join(WAYS)}")
    packages = arguments.packages
    if packages is None and {"archive", "deb"} & set(ways):
        packages = ROOT / "target/packages"
        subprocess.run(["cargo", "xtask", "dist", "--out", str(packages)], check=True, cwd=ROOT)
    results = {}
    for way in ways:
        took, answer = WAYS[way](packages)
        results[way] = {"seconds": round(took, 2), "answer": answer}
        print(f"{way:8} {took:8.1f} s  {answer!r}", flush=True)
    print(json.dumps({"machine": machine(), "ways": results}))


if __name__ == "__main__":
    main()
