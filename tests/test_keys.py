"""API keys in a database: made by one process, used and revoked while another one serves."""

import stat
import subprocess
import time

import openai
import pytest

PATIENCE_S = 30


@pytest.fixture()
def database(tmp_path):
    return tmp_path / "keys.db"


@pytest.fixture()
def throng(binary, database):
    def run(*arguments):
        command = [binary, *arguments, "--database", str(database)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    return run


def statuses_until(wanted, request):
    """Repeats a request until it has this status."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            request()
            status = 200
        except openai.APIStatusError as error:
            status = error.status_code
        if status == wanted:
            return
        time.sleep(0.05)
    raise AssertionError(f"the status is {status}, not {wanted}")


def test_a_key_is_made_used_listed_and_revoked(throng, start, database):
    made = throng("keys", "create", "--organisation", "acme", "--project", "search", "--name", "first")
    assert made.returncode == 0, made.stderr
    key = made.stdout.strip()
    assert stat.S_IMODE(database.stat().st_mode) == 0o600
    with start("--database", database, "--log-format", "json") as server:
        chat = {"model": "throng-starter", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        client = server.client(api_key=key)
        assert client.chat.completions.create(**chat).usage.completion_tokens == 4
        with pytest.raises(openai.AuthenticationError):
            server.client(api_key="wrong").chat.completions.create(**chat)
        # A key that is made while the server runs, for another model only.
        other = throng("keys", "create", "--models", "another-model").stdout.strip()
        statuses_until(403, lambda: server.client(api_key=other).chat.completions.create(**chat))
        listed = throng("keys", "list").stdout
        assert "acme" in listed and "search" in listed and "another-model" in listed and key not in listed
        prefix = key[:11]
        assert prefix in listed
        revoked = throng("keys", "revoke", prefix)
        assert revoked.returncode == 0 and "revoked" in revoked.stdout, revoked.stderr
        statuses_until(401, lambda: client.chat.completions.create(**chat))
        assert throng("store", "check").returncode == 0
    assert key not in "".join(server.output)


def test_limits_of_a_key_hold_while_it_is_used_and_when_they_change(throng, start, database):
    key = throng("keys", "create", "--requests-per-minute", "2", "--tokens-per-minute", "1000").stdout.strip()
    with start("--database", database) as server:
        client = server.client(api_key=key).with_options(max_retries=0)
        chat = {"model": "throng-starter", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        answer = client.chat.completions.with_raw_response.create(**chat)
        total = answer.parse().usage.total_tokens
        assert answer.headers["x-ratelimit-limit-tokens"] == "1000"
        assert answer.headers["x-ratelimit-remaining-tokens"] == str(1000 - total)
        assert answer.headers["x-ratelimit-remaining-requests"] == "1"
        with client.chat.completions.with_raw_response.create(**chat, stream=True).parse() as stream:
            assert list(stream)
        with pytest.raises(openai.RateLimitError) as refused:
            client.chat.completions.create(**chat)
        assert refused.value.code == "rate_limit_exceeded"
        assert 1 <= int(refused.value.response.headers["retry-after"]) <= 61
        changed = throng("keys", "limit", key[:11], "--requests-per-minute", "none")
        assert changed.returncode == 0, changed.stderr
        statuses_until(200, lambda: client.chat.completions.create(**chat))
        with pytest.raises(openai.BadRequestError) as too_large:
            client.chat.completions.create(**{**chat, "max_tokens": 1000})
        assert too_large.value.code == "request_exceeds_rate_limit"


@pytest.mark.parametrize("command", [["keys", "list"], ["keys", "revoke", "x"], ["store", "check"], ["store", "backup", "copy.db"]])
def test_a_mistyped_path_is_not_an_empty_database(throng, database, command):
    refused = throng(*command)
    assert refused.returncode != 0 and "there is no database" in refused.stderr
    assert not database.exists()
