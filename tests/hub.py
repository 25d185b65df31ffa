"""A hub of models on this machine, as far as Throng asks one, for downloads in tests."""

import contextlib
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextlib.contextmanager
def running(repository, files):
    """The address of a hub with one repository of these files, which are bytes by name."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            path = self.path.split("?")[0]
            if path.startswith(f"/api/models/{repository}/revision/") or path == f"/api/models/{repository}":
                listed = {"sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
                return self.answer(200, json.dumps(listed).encode(), {"content-type": "application/json"})
            name = path.removeprefix(f"/{repository}/resolve/{COMMIT}/")
            if path == f"/{repository}/resolve/{COMMIT}/{name}" and name in files:
                return self.send_file(files[name])
            return self.answer(404, b"", {})

        do_HEAD = do_GET

        def send_file(self, content):
            headers = {"etag": f'"{hashlib.sha256(content).hexdigest()}"', "x-repo-commit": COMMIT, "accept-ranges": "bytes"}
            wanted = self.headers.get("range")
            if not wanted:
                return self.answer(200, content, headers)
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            first, last = int(first), min(int(last or len(content) - 1), len(content) - 1)
            headers["content-range"] = f"bytes {first}-{last}/{len(content)}"
            return self.answer(206, content[first : last + 1], headers)

        def answer(self, status, body, headers):
            self.send_response(status)
            for key, value in {"content-length": str(len(body)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
