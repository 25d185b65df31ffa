"""Writes HTTP/2 frames, valid or not. Knows no attack."""

import json
import struct
import time

from wire import connect

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8
HEADER_TABLE_SIZE, INITIAL_WINDOW = 1, 4


def frame(kind, flags=0, stream=0, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def settings(**values):
    numbers = {"header_table_size": 1, "max_streams": 3, "initial_window": 4, "max_frame": 5, "max_header_list": 6}
    return frame(SETTINGS, payload=b"".join(struct.pack(">HI", numbers[name], n) for name, n in values.items()))


def window(n, stream=0):
    return frame(WINDOW, stream=stream, payload=struct.pack(">I", n))


def number(n, bits, first=0):
    """HPACK's integer."""
    most = (1 << bits) - 1
    if n < most:
        return bytes((first | n,))
    out = bytearray((first | most,))
    n -= most
    while n >= 128:
        out.append(n % 128 | 128)
        n //= 128
    return bytes(out) + bytes((n,))


def text(value):
    value = value if isinstance(value, bytes) else value.encode("latin-1")
    return number(len(value), 7) + value


def field(name, value, indexed=False):
    """A header field as literals, with or without indexing."""
    return (b"\x40" if indexed else b"\x00") + text(name) + text(value)


def fields(target, path="/v1/chat/completions", method="POST", length=None, **more):
    """The header block of a request."""
    block = field(":method", method) + field(":scheme", "http") + field(":path", path)
    block += field(":authority", f"{target.host}:{target.port}") + field("content-type", "application/json")
    if length is not None:
        block += field("content-length", str(length))
    if target.key:
        block += field("authorization", f"Bearer {target.key}")
    return block + b"".join(field(name.replace("_", "-"), value) for name, value in more.items())


def request(target, stream, document=None, **options):
    """HEADERS and, for a document, DATA."""
    if document is None:
        return frame(HEADERS, END_HEADERS | END_STREAM, stream, fields(target, method="GET", **options))
    body = json.dumps(document).encode()
    out = frame(HEADERS, END_HEADERS, stream, fields(target, length=len(body), **options))
    while len(body) > 16_000:
        out += frame(DATA, 0, stream, body[:16_000])
        body = body[16_000:]
    return out + frame(DATA, END_STREAM, stream, body)


def open_connection(target, receive_buffer=None, **values):
    """A connection after the preface and our settings; the server's settings are acknowledged unread."""
    s = connect(target, receive_buffer)
    s.sendall(PREFACE + settings(**values) + frame(SETTINGS, ACK))
    return s


def frames(s, seconds, until=None):
    """The frames that arrive within that time, as (kind, flags, stream, payload), and whether the peer closed the
    connection."""
    found, data, end = [], b"", time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        s.settimeout(left)
        try:
            got = s.recv(1 << 18)
        except TimeoutError:
            break
        except OSError:
            return found, True
        if not got:
            return found, True
        data += got
        while len(data) >= 9 and len(data) >= 9 + (size := int.from_bytes(data[:3], "big")):
            found.append((data[3], data[4], int.from_bytes(data[5:9], "big") & 0x7FFFFFFF, data[9 : 9 + size]))
            data = data[9 + size :]
            if until and until(found[-1]):
                return found, False
    return found, False


def ended(s, seconds):
    """Whether the server sends GOAWAY or closes within that time."""
    found, closed = frames(s, seconds, until=lambda f: f[0] == GOAWAY)
    return closed or any(f[0] == GOAWAY for f in found)


def send_until_closed(s, data, times):
    """Sends the same bytes repeatedly without reading; returns how often the server accepted them."""
    s.settimeout(2)
    for n in range(times):
        try:
            s.sendall(data)
        except OSError:
            return n
    return times
