"""Sends generated requests to a server: each is made from its OpenAPI document and from the table of bad inputs, by a seed and a number.

    python tests/generated_requests.py --throng target/release/throng --requests 100000 --seed 1
    python tests/generated_requests.py --throng target/release/throng --seed 1 --only 4711      # one of them again, shown

No answer may be a server's error (5xx), every answer must be one that the document lists, errors must have the documented form, and the
connection must be usable afterwards unless the server says that it closes it.
"""

import argparse
import collections
import http.client
import json
import random
import re
import string
import sys
import time
import urllib.parse

from documented import Document

GOOD = {"model": "throng-starter", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
# A good request after this many others, on the same connection where it is still open.
GOOD_EVERY = 20
MAX_ECHO_BYTES = 128

BASES = {
    "/v1/chat/completions": GOOD,
    "/v1/completions": {"model": "throng-starter", "prompt": "Hi", "max_tokens": 1},
    "/v1/responses": {"model": "throng-starter", "input": "Hi", "max_output_tokens": 1},
    "/tokenize": {"model": "throng-starter", "prompt": "Hi"},
    "/detokenize": {"model": "throng-starter", "tokens": [1, 2]},
    "/v1/load_lora_adapter": {"lora_name": "a", "lora_path": "/nowhere"},
    "/v1/unload_lora_adapter": {"lora_name": "a"},
}
TEXTS = [
    "", " ", "a", "\x00", "\n\r\t", "é", "日本語", "👩‍👩‍👧", "\ud800", "\ufffe", "<|im_start|>", "</think>", "{{ 1 }}", "{% if %}", "../../etc/passwd",
    "' OR 1=1 --", "%s%n", "x" * 300, "a" * 5000, "\u202e", "null", "0", "http://127.0.0.1/", "file:///etc/passwd", "data:image/png;base64,AAAA",
    "a\r\nset-cookie: b=c",
]
NUMBERS = [
    0, -0.0, 1, -1, 2, 3, 0.5, 1.0, 1e-30, 1e30, -1e30, 2**31, 2**31 - 1, -(2**31), 2**32, 2**53, 2**63, 2**64, -(2**63), 1.5, 100, 101, 128, 129,
    16, 17, 20, 21, 0.1, 2.01, -2.01, 1e308, 5e-324,
]
SCHEMAS = [
    {}, {"type": "object"}, {"type": "unheard of"}, {"enum": []}, {"enum": [1, "a"]}, {"$ref": "#"}, {"$ref": "#/$defs/missing"}, False, True,
    {"$ref": "http://127.0.0.1/"}, {"type": "string", "pattern": "("}, {"type": "string", "pattern": "(a+)+$"}, {"type": "integer", "minimum": 5, "maximum": 4},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False},
    {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, {"allOf": [{"type": "string"}, {"type": "integer"}]}, {"type": ["string", "null"]},
    {"type": "array", "items": {"type": "number"}, "minItems": 3, "maxItems": 2}, {"not": {}}, {"oneOf": [{}, {}]}, {"const": {"a": [1]}},
]
# Rows of the table of bad inputs, as bodies of chats in text: what no object of Python gives.
RAW = [
    b"", b"{", b"[]", b"null", b"1", b'"text"', b"{'model': 1}", b'{"model":"throng-starter",}', b"\xef\xbb\xbf{}", b'{"model":"\xff"}', b'{"\xc3":1}',
    b"{} {}", b"{}\n//", b'{"temperature":NaN}', b'{"temperature":Infinity}', b'{"temperature":1e400}', b'{"model":"a","model":"b"}', b"[" * 300 + b"]" * 300,
    b'{"a":' * 200 + b"1" + b"}" * 200, b'{"messages":"\\ud800"}', b'{"n":01}', b'{"n":+1}', b'{"n":.5}', b"\x00", b"{}\x00", b'{"seed":99999999999999999999}',
]


class Generator:
    """Makes the request with a number: the same for the same document, seed and number."""

    def __init__(self, document, seed):
        self.document, self.seed = document, seed
        self.schemas = document["components"]["schemas"]
        operations = [(path, method) for path, item in document["paths"].items() for method in item if not path.startswith("/admin")]
        # Most of what can go wrong is in bodies.
        self.operations = [one for one in operations for _ in range(12 if one[1] == "post" else 1)]

    def request(self, number):
        """Method, path, headers, body (bytes or None) and the path in the document."""
        self.random = random.Random(f"{self.seed}/{number}")
        known, method = self.pick(self.operations)
        # An empty name would make it another path: a slash at the end means nothing.
        path = re.sub(r"\{[^}]+\}", lambda _: urllib.parse.quote(self.text() or "-", safe="", errors="surrogatepass"), known)
        if self.chance(0.1) or "organization" in path:
            path += "?" + self.query()
        headers, body = {}, None
        if method == "post":
            headers["content-type"] = "application/json"
            body = self.body(known)
            if self.chance(0.02):
                headers["content-type"] = self.pick(["text/plain", "application/json; charset=utf-16", "", "multipart/form-data", "application/JSON"])
            if self.chance(0.01):
                headers["content-encoding"] = self.pick(["gzip", "identity", "br, gzip"])
        if self.chance(0.02):
            headers[self.pick(["accept", "x-request-id", "traceparent", "cache-control", "idempotency-key"])] = self.pick(
                ["text/html", "a" * 300, "00-0-0-0", "no-store", "*/*;q=0", "1"]
            )
        if self.chance(0.02):
            method = self.pick(["get", "put", "delete", "patch", "head", "options"])
        return method.upper(), path, headers, body, known

    def pick(self, list):
        return self.random.choice(list)

    def chance(self, p):
        return self.random.random() < p

    def text(self):
        if self.chance(0.7):
            return self.pick(TEXTS)
        return "".join(self.pick(string.printable + "äß€\u2028") for _ in range(self.random.randint(0, 40)))

    def query(self):
        names = ["start_time", "end_time", "bucket_width", "group_by", "limit", "page", "models", "project_ids", "x"]
        values = ["0", "-1", "1700000000", "99999999999999999999", "1d", "1h", "1m", "model", "project_id", "", "a&b", "%00", "%ff", "é", "next_page_x"]
        pairs = [f"{self.pick(names)}={urllib.parse.quote(self.pick(values), safe='%&')}" for _ in range(self.random.randint(0, 4))]
        return "&".join(pairs)

    def body(self, path):
        if self.chance(0.05):
            return self.pick(RAW)
        name = self.document["paths"][path]["post"].get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {}).get("$ref")
        if name is None:
            return b"{}"
        properties = self.schemas[name.rsplit("/", 1)[1]].get("properties", {})
        body = dict(BASES.get(path, {}))
        for _ in range(self.random.choice([0, 1, 1, 2, 2, 3, 5, 9])):
            field = self.pick(list(properties))
            body[field] = self.value(properties[field], field)
        if self.chance(0.05) and body:
            del body[self.pick(list(body))]
        if self.chance(0.05):
            body[self.text()] = self.anything(3)
        text = json.dumps(body, ensure_ascii=self.chance(0.5)).encode("utf-8", "surrogatepass")
        return self.broken(text) if self.chance(0.05) else text

    def broken(self, text):
        at = self.random.randint(0, len(text))
        return self.pick([
            text[:at], text[:at] + bytes([self.random.randint(0, 255)]) + text[at:], text + b"}", text[:at] + text[at + 1 :], b" " * 1000 + text,
            text[:-1] + b',"model":"twice"}', text.replace(b":", b"=", 1),
        ])

    def value(self, schema, field):
        """Of the schema, at its borders, or of any kind."""
        if field in ("messages",) and self.chance(0.8):
            return self.messages()
        if field in ("tools", "functions") and self.chance(0.8):
            return self.tools()
        if "schema" in field or field in ("response_format", "structured_outputs", "guided_json") and self.chance(0.8):
            return self.form()
        return self.anything(3) if self.chance(0.25) else self.of_schema(schema, 4)

    def of_schema(self, schema, depth):
        options = schema.get("anyOf")
        if options:
            return self.of_schema(self.pick(options), depth)
        if "enum" in schema and self.chance(0.8):
            return self.pick(schema["enum"])
        kind = schema.get("type")
        kind = self.pick(kind) if isinstance(kind, list) else kind
        if kind in ("integer", "number"):
            low, high = schema.get("minimum", schema.get("exclusiveMinimum", -10)), schema.get("maximum", 10)
            near = [low, high, low - 1, high + 1, (low + high) / 2, 1, 2]
            value = self.pick(near if self.chance(0.8) else NUMBERS)
            return int(value) if kind == "integer" and self.chance(0.9) else value
        if kind == "boolean":
            return self.chance(0.5)
        if kind == "string":
            length = schema.get("maxLength")
            return "x" * (length + self.pick([0, 1])) if length and length < 10_000 and self.chance(0.1) else self.text()
        if kind == "array" and depth:
            items = schema.get("items", {})
            return [self.of_schema(items, depth - 1) for _ in range(self.pick([0, 1, 1, 2, 5, 20]))]
        return self.anything(depth)

    def anything(self, depth):
        kinds = ["text", "number", "null", "boolean"] + (["list", "object"] if depth else [])
        match self.pick(kinds):
            case "text":
                return self.text()
            case "number":
                return self.pick(NUMBERS)
            case "null":
                return None
            case "boolean":
                return self.chance(0.5)
            case "list":
                return [self.anything(depth - 1) for _ in range(self.random.randint(0, 4))]
            case _:
                return {self.text(): self.anything(depth - 1) for _ in range(self.random.randint(0, 4))}

    def messages(self):
        def message():
            role = self.pick(["system", "user", "assistant", "tool", "developer", "wizard", "User", 1, None])
            content = self.pick([self.text(), self.text(), None, [], [{"type": "text", "text": self.text()}], [{"type": "image_url", "image_url": {"url": self.text()}}], 5, {}])
            made = {"role": role, "content": content}
            if self.chance(0.2):
                call = {"id": self.text(), "type": "function", "function": {"name": self.text(), "arguments": self.pick(["{}", "{", "", 5, None, self.text()])}}
                made["tool_calls"] = self.pick([[call], [], [call, call], None, 1])
            if self.chance(0.2):
                made[self.pick(["tool_call_id", "name", "reasoning", "x"])] = self.anything(1)
            if self.chance(0.1):
                del made[self.pick(list(made))]
            return made

        return [message() if self.chance(0.95) else self.anything(2) for _ in range(self.pick([0, 1, 1, 1, 2, 3, 6]))]

    def tools(self):
        def tool():
            function = {"name": self.pick(["f", "g", self.text(), "a b", "x" * 65]), "parameters": self.pick(SCHEMAS), "description": self.text()}
            if self.chance(0.3):
                function["strict"] = self.pick([True, False, None, "yes"])
            return {"type": self.pick(["function", "function", "tool"]), "function": function}

        return [tool() for _ in range(self.pick([0, 1, 1, 2, 3]))]

    def form(self):
        schema = self.pick(SCHEMAS)
        return self.pick([
            {"type": "json_schema", "json_schema": {"name": self.pick(["a", self.text()]), "schema": schema, "strict": self.pick([True, False])}},
            {"type": self.pick(["json_object", "text", "structural_tag", "x"])}, schema, {"json": schema}, {"regex": self.pick(["a+", "(", "(a+)+$", "a{1,100000}", "\\d{3}"])},
            {"choice": self.pick([["a", "b"], [], [1], "a"])}, {"grammar": self.pick(['root ::= "a"', "start: /a/", "", "root ::= root"])},
        ])


