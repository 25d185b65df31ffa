"""Tokens of an identity provider: real signatures, keys from a real JWKS server on loopback, against the real binary."""

import base64
import hashlib
import hmac
import json
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

AUDIENCE = "throng"
PATIENCE_S = 60


KINDS = [
    (rsa.RSAPrivateKey, RSAAlgorithm),
    (ec.EllipticCurvePrivateKey, ECAlgorithm),
    (ed25519.Ed25519PrivateKey, OKPAlgorithm),
]


def public_jwk(key, kid, algorithm):
    kind = next(kind for base, kind in KINDS if isinstance(key, base))
    return {**kind.to_jwk(key.public_key(), as_dict=True), "kid": kid, "alg": algorithm, "use": "sig"}


class Issuer:
    """An issuer with a discovery document and keys that can be exchanged; it can go away and come back on the same port."""

    def __init__(self):
        self.keys = {
            "r1": (rsa.generate_private_key(public_exponent=65537, key_size=2048), "RS256"),
            "e1": (ec.generate_private_key(ec.SECP256R1()), "ES256"),
            "d1": (ed25519.Ed25519PrivateKey.generate(), "EdDSA"),
        }
        self.published = ["r1", "e1", "d1"]
        self.asked = []
        self.port = 0
        self.come()

    def come(self):
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                issuer.asked.append(self.path)
                keys = [public_jwk(issuer.keys[kid][0], kid, issuer.keys[kid][1]) for kid in issuer.published]
                bodies = {
                    "/.well-known/openid-configuration": {"issuer": issuer.url, "jwks_uri": issuer.url + "/keys"},
                    "/keys": {"keys": keys},
                }
                body = bodies.get(self.path)
                self.send_response(200 if body else 404)
                self.send_header("content-type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def go(self):
        self.server.shutdown()
        self.server.server_close()

    def claims(self, **changed):
        now = int(time.time())
        claims = {"iss": self.url, "aud": AUDIENCE, "sub": "ada", "exp": now + 600, "nbf": now - 5, **changed}
        return {name: value for name, value in claims.items() if value is not None}

    def token(self, kid="r1", headers=None, **changed):
        key, algorithm = self.keys[kid]
        return jwt.encode(self.claims(**changed), key, algorithm, headers={"kid": kid, **(headers or {})})


@pytest.fixture(scope="module")
def issuer():
    issuer = Issuer()
    yield issuer
    issuer.go()


@pytest.fixture(scope="module")
def server(start, issuer):
    arguments = ["--jwt-issuer", issuer.url, "--jwt-audience", AUDIENCE, "--api-key", "static", "--admin-key", "operator"]
    with start(*arguments) as server:
        until(lambda: ask(server, issuer.token())[0] == 200)
        yield server


def until(is_so):
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.05)


def ask(server, token, path="/v1/chat/completions", **fields):
    body = {"model": "throng-starter", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, **fields}
    headers = {"authorization": f"Bearer {token}"}
    answer = httpx.post(server.url + path, json=body, headers=headers, timeout=60)
    error = answer.json().get("error") or {}
    return answer.status_code, error.get("code"), error.get("message", "")


