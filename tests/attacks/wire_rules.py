"""The rules of the API's table of errors, each with a few inputs: status and code must match exactly."""

import json

from attack import attack, chat
from wire import connect, head, read_answer

CALL = {"id": "call-1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USER = {"role": "user", "content": "Hi"}


def said(*messages):
    return chat(messages=list(messages), max_tokens=1)


def assistant(*calls):
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def tool(**more):
    return {"role": "tool", "content": "x", **more}


def raw(more):
    """A valid body with further fields, as text."""
    return (json.dumps(chat(max_tokens=1))[:-1] + "," + more + "}").encode()


# Inputs that must be refused with 400, and the codes that are accepted.
REFUSED = {
    "deeper than 64": (raw('"x":' + "[" * 70 + "]" * 70), {"json_too_deep"}),
    "deeper than 64 in messages": (raw('"messages":' + '[{"a":' * 40 + "1" + "}]" * 40), {"json_too_deep"}),
    "deeper than 10,000": (raw('"x":' + "[" * 20_000 + "]" * 20_000), {"json_too_deep"}),
    "lone high surrogate": (raw('"user":"\\ud800"'), None),
    "lone low surrogate": (raw('"user":"\\udc00"'), None),
    "reversed surrogates": (raw('"user":"\\udc00\\ud800"'), None),
    "a number of 1,000 digits": (raw('"seed":' + "1" * 1000), None),
    "a number out of range": (raw('"temperature":1e400'), None),
    "a text for a flag of stream_options": (
        {**chat(max_tokens=1), "stream": True, "stream_options": {"include_usage": "evil"}},
        None,
    ),
    "empty content list": (said({"role": "user", "content": []}), None),
    "tool message without id": (said(USER, assistant(CALL), tool()), None),
    "tool message, unknown id": (said(USER, assistant(CALL), tool(tool_call_id="other")), None),
    "tool message, repeated id": (
        said(USER, assistant(CALL), tool(tool_call_id="call-1"), tool(tool_call_id="call-1")),
        None,
    ),
    "tool message without calls": (said(USER, tool(tool_call_id="call-1")), None),
    "tool_choice without tools": ({**chat(max_tokens=1), "tool_choice": "auto"}, None),
    "an array as body": (b"[]", None),
    "twice the same key": (raw('"model":"throng-starter"'), {"duplicate_key"}),
    "invalid UTF-8 in an unknown key": (raw('"x":"?"').replace(b"?", b"\xff"), {"invalid_utf8"}),
}


@attack("wire_rules", quick=True)
def bad_bodies(target):
    """Bodies that the API's table refuses, with the codes it lists."""
    n_exact = 0
    for what, (body, codes) in REFUSED.items():
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = target.ask("/v1/chat/completions", body=body)
        ok = answer.status == 400 and answer.code and (codes is None or answer.code in codes)
        n_exact += bool(ok)
        if not ok:
            wanted = f" (expected {'/'.join(sorted(codes))})" if codes else ""
            target.claim(False, f"{what}: {answer.status} {answer.code}{wanted}")
    target.claim(True, f"{n_exact} of {len(REFUSED)} exact")


@attack("wire_rules", quick=True)
def content_types(target):
    """A body that is not declared as JSON in UTF-8 gets 415."""
    body = json.dumps(chat(max_tokens=1)).encode()
    cases = {
        "application/json": 200,
        "application/json; charset=utf-8": 200,
        "Application/JSON;charset=UTF-8": 200,
        "text/plain": 415,
        "application/x-www-form-urlencoded": 415,
        "multipart/form-data; boundary=a": 415,
        "application/json; charset=utf-16": 415,
        "application/json; charset=latin1": 415,
        "application/jsonx": 415,
    }
    for kind, wanted in cases.items():
        answer = target.ask("/v1/chat/completions", body=body, content_type=kind)
        if answer.status != wanted:
            target.claim(False, f"Content-Type {kind}: {answer.status} (expected {wanted})")
    encoded = target.ask("/v1/chat/completions", body=body, content_encoding="gzip")
    target.claim(encoded.status == 415, f"Content-Encoding gzip: {encoded.status} (expected 415)")


@attack("wire_rules", keys=("healthy-key", "attacker-key"), quick=True)
def keys(target):
    """Missing, wrong, duplicate and malformed keys: 401 with WWW-Authenticate, and different codes for missing and
    wrong keys."""
    key, target.key = target.key, None
    missing = target.ask("/v1/models")
    wrong = target.ask("/v1/models", authorization="Bearer wrong")
    for what, answer in (("missing", missing), ("wrong", wrong)):
        ok = answer.status == 401 and "www-authenticate" in answer.headers
        target.claim(
            ok, f"{what} key: {answer.status} {answer.code}, WWW-Authenticate {answer.headers.get('www-authenticate')}"
        )
    target.claim(missing.code != wrong.code, f"missing and wrong differ: {missing.code}, {wrong.code}")
    for value in (
        "Bearer",
        "Bearer ",
        "Basic YTpi",
        f"bearer{key}",
        f"Bearer {key} ,x",
        "Bearer " + "x" * 15_000,
        "Bearer ' OR 1=1 --",
        "Bearer \xe9\xff",
        f"Bearer {key}\t{key}",
    ):
        answer = target.ask("/v1/models", authorization=value)
        if answer.status != 401:
            target.claim(False, f"Authorization {value[:40]!r}: {answer.status} (expected 401)")
    s = connect(target)
    s.sendall(head(target, "GET", "/v1/models", authorization=f"Bearer {key}\r\nAuthorization: Bearer wrong"))
    answer = read_answer(s, 5)
    target.claim(answer.status in (400, 401), f"two Authorization fields: {answer.status}")
    s.close()


@attack("wire_rules")
def every_route(target):
    """Every route with every method and no, empty, invalid and long bodies: no answers of 5xx."""
    paths = list(json.loads(target.ask("/openapi.json").body)["paths"]) + [
        "/",
        "/ui/app.js",
        "/ui/..%2f..%2fetc",
        "//v1/models",
        "/v1/chat/completions/",
        "/V1/models",
        "/v1/models/" + "x" * 5000,
        "/v1/models/a/b/c",
        "/metrics?x=%00",
    ]
    bad = []
    for path in paths:
        path = path.replace("{id}", "throng-starter")
        for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "EVIL"):
            for body in (None, b"", b"{}", b"[" * 1000):
                answer = target.ask(path, body=body, method=method, timeout=10)
                if answer.status >= 500 and answer.status != 501:
                    bad.append(f"{method} {path[:40]} {answer.status}")
    target.claim(not bad, f"answers of 5xx: {', '.join(bad[:5]) or 'none'}")


@attack("wire_rules")
def template_variables(target):
    """Template variables: unused ones are accepted, reserved ones refused, and large ones bounded."""
    answer = target.chat(chat_template_kwargs={"enable_thinking": False})
    target.claim(answer.status == 200, f"enable_thinking, which no template reads: {answer.status} {answer.code or ''}")
    answer = target.chat(chat_template_kwargs={"messages": []})
    target.claim(answer.status == 400, f"a reserved variable: {answer.status}")
    for value in ("x" * 900_000, [0] * 40_000, {f"k{n}": n for n in range(1000)}, 10**18, 1e300):
        answer = target.chat(chat_template_kwargs={"a": value})
        if answer.status not in (200, 400):
            target.claim(False, f"a variable of {len(str(value))} bytes: {answer.status}")
