"""The results of all sections as one table."""

import json
import statistics
from dataclasses import replace

from .runs import THRONG, Row


def load(folder, sections):
    """The rows of these sections that have been measured, in this order."""
    paths = [folder / f"{section}.json" for section in sections]
    return [Row(**record) for path in paths if path.exists() for record in json.loads(path.read_text())]


def save(folder, section, rows, add=False):
    """Replaces earlier rows of the same models by these, or appends these rounds to theirs."""
    folder.mkdir(parents=True, exist_ok=True)
    again, kept = {row.model for row in rows}, load(folder, [section])
    if add:
        before = {(row.model, row.measure): row for row in kept}
        rows = [behind(before.get((row.model, row.measure)), row) for row in rows]
    rows = [row for row in kept if row.model not in again] + rows
    (folder / f"{section}.json").write_text(json.dumps([row.record() for row in rows], indent=1) + "\n")


def behind(before, row):
    """A row with the rounds of an earlier row prepended, if both have the same engines."""
    if before is None or before.values.keys() != row.values.keys():
        return row
    values = {engine: before.values[engine] + row.values[engine] for engine in row.values}
    return replace(row, values=values, foreign=before.foreign + row.foreign)


def table(rows, most_foreign):
    """The rows in Markdown: a figure of each engine, how many times better Throng is than each other one with the spread
    over the rounds, and its share of the machine's limit. A row is noisy where its median round was disturbed."""
    peers = list(dict.fromkeys(peer for row in rows for peer in row.peers()))
    header = ["section", "model", "measure", THRONG, *peers, *(f"better than {peer} by" for peer in peers)]
    header += ["limit", "share", "others' load"]
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    for row in rows:
        foreign = statistics.median(row.foreign)
        cells = [row.section, row.model, row.measure, figure(row.median())]
        cells += [figure(row.median(peer)) if peer in row.values else "" for peer in peers]
        cells += [ratio(row, peer) if peer in row.values else "" for peer in peers]
        limit = row.limit and figure(row.limit)
        cells += [limit, f"{row.median() / row.limit:.0%}"] if limit else ["", ""]
        cells.append(f"{foreign:.0%}" + (" noisy" if foreign > most_foreign else ""))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def ratio(row, peer):
    """The median and the spread of how many times better Throng was."""
    ratios = row.ratios(peer)
    return f"{row.ratio(peer):.2f}× ({min(ratios):.2f}–{max(ratios):.2f} of {len(ratios)})"


def figure(value):
    """Three digits, which is the precision of such a measurement."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
