"""Constraints made to cost time and memory, beside streams whose pace is measured."""

import contextlib
import http.client
import json
import threading
import time

from attack import attack, chat

N_STREAMS = 2
N_TOKENS = 150
N_ROUNDS = 6
MAX_RATIO = 1.2
# The machine is shared with other programs.
SLACK_MS = 5


def nested(n):
    schema = {"type": "string"}
    for _ in range(n):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def chain(n, make):
    definitions = {"d0": {"type": "object", "properties": {"a": {"type": "string"}}}}
    for i in range(1, n):
        definitions[f"d{i}"] = make({"$ref": f"#/$defs/d{i - 1}"})
    return {"$defs": definitions, "$ref": f"#/$defs/d{n - 1}"}


def doubled(keyword):
    return chain(30, lambda inner: {keyword: [inner, inner]})


def rules(n, body):
    return "".join(f"r{i} ::= {body.format(next=i + 1)}\n" for i in range(n)) + f'r{n} ::= "a"\nroot ::= r0'


def bombs():
    """Forty constraints as parameters of a chat; each is new for the cache when it is numbered."""
    text = {"type": "string"}
    schemas = [
        nested(60),
        nested(200),
        {"$ref": "#"},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        doubled("allOf"),
        doubled("anyOf"),
        chain(400, lambda inner: {"type": "array", "items": inner}),
        chain(30, lambda inner: {"properties": {"a": inner, "b": inner}}),
        {"allOf": [{"anyOf": [{"properties": {f"p{n}": text}} for n in range(30)]}] * 6},
        {"type": "array", "maxItems": 2**64},
        {"type": "array", "minItems": 10_000, "items": {"type": "integer"}},
        {"type": "array", "minItems": 900, "items": {"type": "array", "minItems": 900, "items": text}},
        {"type": "string", "maxLength": 10**9},
        {"type": "string", "minLength": 100_000},
        {"type": "object", "minProperties": 10_000},
        {"enum": [f"text number {n}" for n in range(15_000)]},
        {"enum": ["x" * 250_000]},
        {"type": "object", "properties": {f"p{n}": text for n in range(400)}},
        {"type": "object", "patternProperties": {f"^x{n}.*y{{1,200}}$": {} for n in range(60)}},
        {"anyOf": [{"const": n, "title": "x" * 20} for n in range(1900)]},
        {"oneOf": [{"type": "object", "properties": {"k": {"const": n}}, "required": ["k"]} for n in range(200)]},
        {"type": "number", "multipleOf": 0.000000123457},
        {"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]},
        {"type": "number", "minimum": -1e300, "maximum": 1e300},
        {"type": "string", "pattern": "^((a{1,100}){1,100}){1,100}$"},
        {"allOf": [{"pattern": f"^(.*a.{{{10 + n}}})*$"} for n in range(12)]},
        {"dependentRequired": {f"p{n}": [f"p{n + 1}", f"p{n + 2}"] for n in range(60)}},
        {"not": {"allOf": [{"properties": {f"p{n}": {"type": "null"}}} for n in range(200)]}},
    ]
    regexes = [
        "a{1,1000000}",
        "((((a{1,100}){1,100}){1,100}){1,100}){1,100}",
        r"(\w{1,1000}\s{1,1000}){1,1000}",
        "(a|b)*a(a|b){100}",
        r"(.*a.{40}|.*b.{41}|.*c.{42}|.*d.{43}){1,50}",
        "ab?" * 5000,
        "(" * 5000 + "a" + ")" * 5000,
        r"[\p{L}\p{N}\p{S}]{1,500}(\p{Han}|\p{Greek}){5,500}",
    ]
    grammars = [
        rules(900, "r{next}"),
        rules(40, 'r{next} r{next} "x" | "y"'),
        "root ::= " + "(" * 3000 + '"a"' + ")" * 3000,
        "root ::= ((([a-z]{1,2000}){1,2000}){1,2000}){1,2000}",
        'root ::= root root | "a" root? | "(" root{1,2000} ")"',
    ]
    found = [{"structured_outputs": {"json": schema}} for schema in schemas]
    found += [{"structured_outputs": {"regex": regex}} for regex in regexes]
    found += [{"grammar": grammar} for grammar in grammars]
    found.append({"structured_outputs": {"choice": [f"choice {n}" for n in range(100_000)]}})
    return found


def unlike(bomb, n):
    """The same constraint with another text, so that no cache knows it."""
    bomb = json.loads(json.dumps(bomb))
    inside = bomb.get("structured_outputs", {})
    if isinstance(inside.get("json"), dict):
        inside["json"]["title"] = f"number {n}"
    elif "regex" in inside:
        inside["regex"] += f"(x{n})?"
    elif "choice" in inside:
        inside["choice"].append(f"number {n}")
    else:
        bomb["grammar"] += f'\nunused{n} ::= "x"'
    return bomb


def gaps(target):
    """The seconds between the events of one stream."""
    connection = http.client.HTTPConnection(target.host, target.port, timeout=60)
    asked = chat("Tell me a long story.", stream=True, max_tokens=N_TOKENS, ignore_eos=True)
    found, last = [], None
    with contextlib.closing(connection):
        connection.request("POST", "/v1/chat/completions", json.dumps(asked), target.fields())
        for line in connection.getresponse():
            if line.startswith(b"data: "):
                now = time.monotonic()
                found += [now - last] if last else []
                last = now
    return found


def streams(target):
    """The gaps of a few streams at once, without the first of each, which waits for its prompt."""
    results, threads = [], []
    for _ in range(N_STREAMS):
        threads.append(threading.Thread(target=lambda: results.append(gaps(target)[1:])))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return [gap for one in results for gap in one]


def p99(values):
    return sorted(values)[int(len(values) * 0.99)] * 1000 if values else 0.0


@attack("grammars", limit_s=300, soak=False)
def grammar_bombs(target):
    """More than forty schemas, expressions and grammars made to cost, one after the other and always new: each is
    refused or begins to answer at once, and the gaps of streams beside them stay as they were."""
    known = bombs()
    target.claim(len(known) >= 40, f"{len(known)} bombs")
    statuses, slowest = {}, (0.0, -1)
    for n, bomb in enumerate(known):
        answer = target.chat("Hello", max_tokens=1, **bomb)
        statuses[answer.status] = statuses.get(answer.status, 0) + 1
        slowest = max(slowest, (answer.seconds, n))
        if answer.status not in (200, 400, 413):
            target.claim(False, f"bomb {n}: {answer.status} {answer.code}")
    target.claim(set(statuses) <= {200, 400, 413}, f"statuses {statuses}, slowest {slowest[0]:.2f} s (bomb {slowest[1]})")
    quiet, beside, n_sent = [], [], 0
    for _ in range(N_ROUNDS):
        quiet += streams(target)
        stop = threading.Event()

        def send():
            nonlocal n_sent
            while not stop.is_set():
                n_sent += 1
                target.chat("Hello", max_tokens=1, **unlike(known[n_sent % len(known)], n_sent))

        sender = threading.Thread(target=send)
        sender.start()
        beside += streams(target)
        stop.set()
        sender.join()
    before, during = p99(quiet), p99(beside)
    target.claim(
        during <= MAX_RATIO * before + SLACK_MS,
        f"p99 of {len(beside)} gaps {during:.1f} ms beside {n_sent} bombs, {before:.1f} ms without",
    )
