"""The file that grows with a sweep: a line of facts, then one for each point as it is done."""

import json
from dataclasses import asdict
from pathlib import Path

from evaluator.workloads.collectives.sweep_request import PointSamples, SweepFacts

POINTS_NAME = "points.jsonl"


def add_line(folder: Path, line: SweepFacts | PointSamples) -> None:
    """Append to the folder's `points.jsonl` what `job_file.parse` reads; no reason, no text."""
    document = {name: value for name, value in asdict(line).items() if value != ""}
    with (folder / POINTS_NAME).open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(document) + "\n")
