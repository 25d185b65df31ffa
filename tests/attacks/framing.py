"""HTTP/1.1 requests whose end is ambiguous, and floods of small requests."""

import json
import socket
import time

from attack import attack, chat
from wire import connect, head, is_closed, post, read_answer, reset

BODY = json.dumps(chat(max_tokens=1)).encode()


def ambiguous(target):
    """Requests for which parsers disagree about the end: bytes, by name."""
    n = len(BODY)
    host = f"Host: {target.host}:{target.port}\r\n"
    key = f"Authorization: Bearer {target.key}\r\n" if target.key else ""
    start = f"POST /v1/chat/completions HTTP/1.1\r\n{host}{key}Content-Type: application/json\r\n".encode()
    chunked = b"%x\r\n" % n + BODY + b"\r\n0\r\n\r\n"
    length = b"Content-Length: %d\r\n" % n
    coding = b"Transfer-Encoding: chunked\r\n"
    return {
        "CL and TE": start + length + coding + b"\r\n" + chunked,
        "TE and CL": start + coding + length + b"\r\n" + chunked,
        "two equal CL": start + length + length + b"\r\n" + BODY,
        "two different CL": start + length + b"Content-Length: 5\r\n\r\n" + BODY,
        "CL as a list": start + b"Content-Length: %d, %d\r\n\r\n" % (n, n) + BODY,
        "CL with a sign": start + b"Content-Length: +%d\r\n\r\n" % n + BODY,
        "CL in hex": start + b"Content-Length: 0x%x\r\n\r\n" % n + BODY,
        "CL negative": start + b"Content-Length: -1\r\n\r\n" + BODY,
        "CL overflow": start + b"Content-Length: 18446744073709551616\r\n\r\n" + BODY,
        "CL empty": start + b"Content-Length:\r\n\r\n" + BODY,
        "TE unknown": start + b"Transfer-Encoding: evil\r\n\r\n" + chunked,
        "TE chunked, identity": start + b"Transfer-Encoding: chunked, identity\r\n\r\n" + chunked,
        "TE gzip, chunked": start + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + chunked,
        "TE twice": start + coding + coding + b"\r\n" + chunked,
        "TE with a tab": start + b"Transfer-Encoding:\x0bchunked\r\n\r\n" + chunked,
        "space before colon": start + b"Content-Length : %d\r\n\r\n" % n + BODY,
        "folded field": start + b"X-A: b\r\n c\r\n" + length + b"\r\n" + BODY,
        "bare LF": (start + length + b"\r\n").replace(b"\r\n", b"\n") + BODY,
        "bare LF in one field": start.replace(b"json\r\n", b"json\n") + length + b"\r\n" + BODY,
        "bare CR": start + b"X-A: b\rc\r\n" + length + b"\r\n" + BODY,
        "zero byte": start + b"X-A: b\x00c\r\n" + length + b"\r\n" + BODY,
        "chunk size with a sign": start + coding + b"\r\n+" + chunked,
        "chunk size in 0x": start + coding + b"\r\n0x" + chunked,
        "chunk size overflow": start + coding + b"\r\n1" + b"0" * 16 + b"\r\n" + BODY,
        "chunk without CRLF": start + coding + b"\r\n%x\r\n" % n + BODY + b"0\r\n\r\n",
        "chunk with bare LF": start + coding + b"\r\n%x\n" % n + BODY + b"\n0\n\n",
        "no host": start.replace(host.encode(), b"") + length + b"\r\n" + BODY,
        "two hosts": start + host.encode() + length + b"\r\n" + BODY,
        "HTTP/1.0 with TE": start.replace(b"HTTP/1.1", b"HTTP/1.0") + coding + b"\r\n" + chunked,
        "HTTP/3.7": start.replace(b"HTTP/1.1", b"HTTP/3.7") + length + b"\r\n" + BODY,
        "two spaces": start.replace(b"POST /", b"POST  /") + length + b"\r\n" + BODY,
        "garbage": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n\r\n" * 4,
    }


@attack("framing", quick=True)
def ambiguous_ends(target):
    """Each request with ambiguous framing gets 400 (or 501, 505), is closed, and a smuggled request after it is never
    answered."""
    for what, data in ambiguous(target).items():
        s = connect(target)
        # A second request is hidden after the first; an answer to it means that the first one's end was parsed wrongly.
        hidden = head(target, "GET", "/v1/models/hidden")
        try:
            s.sendall(data + hidden)
        except OSError:
            pass
        answer = read_answer(s, 4)
        closed = is_closed(s, 2)
        ok = answer.status in (400, 501, 505) and closed
        text = f"{what}: {answer.status or 'no answer'}, {'closed' if closed else 'left open'}"
        if ok and not (answer.code and answer.headers.get("x-request-id")):
            ok, text = False, text + ", without our JSON error and x-request-id"
        if not ok:
            target.claim(False, text)
        s.close()


