"""How far the probabilities of an engine are from those of a float32 forward pass over the same text.

Engines report the most likely tokens only, so distributions are compared over the tokens that both name, and one class for all others.
Merging classes never raises a Kullback-Leibler divergence: what is computed is a lower bound, equal to the divergence but for the tail.
"""

import math

import numpy as np

# Number of tokens that an engine is asked for at each position.
N_REPORTED = 200


def divergence(reference, reported):
    """KL(reference || engine) in nats: a row of log-probabilities, and `{token id: log-probability}` of the engine."""
    ids = np.fromiter(reported, dtype=np.int64)
    ours = np.exp(np.fromiter(reported.values(), dtype=np.float64))
    exact = np.exp(reference[ids].astype(np.float64))
    rest = max(1.0 - exact.sum(), 1e-12), max(1.0 - ours.sum(), 1e-12)
    return float(np.sum(exact * np.log(exact / ours)) + rest[0] * math.log(rest[0] / rest[1]))


class Comparison:
    """Divergences and agreement of an engine at the positions of a text."""

    def __init__(self, reference, ids, reported):
        """`reported[position]` are the log-probabilities that an engine gives for the token after `position`."""
        pairs = list(zip(reference, reported))
        self.divergences = np.array([divergence(exact, given) for exact, given in pairs])
        self.same_best = np.array([int(np.argmax(exact)) == max(given, key=given.get) for exact, given in pairs])
        # Distance of the two most likely tokens, in nats: the best token is only clear where it is wide.
        top = [np.partition(exact, -2)[-2:] for exact in reference[: len(reported)]]
        self.margins = np.array([abs(float(high) - float(low)) for low, high in top])
        following = ids[1 : len(reported) + 1]
        self.n_tokens = len(following)
        known = [given[token] for given, token in zip(reported, following) if token in given]
        self.perplexity = math.exp(-sum(known) / len(known)) if known else math.inf

    @property
    def mean_divergence(self):
        """Mean divergence in nats."""
        return float(self.divergences.mean())

    @property
    def best_token_rate(self):
        """Share of positions at which the engine's most likely token is that of the reference."""
        return float(self.same_best.mean())
