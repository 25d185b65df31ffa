"""Alternating runs of two engines, so that disturbances of the machine affect both, and their results."""

import statistics
import sys
from dataclasses import asdict, dataclass, field

from .machine import Watch, wait_until_quiet


@dataclass
class Row:
    """One measure of one model: the values of both engines in each round, and how disturbed the rounds were."""

    section: str
    model: str
    measure: str
    higher_is_better: bool
    throng: list = field(default_factory=list)
    peer: list = field(default_factory=list)
    foreign: list = field(default_factory=list)

    def ratios(self):
        """How many times better Throng was, for each round."""
        pairs = zip(self.throng, self.peer)
        return [ours / theirs if self.higher_is_better else theirs / ours for ours, theirs in pairs]

    def ratio(self):
        return statistics.median(self.ratios())

    def record(self):
        return asdict(self)


@dataclass(frozen=True)
class Manner:
    """The number of rounds, and how much disturbance is accepted."""

    rounds: int = 5
    most_foreign: float = 0.05
    patience_s: float = 60.0
    retries: int = 5


def in_turn(manner, rows, throng, peer, pids=()):
    """Fills `rows`: `throng(i)` and `peer(i)` each run once a round and give a value for every row. Who goes first
    alternates; a disturbed round is measured again, `retries` times in all, with a new `i`."""
    retries, attempt, first = manner.retries, 0, rows[0]
    while len(first.throng) < manner.rounds:
        attempt += 1
        values, foreign = {}, 0.0
        for engine in (throng, peer) if attempt % 2 else (peer, throng):
            wait_until_quiet(manner.most_foreign, manner.patience_s, pids)
            watch = Watch(pids)
            values[engine] = engine(attempt)
            foreign = max(foreign, watch.foreign())
        noisy = foreign > manner.most_foreign
        told = "  ".join(f"{row.measure} {a:.2f} : {b:.2f}" for row, a, b in zip(rows, values[throng], values[peer]))
        print(f"{first.section} {first.model}: {told}  foreign {foreign:.1%}{' noisy' * noisy}", file=sys.stderr)
        if noisy and retries > 0:
            retries -= 1
            continue
        for row, ours, theirs in zip(rows, values[throng], values[peer]):
            row.throng.append(ours)
            row.peer.append(theirs)
            row.foreign.append(foreign)
    return rows
