"""The healthy client: requests streams of which it knows every byte, one after the other, and measures the time to the
first token. It runs in a process of its own, so that an attack can slow it only through the server."""

import http.client
import json
import statistics
import time
from dataclasses import dataclass

from attack import chat

PROMPTS = ("Hello!", "What is the capital of France?", "Tell me a short story about a dog.")
N_TOKENS = 12
LIMIT_S = 20
PAUSE_S = 0.02


@dataclass
class Sample:
    """One request of the healthy client."""

    started: float
    first_token_s: float
    fault: str = None


def stream(host, port, prompt, key=None):
    """Requests one stream; returns the text and the seconds to its first token."""
    started = time.monotonic()
    connection = http.client.HTTPConnection(host, port, timeout=LIMIT_S)
    fields = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
    asked = chat(prompt, stream=True, max_tokens=N_TOKENS, ignore_eos=True, seed=1, model="throng-starter")
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(asked), fields)
        answer = connection.getresponse()
        if answer.status != 200:
            raise ValueError(f"status {answer.status}: {answer.read(300)!r}")
        text, first, ended = "", None, False
        for line in answer:
            if line == b"data: [DONE]\n":
                ended = True
            elif line.startswith(b"data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    raise ValueError(f"an error in the stream: {event['error']}")
                piece = event["choices"][0]["delta"].get("content") if event["choices"] else None
                if piece:
                    first = first or time.monotonic() - started
                    text += piece
        if not ended:
            raise ValueError("the stream ended without [DONE]")
        return text, first
    finally:
        connection.close()


def references(host, port, key=None):
    """The expected answers, from a server without other load."""
    return {prompt: stream(host, port, prompt, key)[0] for prompt in PROMPTS}


def run(host, port, key, expected, stop, samples):
    """Sends requests until told to stop, and puts a [`Sample`] for each into the queue."""
    n = 0
    while not stop.is_set():
        prompt = PROMPTS[n % len(PROMPTS)]
        n += 1
        sample = Sample(time.monotonic(), 0.0)
        try:
            text, first = stream(host, port, prompt, key)
            sample.first_token_s = first or 0.0
            if text != expected[prompt]:
                sample.fault = f"another answer: {text!r}, not {expected[prompt]!r}"
        except (OSError, ValueError, http.client.HTTPException, KeyError) as error:
            sample.fault = f"{type(error).__name__}: {error}"[:300]
            sample.first_token_s = time.monotonic() - sample.started
        samples.put(sample)
        time.sleep(PAUSE_S)


def median_ms(samples):
    """The median time to the first token in milliseconds; None without samples."""
    times = [sample.first_token_s * 1000 for sample in samples]
    return statistics.median(times) if times else None


def worst_ms(samples):
    """The longest time to a first token in milliseconds."""
    return max((sample.first_token_s * 1000 for sample in samples), default=None)
