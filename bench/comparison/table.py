"""The results of all sections as one table."""

import json
import statistics
from dataclasses import replace

from .runs import Row

HEADER = ("section", "model", "measure", "Throng", "llama.cpp", "Throng is better by", "spread", "others' load")


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
    """A row with the rounds of an earlier row prepended."""
    if before is None:
        return row
    rounds = {name: getattr(before, name) + getattr(row, name) for name in ("throng", "peer", "foreign")}
    return replace(row, **rounds)


def table(rows, most_foreign):
    """The rows in Markdown; a row is noisy where its median round was disturbed."""
    lines = ["| " + " | ".join(HEADER) + " |", "|" + " --- |" * len(HEADER)]
    for row in rows:
        ratios, foreign = row.ratios(), statistics.median(row.foreign)
        cells = (
            row.section,
            row.model,
            row.measure,
            figure(statistics.median(row.throng)),
            figure(statistics.median(row.peer)),
            f"{row.ratio():.2f}×",
            f"{min(ratios):.2f}–{max(ratios):.2f} of {len(ratios)}",
            f"{foreign:.0%}" + (" noisy" if foreign > most_foreign else ""),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def figure(value):
    """Three digits, which is the precision of such a measurement."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
