"""Small requests for very large answers."""

import threading
import time

from attack import attack, chat, completion
from wire import connect, post

MAX_ANSWER = 32 << 20


def together(target, path, documents):
    """Sends all requests at once and returns the answers."""
    answers = []

    def one(document):
        answers.append(target.ask(path, document, timeout=60))

    threads = [threading.Thread(target=one, args=(document,)) for document in documents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def judged(target, answers, what):
    """Claims that each answer was refused for its size or is of an acceptable size."""
    sizes = [len(answer.body) for answer in answers]
    statuses = sorted({answer.status for answer in answers})
    ok = max(sizes) <= MAX_ANSWER and set(statuses) <= {200, 400, 503}
    largest = f"{max(sizes) / 1e6:.1f} MB" if max(sizes) > 1e5 else f"{max(sizes)} bytes"
    said = next((a.error.get("message", "")[:160] for a in answers if a.status == 400), "")
    target.claim(
        ok, f"{what}: statuses {statuses}, the largest of {len(answers)} answers {largest} (at most 33.6 MB) {said}"
    )


@attack("answers")
def prompt_logprobs_times_n(target):
    """A request of 4.9 KB asks for the prompt's log-probabilities for each of 128 choices, eight at a time."""
    asked = completion([5] * 1000, prompt_logprobs=20, n=128, max_tokens=1)
    judged(target, together(target, "/v1/completions", [asked] * target.times(8)), "prompt_logprobs 20, n 128")


@attack("answers")
def echo_logprobs_times_n(target):
    """The same with echo and logprobs, which report the prompt too."""
    asked = completion([5] * 1000, echo=True, logprobs=20, n=128, max_tokens=1)
    judged(target, together(target, "/v1/completions", [asked] * target.times(8)), "echo, logprobs 20, n 128")


@attack("answers")
def logprobs_of_many_prompts(target):
    """1,024 short prompts in one body, each reported with twenty alternatives a token."""
    asked = completion([[5] * 40] * 1024, echo=True, logprobs=20, prompt_logprobs=20, max_tokens=1)
    judged(target, together(target, "/v1/completions", [asked] * target.times(2)), "1,024 prompts with logprobs")


@attack("answers")
def prompt_logprobs_in_a_stream(target):
    """Log-probabilities of the prompt as one event of a stream, many times."""
    asked = completion([5] * 1000, echo=True, logprobs=20, n=64, max_tokens=1, stream=True)
    judged(target, together(target, "/v1/completions", [asked] * target.times(4)), "echo + logprobs streamed, n 64")


@attack("answers")
def large_answer_speed(target):
    """An answer of a few hundred KB must not be sent slowly over loopback."""
    asked = completion([5] * 1000, prompt_logprobs=20, n=1, max_tokens=1)
    target.ask("/v1/completions", asked)
    speeds, size = [], 0
    for _ in range(3):
        s = connect(target)
        s.sendall(post(target, asked, "/v1/completions", connection="close"))
        size = len(s.recv(1))
        started = time.monotonic()
        while data := s.recv(1 << 20):
            size += len(data)
        speeds.append(size / (time.monotonic() - started) / 1e6)
    target.claim(max(speeds) >= 20, f"{size / 1e3:.0f} KB came at {max(speeds):.1f} MB/s (at least 20)")


@attack("answers", keys=("healthy-key", "attacker-key"), is_load=True)
def choices_of_a_long_prompt(target):
    """128 choices with a context of 900 tokens and everything reported, from another key; the answer is read."""
    asked = chat("word " * 800, n=128, max_tokens=16, logprobs=True, top_logprobs=20, ignore_eos=True, temperature=1)
    judged(target, together(target, "/v1/chat/completions", [asked] * target.times(2)), "n 128 of a long prompt")
