"""Bodies that are large, deeply nested, slow, or split into very many chunks."""

import json
import time

from attack import attack, chat
from wire import connect, head, is_closed, post, read_answer, reset

LIMIT = 8 << 20
FILL = LIMIT - 2000
# 20 ms for each MB, with a margin for a busy machine.
MAX_PARSE_S = 1.5


def filled(item, n_bytes=FILL):
    """As many items, separated by commas, as fit."""
    return b",".join([item] * (n_bytes // (len(item) + 1)))


def with_field(name, value):
    """A valid body of a chat with one more field, whose value is raw JSON."""
    return json.dumps(chat(max_tokens=1)).encode()[:-1] + b',"' + name.encode() + b'":' + value + b"}"


def with_message(message):
    """A chat whose first message is raw JSON."""
    start = b'{"model":"throng-starter","max_tokens":1,"messages":['
    return start + message + b',{"role":"user","content":"Hello!"}]}'


def tool_calls(arguments):
    call = b'{"id":"c","type":"function","function":{"name":"f","arguments":' + arguments + b"}}"
    return with_message(b'{"role":"assistant","content":null,"tool_calls":[' + call + b"]}")


def conversation_of_calls(arguments, n_calls=16, n_bytes=FILL):
    """As many calls as fit, each within its own limit and each with its reply."""
    messages, size, n = [], 0, 0
    while True:
        ids = [b"%d_%d" % (n, i) for i in range(n_calls)]
        calls = b",".join(
            b'{"id":"%s","type":"function","function":{"name":"f","arguments":%s}}' % (one, arguments) for one in ids
        )
        replies = [b'{"role":"tool","tool_call_id":"%s","content":"x"}' % one for one in ids]
        more = b",".join([b'{"role":"assistant","content":null,"tool_calls":[' + calls + b"]}", *replies])
        size, n = size + len(more) + 1, n + 1
        if size > n_bytes:
            return with_message(b",".join(messages))
        messages.append(more)


def nesting_bodies():
    """One body of nearly 8 MB for each field that holds JSON or text of the client's choice."""
    text = b'"' + b"x" * FILL + b'"'
    quoted = json.dumps("[" + ",".join(["0"] * (FILL // 2)) + "]").encode()
    numbers = b"[" + filled(b"0") + b"]"
    member = b'{"a":0}'
    return {
        "arguments, one text": tool_calls(text),
        "arguments, JSON in a text": tool_calls(quoted),
        "arguments, an array": tool_calls(numbers),
        "arguments of many calls": conversation_of_calls(
            json.dumps('{"a":[' + ",".join(['{"a":0}'] * 3300) + "]}").encode()
        ),
        "arguments of small calls": conversation_of_calls(json.dumps('{"a":[' + "{}," * 300 + "0]}").encode(), 100),
        "arguments that are trees": conversation_of_calls(b"[" + b",".join([member] * 3300) + b"]"),
        "tools": with_field(
            "tools", b"[" + filled(b'{"type":"function","function":{"name":"f","parameters":{}}}') + b"]"
        ),
        "tool parameters": with_field(
            "tools", b'[{"type":"function","function":{"name":"f","parameters":{"a":[' + filled(member) + b"]}}}]"
        ),
        "template variables": with_field("chat_template_kwargs", b'{"a":[' + filled(member) + b"]}"),
        "documents": with_field("documents", b"[" + filled(b'{"text":"a"}') + b"]"),
        "response_format": with_field("response_format", b'{"type":"text","json_schema":[' + filled(member) + b"]}"),
        "logit_bias": with_field("logit_bias", b"{" + b",".join(b'"%d":1' % i for i in range(600_000)) + b"}"),
        "metadata": with_field("metadata", b'{"a":[' + filled(member) + b"]}"),
        "bad_words": with_field("bad_words", b"[" + filled(b'"aaaa"') + b"]"),
        "stop": with_field("stop", b"[" + filled(b'"a"') + b"]"),
        "stop_token_ids": with_field("stop_token_ids", numbers),
        "allowed_token_ids": with_field("allowed_token_ids", numbers),
        "content parts": with_message(b'{"role":"user","content":[' + filled(b'{"type":"text","text":"a"}') + b"]}"),
        "content": with_message(b'{"role":"user","content":' + text + b"}"),
        "an unknown key": with_field("unknown", b"[" + filled(member) + b"]"),
        "user": with_field("user", text),
        "messages": with_message(filled(b'{"role":"user","content":""}')),
    }


@attack("bodies")
def nested_fields(target):
    """8 MB in each field that nests JSON or text, one after the other: answered quickly, and without much memory."""
    slow, strange = [], []
    for name, body in nesting_bodies().items():
        body = body[:LIMIT] if len(body) <= LIMIT else body
        answer = target.ask("/v1/chat/completions", body=body)
        if answer.seconds > MAX_PARSE_S:
            slow.append(f"{name} {answer.seconds:.1f} s")
        if answer.status not in (200, 400, 413):
            strange.append(f"{name} {answer.status}")
    target.claim(not slow, f"bodies of 8 MB slower than {MAX_PARSE_S} s: {', '.join(slow) or 'none'}")
    target.claim(not strange, f"answers that are neither 200, 400 nor 413: {', '.join(strange) or 'none'}")


@attack("bodies")
def tool_call_arguments(target):
    """One body of 8 MB of tool-call arguments, each call below its own limit."""
    answer = target.ask("/v1/chat/completions", body=nesting_bodies()["arguments of many calls"])
    target.claim(answer.seconds <= MAX_PARSE_S, f"{answer.status} in {answer.seconds:.2f} s (at most {MAX_PARSE_S})")


@attack("bodies", is_load=True, limit_s=60)
def ignored_keys_that_wait(target):
    """200 requests that wait for a place, each with 8 MB under an ignored key."""
    value = b'"' + b"x" * FILL + b'"'
    body = json.dumps(chat(max_tokens=300, ignore_eos=True, n=2)).encode()[:-1] + b',"ignored":' + value + b"}"
    request = post(target, body)
    sockets = []
    for _ in range(target.times(200)):
        s = connect(target)
        s.sendall(request)
        sockets.append(s)
    time.sleep(1)
    for s in sockets:
        reset(s)


@attack("bodies")
def bodies_that_never_end(target):
    """100 bodies of 8 MB stop one byte before their end."""
    sockets = []
    for _ in range(target.times(100)):
        s = connect(target)
        s.settimeout(3)
        try:
            s.sendall(head(target, length=FILL) + b"[" * (FILL - 1))
        except OSError:
            pass
        sockets.append(s)
    time.sleep(1)
    for s in sockets:
        reset(s)


@attack("bodies")
def dripping_bodies(target):
    """500 bodies arrive one byte at a time."""
    sockets = [connect(target) for _ in range(target.times(500))]
    for s in sockets:
        s.sendall(head(target, length=100_000))
    for _ in range(int(6 * target.intensity) + 1):
        for s in sockets:
            try:
                s.sendall(b"[")
            except OSError:
                pass
        time.sleep(1)
    for s in sockets:
        reset(s)


@attack("bodies")
def tiny_chunks(target):
    """100,000 chunks of one byte, and chunks whose extensions are longer than their data."""
    text = json.dumps(chat("x" * 100_000, max_tokens=1)).encode()
    for what, extension in (("chunks of one byte", b""), ("chunks with extensions", b";a=" + b"b" * 200)):
        s = connect(target)
        data = b"".join(b"1" + extension + b"\r\n%c\r\n" % byte for byte in text) + b"0\r\n\r\n"
        try:
            s.sendall(head(target, transfer_encoding="chunked") + data)
        except OSError:
            pass
        answer = read_answer(s, 10)
        closed = is_closed(s, 2)
        # A client that is still sending may lose the answer to a reset; a closed connection is enough then.
        ok = (answer.status == 400 or answer.status == 0) and closed
        target.claim(ok, f"100,000 {what}: {answer.status or 'no answer'}, {'closed' if closed else 'left open'}")


@attack("bodies", quick=True)
def deep_json(target):
    """JSON nested 4,000,000 deep, in several places, closed and not."""
    deep = b"[" * 4_000_000
    bodies = [
        deep,
        deep + b"]" * 4_000_000,
        b'{"a":' * 1_000_000,
        with_field("tools", b"[" * 65 + b"]" * 65),
        with_field("chat_template_kwargs", b'{"a":' * 3000 + b"1" + b"}" * 3000),
    ]
    statuses = [target.ask("/v1/chat/completions", body=body).status for body in bodies]
    target.claim(set(statuses) <= {400, 413}, f"deep bodies: {statuses}")


@attack("bodies")
def lists_at_their_limits(target):
    """10,000 messages, 1,024 biases, 1,024 bad words, 16 stop strings that nearly match: valid, and must be cheap."""
    token_ids = [str(i) for i in range(1000)]
    requests = {
        "10,000 messages": chat(messages=[{"role": "user", "content": ""}] * 10_000),
        "1,000 biases": chat(logit_bias=dict.fromkeys(token_ids, -100), max_tokens=64),
        "1,024 bad words": chat(bad_words=[f"word {i} " * 50 for i in range(1024)], max_tokens=64),
        "stops that nearly match": chat(stop=["a" * i + "b" for i in (1000, 900, 800, 700)], max_tokens=64),
        "stops like patterns": chat(stop=["(a+)+$", "[[[[", "\\", ".*.*.*.*"], max_tokens=64),
        "all allowed": chat(allowed_token_ids=list(range(400)) * 100, max_tokens=64),
    }
    for what, asked in requests.items():
        answer = target.ask("/v1/chat/completions", asked)
        target.claim(
            answer.status in (200, 400) and answer.seconds < 5, f"{what}: {answer.status} in {answer.seconds:.2f} s"
        )


@attack("bodies")
def announced_and_left(target):
    """2,000 clients announce 8 MB, send a little, and disconnect in different ways."""
    for _ in range(target.times(2000)):
        s = connect(target)
        s.sendall(head(target, length=FILL) + b" " * target.random.choice((0, 1, 5000, 60_000)))
        if target.random.random() < 0.5:
            reset(s)
        else:
            s.close()
