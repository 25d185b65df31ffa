"""Runs Throng and its peers for the sections: their tools on one model, and their servers."""

import asyncio
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import load

from . import models, reading
from .places import Places, output
from .runs import THRONG, Manner, in_turn
from .servers import Server


@dataclass(frozen=True)
class Bench:
    """All engines, ready to be measured."""

    places: Places
    throng: Path
    threads: int
    manner: Manner
    #: Such as `llama_cpp.LlamaCpp`.
    peers: tuple
    #: Those that compute vectors only.
    vector_peers: tuple = ()

    def throng_bench(self, model, prompt, generate, users=1, extra=(), limits=False):
        sizes = ["--prompt-tokens", prompt, "--generate-tokens", generate, "--concurrency", users]
        # The text of random weights repeats itself, which would make most guesses right; the peers do not guess either.
        flags = ["--threads", self.threads, "--json", "--no-speculation", *([] if limits else ["--no-limits"])]
        command = [self.throng, "bench", self.file(model), *flags, *sizes, *extra]
        return reading.throng_bench(output(command))

    def limit(self, phase, model, *sizes, **how):
        """The rate of a phase (`prefill`, `decode`) that the machine's limits admit, in tokens/s."""
        return self.throng_bench(model, *sizes, limits=True, **how)[f"{phase}_limit"]

    def throng_server(self, model, extra=()):
        command = [self.throng, "serve", self.file(model), "--threads", self.threads, "--no-speculation", *extra, "--port"]
        return Server(lambda port: [*command, port], self.places.results / "throng-serve.log")

    @contextmanager
    def servers(self, model, users, tokens):
        """A server of each engine by its name, all at once; those that are not measured are idle. Each has answered one
        request."""
        with ExitStack() as running:
            servers = {THRONG: running.enter_context(self.throng_server(model))}
            for peer in self.peers:
                servers[peer.name] = running.enter_context(peer.server(model, users, tokens))
            for server in servers.values():
                asyncio.run(load.Stream(model, load.Prompts(0)(64), 8).run(server.port))
            yield servers

    @contextmanager
    def embedding_servers(self, model):
        """The same of an embedding model, without the engines that do not serve it. Throng refuses no texts however long they wait,
        as the others do not."""
        config = self.places.results / "throng-embeddings.toml"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text("[gateway.overload]\nmax_queue_wait_ms = 0\n")
        with ExitStack() as running:
            servers = {THRONG: running.enter_context(self.throng_server(model, ["--config", config]))}
            for peer in (*self.peers, *self.vector_peers):
                if start := getattr(peer, "embedding_server", None):
                    servers[peer.name] = running.enter_context(start(model))
            for server in servers.values():
                load.embed(server.port, model, [load.Prompts(0)(64)])
            yield servers

    def file(self, model):
        return models.path(self.places, model)

    def in_turn(self, rows, throng, peer):
        """Measures `throng(i)` and `peer(each peer, i)`."""
        engines = {THRONG: throng, **{each.name: partial(peer, each) for each in self.peers}}
        return in_turn(self.manner, rows, engines)

    def servers_in_turn(self, rows, servers, measured):
        """Measures `measured(server, i)` of each."""
        pids = [server.pid for server in servers.values()]
        return in_turn(self.manner, rows, {name: partial(measured, server) for name, server in servers.items()}, pids)

    def with_peers_for(self, variant):
        """The same with the peers that have this variant."""
        return replace(self, peers=tuple(peer for peer in self.peers if peer.has(variant)))
