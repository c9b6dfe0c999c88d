"""Proves cclsearch on the machine where it is started, part by part, in at most eight minutes.

    make gpu

Each part has a limit of time, and goes on without those that fail. Everything is under one folder:
a JSON file and a log for each part, and `page.md` for a person. Without a GPU the same parts run
small on the CPU. Ends with status 1 if a part was not done, or a number looks wrong.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import collectives_part
import decisions_part
import failures_part
import machine_part
import study_part
import trace_part
from part import Ended, Grid, Part, Place, run_part

from evaluator.machine import local_environment
from search.views.document import (
    Block,
    Cell,
    Document,
    Facts,
    Paragraph,
    Section,
    Table,
    TableRow,
)
from search.views.format import format_duration
from search.views.markdown import render_markdown

TOTAL_S = 470.0
PATIENCE = {"cuda": 1.0, "cpu": 4.0}
"""How many times its limit a part may take; a machine without a GPU may be a busy one, as in CI."""
PARTS = (
    Part(name="machine", heading="The machine", limit_s=75, run=machine_part.look),
    Part(name="study", heading="A search", limit_s=250, run=study_part.search),
    Part(name="traces", heading="Traces", limit_s=60, run=trace_part.analyze),
    Part(name="failures", heading="Failures", limit_s=75, run=failures_part.provoke),
    Part(name="kill", heading="A killed search", limit_s=75, run=failures_part.kill),
    Part(name="collectives", heading="Collectives", limit_s=90, run=collectives_part.measure),
    Part(name="decisions", heading="Noise and decisions", limit_s=150, run=decisions_part.judge),
)
PAGE = "page.md"
OWN = ("page.md", "proof.json", "store", "killed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="folder, emptied first")
    parser.add_argument("--parts", help="only these, by commas: " + ",".join(p.name for p in PARTS))
    asked = parser.parse_args()
    names = asked.parts.split(",") if asked.parts else [part.name for part in PARTS]
    place = Place(out=emptied(asked.out.absolute()), machine=local_environment())
    print(f"on {device_words(place)}")
    patience = PATIENCE[place.machine.device]
    started_s = perf_counter()
    ended = []
    for part in PARTS:
        if part.name in names:
            left_s = patience * TOTAL_S - (perf_counter() - started_s)
            patient = replace(part, limit_s=patience * part.limit_s)
            ended.append(run_part(patient, place, left_s))
            print(line(ended[-1]), flush=True)
    page = place.out / PAGE
    page.write_text(render_markdown(document(place, ended)), encoding="utf-8")
    summary = {
        each.name: {
            "status": each.status,
            "took_s": each.took_s,
            "cpu_s": each.cpu_s,
            "doubts": each.findings.doubts,
        }
        for each in ended
    }
    (place.out / "proof.json").write_text(json.dumps(summary, indent=1), encoding="utf-8")
    print(f"{perf_counter() - started_s:.0f} s; written: {page}")
    return 1 if any(each.status != "done" or each.findings.doubts for each in ended) else 0


def emptied(out: Path) -> Path:
    """The folder, without what an earlier proof left in it; raises `SystemExit` for another's."""
    names = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if names and PAGE not in names and not (out / "machine.json").exists():
        raise SystemExit(f"{out} holds other files; give an empty folder with --out")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    return out


def device_words(place: Place) -> str:
    """What the ranks run on."""
    count = f"{place.machine.world_size} x " if place.has_gpu else ""
    return f"{count}{place.machine.accelerator}"


def line(ended: Ended) -> str:
    """How a part ended, for the terminal."""
    found = ended.findings
    counts = f"{len(found.doubts)} to look at" if found.doubts else ""
    return f"{ended.heading:<22}{ended.status:<13}{ended.took_s:6.1f} s  {ended.message or counts}"


def document(place: Place, ended: Sequence[Ended]) -> Document:
    """The page: what to look at first, then each part."""
    doubts = [(each.heading, words) for each in ended for words in each.findings.doubts]
    doubts += [(each.heading, f"{each.status}: {each.message}") for each in ended if each.message]
    rows = [
        (each.heading, each.status, f"{each.took_s:.1f}", f"{each.cpu_s:.1f}") for each in ended
    ]
    grid = Grid(about="Parts", headings=("part", "result", "seconds", "CPU, s"), rows=rows)
    listed: list[Block] = [Facts(lines=tuple(doubts))] if doubts else []
    took_s = sum(each.took_s for each in ended)
    lead = f"{len(ended)} parts in {format_duration(took_s)}"
    first = Section(
        name="summary",
        heading="To look at" if doubts else "Summary",
        lead="These numbers look wrong or are missing." if doubts else "No number looks wrong.",
        blocks=(*listed, table_of(grid)),
    )
    return Document(
        title=f"cclsearch on {device_words(place)}",
        lead=lead if place.has_gpu else f"{lead}, small on the CPU: no GPU answers here",
        sections=(first, *(section_of(each) for each in ended)),
    )


def section_of(ended: Ended) -> Section:
    """What one part found."""
    found = ended.findings
    return Section(
        name=ended.name,
        heading=ended.heading,
        lead=found.lead or f"{ended.status}: {ended.message}",
        blocks=tuple(_blocks(ended)),
    )


def _blocks(ended: Ended) -> Iterator[Block]:
    found = ended.findings
    if found.facts:
        yield Facts(lines=tuple((label, text) for label, text in found.facts))
    yield from map(table_of, found.tables)
    if found.lacks:
        yield Paragraph(text=f"Not done here: {'; '.join(found.lacks)}.")
    yield Paragraph(text=f"All values: {ended.name}.json; what it printed: {ended.name}.log.")


def table_of(grid: Grid) -> Table:
    """A grid as a table of the page."""
    return Table(
        about=grid.about,
        headings=tuple(grid.headings),
        rows=tuple(TableRow.of(*map(_cell, row)) for row in grid.rows),
    )


def _cell(text: str) -> Cell:
    return Cell(text=text, is_number=text.replace(".", "", 1).isdecimal())


if __name__ == "__main__":
    sys.exit(main())
