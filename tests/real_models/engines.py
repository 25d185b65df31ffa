"""The two engines that are compared, behind the same two questions: probabilities over a text, and greedy tokens after a prompt."""

import requests

from divergence import N_REPORTED


class Throng:
    """A server of `conftest.Server`, started with `--max-logprobs` of at least `N_REPORTED`."""

    def __init__(self, server, model):
        self._url, self._model = server.url, model

    def _complete(self, **body):
        body = {"model": self._model, "temperature": 0, **body}
        answer = requests.post(self._url + "/v1/completions", json=body, timeout=600)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def tokens(self, text, n_tokens=None):
        """The ids of the text's tokens, or of the first `n_tokens`."""
        body = {"model": self._model, "prompt": text}
        answer = requests.post(self._url + "/tokenize", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()["tokens"][:n_tokens]

    def reported(self, ids):
        """Log-probabilities of the `N_REPORTED` most likely tokens after each token but the last."""
        choice = self._complete(prompt=ids, max_tokens=1, prompt_logprobs=N_REPORTED)["choices"][0]
        # The token of the text is among them even where it is less likely than those asked for.
        return [
            {int(token): entry["logprob"] for token, entry in position.items()}
            for position in choice["prompt_logprobs"][1:]
        ]

    def greedy(self, ids, n_tokens):
        """The tokens that follow at temperature 0."""
        asked = {"prompt": ids, "max_tokens": n_tokens, "return_token_ids": True, "ignore_eos": True}
        return self._complete(**asked)["choices"][0]["token_ids"]


class LlamaCpp:
    """llama.cpp, as the package xllamacpp has it ready built."""

    def __init__(self, path, n_context=2048):
        import xllamacpp

        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(path)
        parameters.n_ctx, parameters.n_parallel, parameters.warmup = n_context, 1, False
        # Its threads wait for each other in loops: beside other programs, two are far slower than one.
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
        # Its server always listens; port 0 lets the system choose.
        parameters.port = 0
        self._server = xllamacpp.Server(parameters)

    def _complete(self, ids, **body):
        asked = {"prompt": ids, "temperature": 0, "cache_prompt": True, "ignore_eos": True, **body}
        return self._server.handle_completions(asked)["choices"][0]["logprobs"]["content"]

    def reported(self, ids):
        """As `Throng.reported`, by one request a token, since it has no log-probabilities of prompts."""
        positions = []
        for end in range(1, len(ids)):
            (token,) = self._complete(ids[:end], max_tokens=1, logprobs=N_REPORTED)
            positions.append({entry["id"]: entry["logprob"] for entry in token["top_logprobs"]})
        return positions

    def greedy(self, ids, n_tokens):
        """The tokens that follow at temperature 0, and the distance in nats of each to the second most likely one."""
        tokens = self._complete(ids, max_tokens=n_tokens, logprobs=2)
        pairs = [[entry["logprob"] for entry in token["top_logprobs"]] for token in tokens]
        return [token["id"] for token in tokens], [pair[0] - pair[1] for pair in pairs]
