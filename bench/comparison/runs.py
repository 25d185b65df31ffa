"""Alternating runs of several engines, so that disturbances of the machine affect all of them, and their results."""

import statistics
import sys
from dataclasses import asdict, dataclass, field

from .machine import Watch, wait_until_quiet

THRONG = "Throng"


@dataclass
class Row:
    """One measure of one model: the values of each engine in each round, and how disturbed the rounds were."""

    section: str
    model: str
    measure: str
    higher_is_better: bool
    #: By the name of the engine.
    values: dict = field(default_factory=dict)
    foreign: list = field(default_factory=list)
    #: What the machine's bandwidth and arithmetic admit, in the unit of the values; None where no limit is known.
    limit: float | None = None

    def peers(self):
        return [engine for engine in self.values if engine != THRONG]

    def median(self, engine=THRONG):
        return statistics.median(self.values[engine])

    def ratios(self, peer):
        """How many times better Throng was than that engine, for each round."""
        pairs = zip(self.values[THRONG], self.values[peer])
        return [ours / theirs if self.higher_is_better else theirs / ours for ours, theirs in pairs]

    def ratio(self, peer):
        return statistics.median(self.ratios(peer))

    def record(self):
        return asdict(self)


@dataclass(frozen=True)
class Manner:
    """The number of rounds, and how much disturbance is accepted."""

    rounds: int = 5
    most_foreign: float = 0.05
    patience_s: float = 60.0
    retries: int = 5


def in_turn(manner, rows, engines, pids=()):
    """Fills `rows`. `engines` has a function `run(i)` for each engine, which runs once a round and gives a value for
    every row. Who goes first rotates; a disturbed round is measured again, `retries` times in all, with a new `i`."""
    retries, attempt, first = manner.retries, 0, rows[0]
    while len(first.foreign) < manner.rounds:
        order = list(engines)[attempt % len(engines) :] + list(engines)[: attempt % len(engines)]
        attempt += 1
        values, foreign = {}, 0.0
        for engine in order:
            wait_until_quiet(manner.most_foreign, manner.patience_s, pids)
            watch = Watch(pids)
            values[engine] = engines[engine](attempt)
            foreign = max(foreign, watch.foreign())
        noisy = foreign > manner.most_foreign
        by_row = {row.measure: [values[engine][idx] for engine in engines] for idx, row in enumerate(rows)}
        told = "  ".join(f"{measure} {' : '.join(f'{value:.2f}' for value in all)}" for measure, all in by_row.items())
        print(f"{first.section} {first.model}: {told}  foreign {foreign:.1%}{' noisy' * noisy}", file=sys.stderr)
        if noisy and retries > 0:
            retries -= 1
            continue
        for idx, row in enumerate(rows):
            for engine in engines:
                row.values.setdefault(engine, []).append(values[engine][idx])
            row.foreign.append(foreign)
    return rows