class Checker:
    """Compares answers with the document."""

    def __init__(self, document):
        self.document = Document(document)

    def faults(self, method, known, body, status, headers, content):
        """What is wrong with an answer."""
        if status >= 500:
            yield f"status {status}"
        if headers.get("x-request-id") is None:
            yield "no x-request-id"
        kind = (headers.get("content-type") or "").split(";")[0]
        if method == "HEAD":
            return
        if status >= 400:
            yield from self.faults_of_error(kind, body, content)
            return
        yield from self.document.faults(method, known, status, kind, content)

    def faults_of_error(self, kind, body, content):
        if kind != "application/json":
            yield f"an error as {kind}"
            return
        answer = json.loads(content)
        error = answer.get("error", {})
        # Ollama's form, and Anthropic's, with the code beside them.
        if isinstance(error, str) and set(answer) == {"error", "code"}:
            return
        if answer.get("type") == "error" and set(error) == {"type", "message", "code"}:
            return
        # llama.cpp's, whose code is the status, with the code as the reason.
        if set(error) == {"code", "message", "type", "param", "reason"} and isinstance(error["code"], int):
            return
        kinds = {"message": str, "type": str, "code": str, "param": (str, type(None))}
        if set(error) != set(kinds) or not all(isinstance(error[name], kind) for name, kind in kinds.items()):
            yield f"an error of another form: {content[:200]}"
        elif len(error["message"].encode()) > 1000 and b"x" * (4 * MAX_ECHO_BYTES) in content:
            yield "it echoes much of the request"


