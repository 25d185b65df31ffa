"""Requests that a foreign web page can make a visitor's browser send."""

import json

from attack import attack, chat
from server import NotStarted, Server
from wire import connect, head, read_answer

BODY = json.dumps(chat(max_tokens=1)).encode()


def sent(target, **fields):
    """Status of a chat with exactly these fields besides the length; a field that is None is left out."""
    host = fields.pop("host", f"{target.host}:{target.port}")
    lines = [
        f"{name.replace('_', '-')}: {value}" for name, value in {"host": host, **fields}.items() if value is not None
    ]
    data = "POST /v1/chat/completions HTTP/1.1\r\n" + "\r\n".join(lines) + f"\r\ncontent-length: {len(BODY)}\r\n\r\n"
    s = connect(target)
    s.sendall(data.encode() + BODY)
    answer = read_answer(s, 10)
    s.close()
    return answer.status


PAGES = {
    "a page's POST without Content-Type": {"origin": "http://evil.example"},
    "a page's POST of text": {"origin": "http://evil.example", "content_type": "text/plain"},
    "a page's POST of a form": {"origin": "http://evil.example", "content_type": "application/x-www-form-urlencoded"},
    "a page's POST of JSON": {"origin": "http://evil.example", "content_type": "application/json"},
    "a sandboxed page": {"origin": "null", "content_type": "application/json"},
}


@attack("browsers", alone=True)
def pages_elsewhere(target):
    """Foreign origins and hosts, on loopback and with --allow-unauthenticated on a public address."""
    for where, arguments in (("loopback", ()), ("public", ("--host", "0.0.0.0", "--allow-unauthenticated"))):
        try:
            server = Server(target.binary, f"{target.folder}/server.log", arguments)
        except NotStarted as error:
            target.claim(False, f"{where}: {error}")
            continue
        target.port, target.pid = server.port, server.pid
        for what, fields in PAGES.items():
            status = sent(target, **fields)
            target.claim(status in (400, 403, 415), f"{where}: {what}: {status}")
        if where == "loopback":
            status = sent(target, host="evil.example", content_type="application/json")
            target.claim(status in (400, 403), f"{where}: a foreign Host: {status}")
            # On a public address, any name may be the server's own.
            host = f"evil.example:{server.port}"
            status = sent(target, host=host, origin=f"http://{host}", content_type="application/json")
            target.claim(status in (400, 403), f"{where}: a page after DNS rebinding: {status}")
        status = sent(target, content_type="application/json")
        target.claim(status == 200, f"{where}: a client without a browser: {status}")
        s = connect(target)
        s.sendall(head(target, "OPTIONS", origin="http://evil.example", access_control_request_method="POST"))
        allowed = read_answer(s, 5).headers.get("access-control-allow-origin")
        target.claim(allowed not in ("*", "http://evil.example"), f"{where}: a preflight is answered with {allowed}")
        server.stop()
