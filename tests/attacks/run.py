#!/usr/bin/env python3
"""Attacks the real binary and judges its behaviour: `cargo xtask attack`, or `tests/attacks/run.py --binary PATH`.

Each attack has a fresh server of its own. At the same time a healthy client requests streams whose bytes are known.
Printed for each attack: memory above idle, times to the first token before and during, failures of the healthy
client, exits, results of the health checks, descriptors and threads before and after."""

import argparse
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import families  # noqa: E402, F401
import soak  # noqa: E402
from attack import ATTACKS  # noqa: E402
from trial import Trial  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=ROOT / "target/release/throng", type=Path, help="the server to attack")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="an attack or a family; again for more"
    )
    parser.add_argument("--seed", type=int, help="the seed of all attacks; a new one each time without")
    parser.add_argument("--list", action="store_true", help="name the attacks and end")
    parser.add_argument("--quick", action="store_true", help="a short selection, weaker, and judged without times")
    parser.add_argument("--minutes", type=float, default=0, help="begin again with new seeds for that long")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="all attacks mixed into healthy traffic")
    parser.add_argument("--logs", default=ROOT / "target/attacks", type=Path, help="where the servers' logs go")
    return parser.parse_args()


def chosen(options):
    """The selected attacks."""
    known = {attack.family for attack in ATTACKS.values()} | set(ATTACKS)
    for name in options.only:
        if name not in known:
            sys.exit(f"no attack or family is named {name}; --list names them")
    attacks = [a for a in ATTACKS.values() if not options.only or {a.name, a.family} & set(options.only)]
    return [a for a in attacks if a.quick or not options.quick or options.only]


def main():
    options = arguments()
    attacks = chosen(options)
    if options.list:
        for attack in attacks:
            print(f"{attack.family:16} {attack.name:34} {attack.about}")
        return 0
    if not options.binary.is_file():
        sys.exit(f"{options.binary} does not exist: build it, or say --binary PATH")
    options.binary = options.binary.resolve()
    options.logs.mkdir(parents=True, exist_ok=True)
    seed = options.seed if options.seed is not None else random.randrange(1 << 32)
    print(f"attacking {options.binary}, seed {seed}", flush=True)
    if options.soak:
        return soak.run(options, [a for a in attacks if a.soak and not a.alone], seed)
    return trials(options, attacks, seed)


def trials(options, attacks, seed):
    """Runs each attack, repeatedly while there are minutes left, and prints a summary."""
    failed, n_trials, started = [], 0, time.monotonic()
    trial = Trial(options.binary, options.logs, is_quick=options.quick)
    while True:
        for attack in attacks:
            n_trials += 1
            verdict = trial.run(attack, seed)
            print(verdict.text(), flush=True)
            if not verdict.passed():
                failed.append(verdict)
        if (time.monotonic() - started) / 60 >= options.minutes:
            break
        seed = random.Random(seed).randrange(1 << 32)
    print(f"\n{n_trials - len(failed)} of {n_trials} passed in {time.monotonic() - started:.0f} s")
    for verdict in failed:
        print(f"FAIL {verdict.attack.name}: {verdict.faults()[0]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