def base64_of(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unsigned(claims, algorithm="none"):
    head = {"alg": algorithm, "typ": "JWT", "kid": "r1"}
    return ".".join(base64_of(json.dumps(part).encode()) for part in (head, claims))


def test_valid_tokens_and_keys_pass(server, issuer):
    for kid in ("r1", "e1", "d1"):
        assert ask(server, issuer.token(kid))[0] == 200, kid
    assert ask(server, issuer.token(aud=["other", AUDIENCE]))[0] == 200
    assert ask(server, "static")[0] == 200


def test_every_other_token_is_refused_and_the_reason_is_said(server, issuer):
    now = int(time.time())
    key, other = issuer.keys["r1"][0], rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    message = unsigned(issuer.claims(), "HS256")
    signature = base64_of(hmac.digest(pem, message.encode(), hashlib.sha256))
    valid = issuer.token()
    head, claims, mark = valid.split(".")
    changed = base64_of(json.dumps(issuer.claims(sub="eve")).encode())
    cases = {
        "expired": (issuer.token(exp=now - 120), "token_expired"),
        "without an end": (issuer.token(exp=None), "invalid_api_key"),
        "an end that is a text": (issuer.token(exp="tomorrow"), "invalid_api_key"),
        "valid later": (issuer.token(nbf=now + 600), "invalid_api_key"),
        "a beginning that is a text": (issuer.token(nbf="soon"), "invalid_api_key"),
        "of another issuer": (issuer.token(iss="http://127.0.0.1:1"), "invalid_api_key"),
        "without an issuer": (issuer.token(iss=None), "invalid_api_key"),
        "for another audience": (issuer.token(aud="somebody"), "invalid_api_key"),
        "without an audience": (issuer.token(aud=None), "invalid_api_key"),
        "without a user": (issuer.token(sub=None), "invalid_api_key"),
        "another key's signature": (jwt.encode(issuer.claims(), other, "RS256", headers={"kid": "r1"}), "invalid_api_key"),
        "another algorithm of the key": (jwt.encode(issuer.claims(), key, "PS256", headers={"kid": "r1"}), "invalid_api_key"),
        "the wrong kind of key": (jwt.encode(issuer.claims(), key, "RS256", headers={"kid": "e1"}), "invalid_api_key"),
        "unsigned": (unsigned(issuer.claims()) + ".", "invalid_api_key"),
        "unsigned, with a signature": (f"{unsigned(issuer.claims())}.{mark}", "invalid_api_key"),
        "HS256 with the public key": (f"{message}.{signature}", "invalid_api_key"),
        "changed claims": (f"{head}.{changed}.{mark}", "invalid_api_key"),
        "no signature": (f"{head}.{claims}.", "invalid_api_key"),
        "an extension": (issuer.token(headers={"crit": ["b64"], "b64": True}), "invalid_api_key"),
        "models that are a number": (issuer.token(models=5), "invalid_api_key"),
        "limits without sense": (issuer.token(limits={"colour": 1}), "invalid_api_key"),
        "too long": (issuer.token(note="x" * 9000), "invalid_api_key"),
        "not JSON": ("eyJ.eyJ.eyJ", "invalid_api_key"),
    }
    for name, (token, code) in cases.items():
        status, found, text = ask(server, token)
        assert (status, found) == (401, code), f"{name}: {status} {found} {text}"
        assert token[-20:] not in text
    assert ask(server, valid)[0] == 200


def test_claims_say_which_models_and_how_much(server, issuer):
    assert ask(server, issuer.token(models=["throng-starter"]))[0] == 200
    assert ask(server, issuer.token(models="other throng-starter"))[0] == 200
    assert ask(server, issuer.token(models=["other"]))[:2] == (403, "permission_denied")
    limited = issuer.token(sub="grace", limits={"requests_per_minute": 2})
    assert [ask(server, limited)[0] for _ in range(3)] == [200, 200, 429]
    assert ask(server, issuer.token(sub="linus", limits={"requests_per_minute": 2}))[0] == 200, "limits are of each user"
    assert ask(server, issuer.token(limits={"tokens_per_minute": 3}))[:2] == (400, "request_exceeds_rate_limit")
    # A token is a client's: what is the operator's stays closed.
    headers = {"authorization": f"Bearer {issuer.token()}"}
    assert httpx.get(server.url + "/metrics", headers=headers).status_code == 403


def test_users_see_their_project_only(server, issuer):
    def explain(token):
        found = httpx.get(server.url + "/explain", headers={"authorization": f"Bearer {token}"}).json()
        return len(found["data"])

    alone, team = issuer.token(sub="solo"), issuer.token(sub="one", organisation="acme", project="search")
    mate, other = (issuer.token(sub="two", organisation=name, project="search") for name in ("acme", "other"))
    assert ask(server, alone)[0] == ask(server, team)[0] == 200
    until(lambda: explain(team) == 1 and explain(alone) == 1)
    assert (explain(mate), explain(other)) == (1, 0)


def test_a_user_is_not_the_project_of_that_name(start, issuer, binary, tmp_path):
    database = str(tmp_path / "keys.db")
    made = [binary, "keys", "create", "--organisation", "default", "--project", "ada", "--database", database]
    key = subprocess.run(made, capture_output=True, text=True, check=True).stdout.strip()

    def explained(credential):
        headers = {"authorization": f"Bearer {credential}"}
        return len(httpx.get(server.url + "/explain", headers=headers).json()["data"])

    def repeated(credential):
        """Whether the answer is one that was kept for somebody else."""
        headers = {"authorization": f"Bearer {credential}", "idempotency-key": "one"}
        body = {"model": "throng-starter", "prompt": "Hi", "max_tokens": 2, "user": "mallory"}
        answer = httpx.post(server.url + "/v1/completions", json=body, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
        return "idempotent-replayed" in answer.headers

    arguments = ["--jwt-issuer", issuer.url, "--jwt-audience", AUDIENCE, "--database", database]
    arguments += ["--admin-key", "operator", "--ledger-journal", tmp_path / "journal"]
    with start(*arguments) as server:
        kid = issuer.published[-1]
        alone, of_project = issuer.token(kid), issuer.token(kid, project="ada")
        other = issuer.token(kid, sub="eve", project="grace")
        grace = issuer.token(kid, sub="grace")
        until(lambda: ask(server, key)[0] == 200 and ask(server, alone)[0] == 200)
        before = explained(key)
        assert not repeated(key)
        until(lambda: explained(key) == before + 1)
        mine = explained(alone)
        assert not repeated(alone), "a user who is called as a project is"
        until(lambda: explained(alone) == mine + 1)
        assert explained(key) == before + 1
        assert repeated(of_project), "a project of that name in the token is that of the database"
        assert not repeated(other) and not repeated(grace), "nor is one that only tokens know"
        assert repeated(other) and repeated(grace)

        def users():
            question = {"start_time": int(time.time()) - 3600, "group_by": "user_id"}
            headers = {"authorization": "Bearer operator"}
            page = httpx.get(server.url + "/v1/organization/usage/completions", params=question, headers=headers).json()
            return {row.get("user_id") for bucket in page["data"] for row in bucket["results"]}

        # The body names another user, which counts for keys only.
        until(lambda: {"ada", "eve", "grace", "mallory"} <= users())
        assert users() <= {"ada", "eve", "grace", "mallory", "", None}


def test_keys_are_rotated_and_kept_while_the_issuer_is_away(server, issuer):
    issuer.keys["r2"] = (rsa.generate_private_key(public_exponent=65537, key_size=2048), "RS256")
    issuer.published = ["r2", "e1"]
    # The first token of the new key makes the server read the keys again.
    until(lambda: ask(server, issuer.token("r2"))[0] == 200)
    assert ask(server, issuer.token("r1"))[:2] == (401, "invalid_api_key"), "a withdrawn key"
    issuer.go()
    n_asked = len(issuer.asked)
    for _ in range(50):
        assert ask(server, issuer.token("r1"))[0] == 401
    assert ask(server, issuer.token("r2"))[0] == 200, "the last known keys hold"
    issuer.published = ["r1", "r2", "e1"]
    issuer.come()
    until(lambda: ask(server, issuer.token("r1"))[0] == 200)
    assert len(issuer.asked) - n_asked <= 6, "a flood of unknown keys is no flood at the issuer"


def test_without_keys_nobody_is_told_that_a_token_is_wrong(start, issuer):
    with start("--jwt-issuer", "http://127.0.0.1:1", "--jwt-audience", AUDIENCE) as server:
        answer = httpx.post(server.url + "/v1/chat/completions", json={}, headers={"authorization": f"Bearer {issuer.token()}"})
        assert (answer.status_code, answer.headers["retry-after"].isdigit()) == (503, True)
        assert httpx.get(server.url + "/v1/models").status_code == 401
