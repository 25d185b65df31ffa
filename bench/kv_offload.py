"""Time to the answer of a long prompt: computed, found in memory, and found on disk by the next process.

    python bench/kv_offload.py target/release/throng MODEL [--items 480] [--memory 400MiB]

Needs httpx. Prints each time, and its share of the time for computing.
"""

import argparse
import re
import signal
import subprocess
import tempfile
import threading
import time

import httpx

COLOURS = ["red", "green", "blue"]


def start(arguments, folder):
    """A server, and its address."""
    command = [arguments.throng, "serve", arguments.model, "--port", "0", "--kv-offload-dir", folder]
    process = subprocess.Popen(
        [*command, "--kv-cache-memory", arguments.memory], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    for line in process.stdout:
        if found := re.search(r"Serving on (http://\S+)", line):
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return process, found.group(1)
    raise SystemExit("the server did not start")


def ask(url, n_items):
    """Seconds until the answer, the answer, and the tokens of the prompt: all, and those found in a cache."""
    text = " ".join(f"item {i} has colour {COLOURS[i % 3]} and weight {i * 7 % 101};" for i in range(n_items))
    model = httpx.get(url + "/v1/models").json()["data"][0]["id"]
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 4, "temperature": 0}
    begun = time.perf_counter()
    answer = httpx.post(url + "/v1/chat/completions", json=body, timeout=3600).raise_for_status().json()
    took = time.perf_counter() - begun
    details = answer["usage"].get("prompt_tokens_details") or {}
    return took, answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"], details.get("cached_tokens", 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("throng")
    parser.add_argument("model")
    parser.add_argument("--items", type=int, default=480)
    parser.add_argument("--memory", default="400MiB")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        computed, expected = None, None
        for how, ends in [("computed", None), ("in memory", signal.SIGTERM), ("after a stop", signal.SIGKILL), ("after a kill", signal.SIGTERM)]:
            if how != "in memory":
                process, url = start(arguments, folder)
            took, text, n_tokens, n_cached = ask(url, arguments.items)
            computed, expected = computed or took, expected or text
            assert text == expected, f"{how}: {text!r} in place of {expected!r}"
            print(f"{how:>12}: {took:7.3f} s, {computed / took:5.1f} times sooner; {n_cached} of {n_tokens} tokens found")
            if ends is not None:
                process.send_signal(ends)
                process.wait()


if __name__ == "__main__":
    main()