@attack("framing")
def large_heads(target):
    """Heads past the limits: fields, names, values, paths; the answers are typed."""
    start = head(target, "GET", "/health")[:-2]
    heads = {
        "200 fields": (start + b"".join(b"x-%d: y\r\n" % n for n in range(200)), (431,)),
        "5,000 fields": (start + b"".join(b"x-%d: y\r\n" % n for n in range(5000)), (431, 400)),
        "one value of 60 KB": (start + b"x: " + b"y" * 60_000 + b"\r\n", (431,)),
        "a name of 60 KB": (start + b"x" * 60_000 + b": y\r\n", (431, 400)),
        "a name of 1 MB": (start + b"x" * 1_000_000 + b": y\r\n", (431, 400)),
        "a path of 10 KB": (start.replace(b"/health", b"/" + b"a" * 10_000), (414,)),
        "a path of 100 KB": (start.replace(b"/health", b"/" + b"a" * 100_000), (414, 431)),
        "a method of 10 KB": (start.replace(b"GET", b"G" * 10_000), (400, 405, 431, 501)),
        "/v1/models/%ff": (start.replace(b"/health", b"/v1/models/%ff"), (400, 404)),
        "/v1/models/%00": (start.replace(b"/health", b"/v1/models/%00"), (400, 404)),
        "a raw byte in the path": (start.replace(b"/health", b"/v1/models/\xff"), (400, 404)),
        "/v1/../metrics": (start.replace(b"/health", b"/v1/../metrics"), (404,)),
        "websocket": (
            start + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n",
            (200, 400, 426),
        ),
        "h2c": (start + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n", (200, 400)),
        "expect": (start + b"Expect: evil\r\n", (200, 400, 417)),
    }
    for what, (data, allowed) in heads.items():
        s = connect(target)
        try:
            s.sendall(data + b"\r\n")
        except OSError:
            pass
        answer = read_answer(s, 4)
        typed = answer.status == 200 or (answer.code and answer.headers.get("x-request-id"))
        # A client that is still sending the head may lose the answer to the reset; a closed connection is enough then.
        ok = answer.status in allowed and typed or (answer.status == 0 and len(data) > 64_000)
        if not ok:
            shown = "typed" if typed else f"not our JSON: {answer.body[:60]!r}"
            target.claim(False, f"{what}: {answer.status or 'no answer'}, {shown} (expected {allowed})")
        s.close()


@attack("framing")
def pipelining(target):
    """1,000 requests in one write: answered in order, a bounded number at a time."""
    s = connect(target)
    n = 1000
    requests = b"".join(head(target, "GET", "/health/live", x_request_id=f"n{i}") for i in range(n))
    s.sendall(post(target, chat(max_tokens=50, ignore_eos=True), x_request_id="first") + requests)
    answers, data = 0, b""
    s.settimeout(10)
    ids = []
    while answers < n + 1:
        try:
            got = s.recv(1 << 16)
        except OSError:
            break
        if not got:
            break
        data += got
        ids = [part.split(b"\r\n", 1)[0] for part in data.lower().split(b"x-request-id: ")[1:]]
        answers = len(ids)
    in_order = ids == [b"first", *(b"n%d" % i for i in range(n))]
    target.claim(in_order, f"{answers} of {n + 1} pipelined answers, {'in order' if in_order else 'not in order'}")


@attack("framing")
def half_heads(target):
    """1,000 connections with half a head each."""
    sockets = [connect(target) for _ in range(target.times(1000))]
    for s in sockets:
        s.sendall(head(target, "GET", "/health")[: target.random.randrange(1, 40)])
    time.sleep(3 * target.intensity)
    for s in sockets:
        reset(s)


@attack("framing")
def random_bytes(target):
    """2,000 connections send random bytes, or a valid request with some bytes changed."""
    good = post(target, chat(max_tokens=1))
    statuses = {}
    for _ in range(target.times(2000)):
        data = bytearray(good)
        if target.random.random() < 0.3:
            data = bytearray(target.random.randbytes(target.random.randrange(1, 600)))
        for _ in range(target.random.randrange(1, 6)):
            data[target.random.randrange(len(data))] = target.random.randrange(256)
        s = connect(target)
        s.sendall(data)
        try:
            s.shutdown(socket.SHUT_WR)
            status = read_answer(s, 5).status
        except OSError:
            status = 0
        statuses[status] = statuses.get(status, 0) + 1
        s.close()
    bad = {status: n for status, n in statuses.items() if status >= 500 and status not in (501, 505)}
    target.claim(not bad, f"statuses of changed requests: {dict(sorted(statuses.items()))}")
