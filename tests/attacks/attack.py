"""An attack: a function that does something hostile to a server and makes claims about what it saw. Knows neither how a
server is started nor how it is measured."""

import contextlib
import http.client
import json
import random
import time
from dataclasses import dataclass, field, replace

ATTACKS = {}
# The operator's key of servers with keys.
ADMIN_KEY = "operators-key"


@dataclass(frozen=True)
class Attack:
    """One attack, as its decorator describes it."""

    name: str
    family: str
    run: object
    about: str
    # Flags of the server that is attacked; none: the default settings with the starter model.
    arguments: tuple = ()
    # The server's keys: the first belongs to the healthy client, the second to the attacker.
    keys: tuple = ()
    # Where the server's standard error goes: "file", or "broken": a pipe whose reader is gone after the start.
    stderr: str = "file"
    # The soft and the hard limit of descriptors that the server starts with.
    descriptors: tuple = None
    # It starts servers itself; nothing else is measured.
    alone: bool = False
    # Load of legitimate requests: with the healthy client's own key, times are printed but not judged; with another
    # key, only the longest wait is judged.
    is_load: bool = False
    # It stops the server or its engine on purpose: the health checks may fail meanwhile, but must be correct
    # afterwards.
    disturbs_health: bool = False
    quick: bool = False
    soak: bool = True
    # Seconds after which the attacking process is killed.
    limit_s: float = 40.0


def attack(family, quick=False, **options):
    """Registers a function as an attack under its own name."""

    def register(function):
        about = " ".join(function.__doc__.split())
        name = function.__name__
        ATTACKS[name] = Attack(name, family, function, about, quick=quick, **options)
        return function

    return register


@dataclass
class Answer:
    """An HTTP answer, or why there is none (status 0)."""

    status: int
    headers: dict = field(default_factory=dict)
    body: bytes = b""
    seconds: float = 0.0

    @property
    def error(self):
        """The `error` object of the API, or nothing."""
        with contextlib.suppress(ValueError, AttributeError, TypeError):
            return json.loads(self.body).get("error") or {}
        return {}

    @property
    def code(self):
        return self.error.get("code")


@dataclass
class Target:
    """A running server, as seen by an attack."""

    host: str = "127.0.0.1"
    port: int = 0
    pid: int = 0
    binary: str = ""
    folder: str = ""
    seed: int = 0
    # Below 1 while the attack runs together with others for an hour.
    intensity: float = 1.0
    key: str = None
    claims: list = field(default_factory=list)

    def __post_init__(self):
        self.random = random.Random(self.seed)

    def claim(self, ok, text):
        """Records an observation, and whether it is as expected."""
        self.claims.append((bool(ok), text))
        return ok

    def times(self, n):
        """Scales a number by the intensity."""
        return max(1, int(n * self.intensity))

    def fields(self, **more):
        """The headers of a request with a JSON body."""
        fields = {"host": f"{self.host}:{self.port}", "content-type": "application/json", **more}
        if self.key:
            fields["authorization"] = f"Bearer {self.key}"
        return {name.replace("_", "-"): value for name, value in fields.items()}

    def ask(self, path, document=None, body=None, method=None, timeout=60, **fields):
        """One request on a connection of its own, read to its end."""
        started = time.monotonic()
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            if document is not None:
                body = json.dumps(document).encode()
            method = method or ("GET" if body is None else "POST")
            connection.request(method, path, body, self.fields(**fields))
            answer = connection.getresponse()
            headers = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, headers, answer.read(), time.monotonic() - started)
        except (OSError, http.client.HTTPException) as error:
            return Answer(0, {}, repr(error).encode(), time.monotonic() - started)
        finally:
            connection.close()

    def chat(self, text="Hello!", timeout=60, **more):
        """One chat completion."""
        return self.ask("/v1/chat/completions", chat(text, **more), timeout=timeout)

    def metric(self, name):
        """The sum of a metric over its labels; 0 where it is absent."""
        operator = replace(self, key=ADMIN_KEY if self.key else None)
        text = operator.ask("/metrics").body.decode()
        found = [line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith((name + " ", name + "{"))]
        return sum(map(float, found))

    def wait_idle(self, limit_s=15, n_others=1):
        """Waits until the engine has only the healthy client's request; returns whether that happened."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            busy = self.metric("vllm:num_requests_running") + self.metric("vllm:num_requests_waiting")
            if busy <= n_others:
                return True
            time.sleep(0.1)
        return False


def chat(text="Hello!", **more):
    """The body of a chat completion of the starter model."""
    messages = more.pop("messages", [{"role": "user", "content": text}])
    return {"model": "throng-starter", "messages": messages, "temperature": 0, "max_tokens": 8, **more}


def completion(prompt="Hello", **more):
    """The body of a text completion of the starter model."""
    return {"model": "throng-starter", "prompt": prompt, "temperature": 0, "max_tokens": 8, **more}