class Connection:
    """One connection, opened again when the server has closed it."""

    def __init__(self, url, headers):
        self.place, self.headers = urllib.parse.urlsplit(url), headers
        self.open()

    def open(self):
        self.http = http.client.HTTPConnection(self.place.hostname, self.place.port, timeout=120)

    def ask(self, method, path, headers, body):
        self.http.putrequest(method, path, skip_accept_encoding=True)
        for name, value in {**self.headers, **headers}.items():
            self.http.putheader(name, value)
        if body is not None or method in ("PUT", "PATCH", "DELETE"):
            self.http.putheader("content-length", str(len(body or b"")))
        self.http.endheaders(body)
        answer = self.http.getresponse()
        content = answer.read()
        if answer.will_close:
            self.http.close()
        return answer.status, answer.headers, content


def run(url, n_requests, seed, key=None, only=None, out=sys.stdout):
    """Sends the requests; the faults that were found, as texts that say how to repeat them."""
    connection = Connection(url, {"authorization": f"Bearer {key}"} if key else {})
    document = json.loads(connection.ask("GET", "/openapi.json", {}, None)[2])
    generator, checker = Generator(document, seed), Checker(document)
    faults, statuses, began = [], collections.Counter(), time.monotonic()
    for number in range(n_requests) if only is None else [only]:
        method, path, headers, body, known = generator.request(number)
        case = f"--seed {seed} --only {number}: {method} {path}"
        if only is not None:
            print(case, headers, body, file=out)
        try:
            status, fields, content = connection.ask(method, path, headers, body)
            found = list(checker.faults(method, known, body, status, fields, content))
        except (OSError, http.client.HTTPException, ValueError) as error:
            status, found = 0, [f"{type(error).__name__}: {error}"]
            connection.open()
        if only is not None:
            print(status, content[:2000], file=out)
        statuses[status] += 1
        if number % GOOD_EVERY == 0:
            good = connection.ask("POST", "/v1/chat/completions", {"content-type": "application/json"}, json.dumps(GOOD).encode())
            if good[0] != 200:
                found.append(f"a good request after it: {good[0]} {good[2][:200]}")
        faults += [f"{case}: {fault}: {(body or b'')[:300]!r}" for fault in found]
    rate = n_requests / max(time.monotonic() - began, 1e-9)
    print(f"seed {seed}: {n_requests} requests, {rate:.0f}/s, statuses {dict(sorted(statuses.items()))}, {len(faults)} faults", file=out)
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--url", help="a server that runs")
    place.add_argument("--throng", help="a binary to start one with")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--only", type=int)
    arguments = parser.parse_args()
    if arguments.url:
        faults = run(arguments.url, arguments.requests, arguments.seed, only=arguments.only)
    else:
        from conftest import Server

        server = Server(arguments.throng, "--max-model-len", "64")
        faults = run(server.url, arguments.requests, arguments.seed, only=arguments.only)
        server.stop()
    for fault in faults[:50]:
        print(fault)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
