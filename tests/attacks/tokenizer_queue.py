"""Requests that need much tokenization."""

import json
import threading
import time

from attack import attack
from wire import connect, post

# As many prompts as a body may have, each of nearly the largest length; truncation makes them valid.
N_PROMPTS, PROMPT_BYTES = 128, 14_800


def completions(prompt):
    """A body of 1.9 MB whose prompts are made by a function."""
    asked = {
        "model": "throng-starter",
        "prompt": [prompt() for _ in range(N_PROMPTS)],
        "max_tokens": 1,
        "truncate_prompt_tokens": 10,
    }
    return json.dumps(asked).encode()


def words(random):
    """A text of words that the model knows."""
    known = ["story", "river", "number", "France", "little", "question", "seven", "yellow", "where", "please"]
    return " ".join(random.choices(known, k=PROMPT_BYTES // 6))[:PROMPT_BYTES]


def letters(random):
    """A text of random letters, the most expensive for byte-pair merging."""
    return "".join(random.choices("abcdefgh ijklmnop", k=PROMPT_BYTES))


@attack("tokenizer_queue")
def tokenize_and_leave(target):
    """24 bodies of long texts whose clients disconnect at once."""
    bodies = [completions(lambda: words(target.random)), completions(lambda: letters(target.random))]
    for n in range(target.times(24)):
        s = connect(target)
        s.sendall(post(target, bodies[n % 2], "/v1/completions"))
        # Disconnects before the body is read, or while it is tokenized.
        time.sleep(target.random.choice((0, 0.02)))
        s.close()
    time.sleep(5 * target.intensity)


@attack("tokenizer_queue")
def messages_and_leave(target):
    """24 conversations of 1.9 MB in 10,000 messages with template variables, whose clients disconnect at once."""
    messages = [{"role": "user", "content": "abcdef ghij " * 15} for _ in range(9500)]
    body = json.dumps({"model": "throng-starter", "messages": messages, "truncate_prompt_tokens": 10}).encode()
    for path in ("/tokenize", "/v1/chat/completions"):
        for _ in range(target.times(24)):
            s = connect(target)
            s.sendall(post(target, body, path))
            s.close()
    time.sleep(3 * target.intensity)


@attack("tokenizer_queue", keys=("healthy-key", "attacker-key"))
def one_key_tokenizes(target):
    """One key keeps all tokenizing threads busy for 8 s; another key's client must not wait for it."""
    end = time.monotonic() + 8 * target.intensity
    statuses = []

    def one():
        body = json.dumps({"prompt": "word " * 1300}).encode()
        while time.monotonic() < end:
            statuses.append(target.ask("/tokenize", body=body).status)

    threads = [threading.Thread(target=one) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    known = {200, 400, 429, 503}
    target.claim(set(statuses) <= known, f"{len(statuses)} tokenizations: statuses {sorted(set(statuses))}")
