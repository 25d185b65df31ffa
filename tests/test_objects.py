"""Models from buckets and web servers: `throng pull`, `inspect` and `serve` over a real S3 server (moto's) and plain HTTP and HTTPS ones."""

import hashlib
import http.server
import os
import re
import ssl
import subprocess
import threading
from pathlib import Path

import pytest
from certificates import self_signed

STARTER = Path(__file__).resolve().parent.parent / "starter/models/throng-starter.gguf"


def run(binary, *arguments, cache, environment=None):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("THRONG_", "HF_", "AWS_"))}
    return subprocess.run(
        [binary, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**clean, "HF_HOME": str(cache), **(environment or {})},
    )


def pull(binary, url, **options):
    done = run(binary, "pull", url, **options)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


class Handler(http.server.BaseHTTPRequestHandler):
    """Files with entity tags and ranges; what a server does with them is set for each."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(with_body=False)

    def do_GET(self):
        self.answer(with_body=True)

    def answer(self, with_body):
        shelf = self.server.shelf
        with shelf.lock:
            shelf.asked.append((self.path, dict(self.headers)))
        if target := shelf.redirects.get(self.path):
            self.send_response(302)
            self.send_header("location", target)
            self.send_header("content-length", "0")
            self.end_headers()
            return
        content = shelf.files.get(self.path)
        if content is None:
            self.send_response(404)
            self.send_header("content-length", "0")
            self.end_headers()
            return
        tag = '"' + hashlib.md5(content).hexdigest() + '"'
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        if self.headers.get("if-match") not in (None, tag):
            self.send_response(412)
            self.send_header("content-length", "0")
            self.end_headers()
            return
        body = content
        if wanted and shelf.knows_ranges:
            first, last = int(wanted[1]), min(int(wanted[2]), len(content) - 1)
            body = content[first : last + 1]
            self.send_response(206)
            self.send_header("content-range", f"bytes {first}-{last}/{len(content)}")
            with shelf.lock:
                shelf.ranges.append((self.path, first))
        else:
            self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.send_header("etag", tag)
        self.send_header("last-modified", "Tue, 24 Nov 2026 00:00:00 GMT")
        self.end_headers()
        if not with_body:
            return
        with shelf.lock:
            is_broken = shelf.breaks_after is not None and shelf.n_whole >= shelf.breaks_after
            shelf.n_whole += not is_broken
        if is_broken:
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
            return
        self.wfile.write(body)


class Shelf:
    """A web server with these files."""

    def __init__(self, files, knows_ranges=True, tls=None):
        self.files, self.knows_ranges = files, knows_ranges
        self.asked, self.redirects = [], {}
        self.n_whole = 0
        self.ranges, self.breaks_after, self.lock = [], None, threading.Lock()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.shelf = self
        scheme = "http"
        if tls:
            scheme = "https"
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.url = f"{scheme}://localhost:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def large_file():
    """Five parts of 8 MiB, of which no two are equal."""
    block = hashlib.shake_256(b"a model of no use").digest(1 << 20)
    return b"".join(number.to_bytes(4) + block[4:] for number in range(36)) + b"end"


@pytest.fixture(scope="module")
def bucket():
    boto3 = pytest.importorskip("boto3", reason="boto3 is not installed")
    moto = pytest.importorskip("moto.server", reason="moto is not installed")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    environment = {
        "AWS_ENDPOINT": f"http://{host}:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }
    client = boto3.client(
        "s3", endpoint_url=environment["AWS_ENDPOINT"], region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
    )
    client.create_bucket(Bucket="models")
    yield client, environment
    server.stop()


def test_a_model_of_a_bucket_is_served(binary, bucket, tmp_path):
    client, environment = bucket
    client.put_object(Bucket="models", Key="starter/model.gguf", Body=STARTER.read_bytes())
    client.put_object(Bucket="models", Key="starter/README.md", Body=b"not needed")
    options = {"cache": tmp_path, "environment": environment}
    path = pull(binary, "s3://models/starter/", **options)
    assert path.read_bytes() == STARTER.read_bytes() and not (path.parent / "README.md").exists()
    assert pull(binary, "s3://models/starter/model.gguf", **options).read_bytes() == STARTER.read_bytes()
    inspected = run(binary, "inspect", "s3://models/starter/", **options)
    assert inspected.returncode == 0 and "parameters" in inspected.stdout, inspected.stderr
    generated = run(binary, "generate", "s3://models/starter/", "--prompt", "The sea", "--max-tokens", "4", **options)
    assert generated.returncode == 0 and generated.stdout.strip(), generated.stderr
    # Another version is another folder; without a network the newest complete one is used.
    client.put_object(Bucket="models", Key="starter/model.gguf", Body=STARTER.read_bytes() + b"\0")
    second = pull(binary, "s3://models/starter/", **options)
    assert second != path and path.exists()
    offline = {**environment, "AWS_ENDPOINT": "http://127.0.0.1:1", "HF_HUB_OFFLINE": "1"}
    assert pull(binary, "s3://models/starter/", cache=tmp_path, environment=offline) == second
    missing = run(binary, "pull", "s3://models/nothing/", **options)
    assert missing.returncode == 1 and "nothing is there" in missing.stderr, missing.stderr


def test_shards_are_those_of_the_index(binary, bucket, tmp_path):
    client, environment = bucket
    index = b'{"metadata": {}, "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}'
    files = {"config.json": b"{}", "model.safetensors.index.json": index, "unused-00001-of-00009.safetensors": b"unused"}
    shards = {f"model-0000{n}-of-00002.safetensors": bytes(n) for n in (1, 2)}
    for name, content in {**files, **shards}.items():
        client.put_object(Bucket="models", Key=f"sharded/{name}", Body=content)
    folder = pull(binary, "s3://models/sharded", cache=tmp_path, environment=environment)
    assert sorted(file.name for file in folder.iterdir()) == sorted([*shards, "config.json", "model.safetensors.index.json"])
    with Shelf({f"/m/{name}": content for name, content in {**files, **shards}.items()}) as shelf:
        folder = pull(binary, shelf.url + "/m", cache=tmp_path)
        assert sorted(file.name for file in folder.iterdir()) == sorted([*shards, "config.json", "model.safetensors.index.json"])
        del shelf.files["/m/model-00002-of-00002.safetensors"]
        broken = run(binary, "pull", shelf.url + "/m", cache=tmp_path / "other")
        assert broken.returncode == 1 and "model-00002-of-00002.safetensors" in broken.stderr


def test_an_encoder_comes_with_its_modules(binary, bucket, tmp_path):
    client, environment = bucket
    modules = b'[{"path": "", "type": "a.Transformer"}, {"path": "1_Pooling", "type": "a.Pooling"}]'
    files = {"config.json": b"{}", "model.safetensors": b"w", "modules.json": modules, "1_Pooling/config.json": b"{}"}
    for name, content in files.items():
        client.put_object(Bucket="models", Key=f"encoder/{name}", Body=content)
    with Shelf({f"/e/{name}": content for name, content in files.items()}) as shelf:
        for url in ("s3://models/encoder", shelf.url + "/e"):
            folder = pull(binary, url, cache=tmp_path, environment=environment)
            found = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
            assert found == sorted(files), url


def test_an_interrupted_transfer_goes_on(binary, tmp_path):
    content = large_file()
    with Shelf({"/large.gguf": content}) as shelf:
        # Parts come in parallel; some are complete when the server breaks off.
        shelf.breaks_after = 3
        broken = run(binary, "pull", shelf.url + "/large.gguf", cache=tmp_path)
        assert broken.returncode == 1 and "large.gguf" in broken.stderr, broken.stderr
        n_before = len(shelf.ranges)
        shelf.breaks_after = None
        path = pull(binary, shelf.url + "/large.gguf", cache=tmp_path)
        assert path.read_bytes() == content
        n_parts = -(-len(content) // (8 << 20))
        assert 0 < len(shelf.ranges) - n_before < n_parts, "what was complete is not asked for again"
        assert [file.name for file in path.parent.iterdir()] == ["large.gguf"]
        shelf.ranges.clear()
        pull(binary, shelf.url + "/large.gguf", cache=tmp_path)
        assert shelf.ranges == []
    # The server has gone; the cache has the model.
    assert pull(binary, shelf.url + "/large.gguf", cache=tmp_path) == path


def test_a_server_without_ranges_is_read_whole(binary, tmp_path):
    content = large_file()
    with Shelf({"/large.gguf": content}, knows_ranges=False) as shelf:
        assert pull(binary, shelf.url + "/large.gguf", cache=tmp_path).read_bytes() == content


def test_digests_are_compared(binary, tmp_path):
    content = STARTER.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    with Shelf({"/m.gguf": content, "/SHA256SUMS": f"{digest}  m.gguf\n".encode()}) as shelf:
        pull(binary, f"{shelf.url}/m.gguf#sha256={digest}", cache=tmp_path)
        wrong = run(binary, "pull", f"{shelf.url}/m.gguf#sha256={'0' * 64}", cache=tmp_path)
        assert wrong.returncode == 1 and digest in wrong.stderr, wrong.stderr
        shelf.files["/SHA256SUMS"] = f"{'0' * 64}  m.gguf\n".encode()
        wrong = run(binary, "pull", f"{shelf.url}/m.gguf", cache=tmp_path / "other")
        assert wrong.returncode == 1 and digest in wrong.stderr, wrong.stderr
        assert not list((tmp_path / "other").rglob("m.gguf"))


def test_https_is_checked(binary, tmp_path):
    certificate, key = self_signed(tmp_path, "localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with Shelf({"/m.gguf": STARTER.read_bytes()}, tls=context) as shelf:
        trusting = {"SSL_CERT_FILE": str(certificate)}
        path = pull(binary, shelf.url + "/m.gguf", cache=tmp_path / "cache", environment=trusting)
        assert path.read_bytes() == STARTER.read_bytes()
        refused = run(binary, "pull", shelf.url + "/m.gguf", cache=tmp_path / "other")
        assert refused.returncode == 1 and "cannot get" in refused.stderr, refused.stderr


def test_redirects_stay_with_the_server(binary, tmp_path):
    with Shelf({"/m.gguf": STARTER.read_bytes()}) as shelf, Shelf({"/m.gguf": STARTER.read_bytes()}) as other:
        shelf.redirects = {
            "/latest.gguf": "/m.gguf",
            "/elsewhere.gguf": other.url + "/m.gguf",
            "/metadata.gguf": "http://169.254.169.254/latest/meta-data",
            "/round.gguf": "/round.gguf",
        }
        assert pull(binary, shelf.url + "/latest.gguf", cache=tmp_path).read_bytes() == STARTER.read_bytes()
        for name, words in (
            ("elsewhere", f"redirects to {other.url}"),
            ("metadata", "redirects to http://169.254.169.254"),
            ("round", "redirects more than 5 times"),
        ):
            refused = run(binary, "pull", f"{shelf.url}/{name}.gguf", cache=tmp_path / "other")
            assert refused.returncode == 1 and words in refused.stderr, refused.stderr
        assert other.asked == []


def test_what_is_sent_to_a_bucket_is_sent_to_no_other_host(binary, tmp_path):
    with Shelf({}) as bucket, Shelf({"/m.gguf": STARTER.read_bytes()}) as other:
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_SESSION_TOKEN": "secret-token"}
        environment = {"AWS_ENDPOINT": bucket.url, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1", **keys}

        class Everything(dict):
            def get(self, path, default=None):
                return other.url + path

        bucket.redirects = Everything()
        refused = run(binary, "pull", "s3://models/x", cache=tmp_path, environment=environment)
        assert refused.returncode == 1 and f"redirects to {other.url}" in refused.stderr, refused.stderr
        assert bucket.asked and other.asked == []
