#!/usr/bin/env python3
"""Measures Throng against llama.cpp and ik_llama.cpp: the same files, the same threads, alternating runs, one table. Vectors also
against sentence-transformers, which reads no such files.

    bench/compare.py all                        # build, make the models, measure everything anew
    bench/compare.py prefill decode --rounds 7  # some sections
    bench/compare.py prepare                    # build and make the models only
    bench/compare.py table                      # print what has been measured so far

Everything is kept in target/bench and used again. Needs Linux, Python 3.11, a C++ compiler and a Rust toolchain; the
rest is fetched into an environment of its own. A row is noisy where other processes took more than `--most-foreign` of
the processor in its median round: measure it again on a quiet machine.
"""

import argparse
import os
import shutil
import signal
import sys
from pathlib import Path

from comparison import ik, llama_cpp, llama_cpp_build, models, sentence_transformers, table
from comparison.engines import Bench
from comparison.places import ROOT, Places
from comparison.runs import Manner
from comparison.sections import SECTIONS


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = ["all", "prepare", "table", *SECTIONS]
    parser.add_argument("what", nargs="+", choices=known, metavar="WHAT", help=", ".join(known))
    parser.add_argument("--models", type=lambda text: text.split(","), help="SHAPE-TYPE,… for all sections asked for")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5, help="runs of each engine")
    parser.add_argument("--add", action="store_true", help="add rounds to those that are kept")
    parser.add_argument("--most-foreign", type=float, default=0.05, help="share of all cores that others may use")
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet machine before a run")
    parser.add_argument("--retries", type=int, default=5, help="most disturbed rounds of a row that are measured again")
    parser.add_argument("--cache", type=Path, default=ROOT / "target" / "bench")
    parser.add_argument("--ik", type=Path, help="the folder of ik_llama.cpp's sources, instead of a clone")
    parser.add_argument("--without-llama-cpp", action="store_true", help="without llama.cpp: for the vectors only")
    parser.add_argument("--without-ik", action="store_true", help="without ik_llama.cpp")
    parser.add_argument("--without-sentence-transformers", action="store_true", help="vectors without this peer")
    parser.add_argument("--throng", type=Path, help="a throng binary, instead of building it")
    return parser.parse_args()


def main():
    # Servers and tools must not outlive the script: an ordinary exit ends them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    settings = arguments()
    places = Places(settings.cache.absolute(), settings.throng and settings.throng.absolute())
    places.cache.mkdir(parents=True, exist_ok=True)
    asked = [section for section in SECTIONS if section in settings.what or {"all", "prepare"} & set(settings.what)]
    chosen = {section: settings.models or SECTIONS[section][1] for section in asked}
    if asked:
        manner = Manner(settings.rounds, settings.most_foreign, settings.patience, settings.retries)
        peers = prepare(places, settings, chosen)
        vector_peers = prepare_for_vectors(places, settings) if "embeddings" in chosen else ()
        bench = Bench(places, places.throng_binary(), settings.threads, manner, peers, vector_peers)
    if "all" in settings.what and not settings.add:
        shutil.rmtree(places.results, ignore_errors=True)
    for section in asked if "prepare" not in settings.what else ():
        for model in chosen[section]:
            table.save(places.results, section, SECTIONS[section][0](bench, model), settings.add)
    print(table.table(table.load(places.results, SECTIONS), settings.most_foreign))


def prepare(places, settings, chosen):
    """Builds the programs and models that the sections need, before anything is measured. Gives the peers."""
    peers = [] if settings.without_llama_cpp else [llama_cpp.LlamaCpp(places, settings.threads)]
    if not settings.without_ik and (source := ik.sources(places, settings.ik)):
        peers.append(ik.IkLlamaCpp(places, settings.threads, source))
    smaller = [name for name in llama_cpp_build.VARIANTS if name in chosen and llama_cpp_build.runs_here(name)]
    for peer in peers:
        peer.prepare(["native", *smaller])
        print(f"{peer.version()} in {places.cache}", file=sys.stderr)
    for name in dict.fromkeys(name for names in chosen.values() for name in names):
        models.path(places, name)
    return tuple(peers)


def prepare_for_vectors(places, settings):
    """The peers that compute vectors only, installed."""
    if settings.without_sentence_transformers:
        return ()
    peers = [sentence_transformers.SentenceTransformers(places, settings.threads, dtype) for dtype in ("float32", "bfloat16")]
    for peer in peers:
        peer.prepare()
    print(f"{peers[0].version()} in {places.cache}", file=sys.stderr)
    return tuple(peers)


if __name__ == "__main__":
    main()
