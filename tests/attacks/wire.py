"""Raw sockets: connecting with a small window, writing requests byte by byte, resetting. Knows no attack."""

import contextlib
import http.client
import json
import socket
import struct
import time

from attack import Answer


def connect(target, receive_buffer=None, timeout=30):
    """A TCP connection to the server, with a small receive buffer if asked for."""
    s = socket.socket()
    if receive_buffer:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    s.settimeout(timeout)
    s.connect((target.host, target.port))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


def head(target, method="POST", path="/v1/chat/completions", length=None, **fields):
    """The head of a request."""
    fields = target.fields(**fields)
    if length is not None:
        fields["content-length"] = length
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def post(target, document, path="/v1/chat/completions", **fields):
    """A whole request with a JSON body."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return head(target, path=path, length=len(body), **fields) + body


def read_answer(s, timeout=30):
    """Reads one answer; status 0 if the connection was closed or timed out instead."""
    s.settimeout(timeout)
    started = time.monotonic()
    answer = http.client.HTTPResponse(s)
    try:
        answer.begin()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, headers, answer.read(), time.monotonic() - started)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Answer(0, {}, repr(error).encode(), time.monotonic() - started)


def reset(s):
    """Closes a socket with a reset instead of a FIN."""
    with contextlib.suppress(OSError):
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def is_closed(s, timeout=1.0):
    """Whether the peer closes within that time; data that it still sends is read and dropped."""
    end = time.monotonic() + timeout
    with contextlib.suppress(OSError):
        while (left := end - time.monotonic()) > 0:
            s.settimeout(left)
            if not s.recv(65536):
                return True
        return False
    try:
        s.settimeout(0)
        return s.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def send_slowly(s, data):
    """Sends as much as fits into the socket; returns whether the peer still accepts bytes."""
    try:
        s.sendall(data)
        return True
    except OSError:
        return False
