"""Writes traces of a made-up training job as the PyTorch profiler would, and what is true of it.

One file per rank as the profiler lays it out, about 280 bytes an event: operators around launches,
kernels, copies and collectives with their arguments, the flows between them, Python frames, step
annotations on host and streams. `truth.json` beside them holds the exact answers in nanoseconds.
Files are written as the job is simulated, so their size costs no memory. Of `--layout`: `torch` is
as the profiler writes; `sorted` has keys in alphabetical order on one line per event, as a script
leaves them that loads and saves. Of `--era`: times relative to a base (torch 2.4 and later),
absolute with three decimals (2.3), or whole absolute microseconds (before). `--maker mtia` writes
waits, DMA and kernels in the one category that MTIA has; `--no-groups` leaves out what kernels and
header say of collectives, as torch before 2.3 does.

    python benchmarks/generated_traces.py OUT --ranks 4 --straggler 2 --gzip
    python benchmarks/generated_traces.py OUT --events 1000000 --ranks 1 --world 2
"""

import argparse
import gzip
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, fields, replace
from pathlib import Path
from random import Random
from typing import TextIO, cast, get_args

from generated_events import Era, Layout, Maker, Style, Writer
from generated_job import Job, Shape
from generated_truth import Truth


def generate(folder: Path, shape: Shape, style: Style) -> dict[str, object]:
    """Write one trace per rank and `truth.json` into a folder; gives the truth."""
    if style.era == "integer":
        shape = replace(shape, quantum_ns=1_000)
    job, truth = Job(shape), Truth()
    random = Random(shape.seed)
    skews_ns = [
        int(random.uniform(-shape.skew_us, shape.skew_us)) * 1_000 for _ in range(shape.ranks)
    ]
    writers = [Writer(shape, style, rank, skew_ns) for rank, skew_ns in enumerate(skews_ns)]
    counts = [0] * shape.ranks
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        files = [stack.enter_context(opened(folder, rank, style)) for rank in range(shape.ranks)]
        for rank, (file, writer) in enumerate(zip(files, writers, strict=True)):
            file.write(writer.header(shape))
            counts[rank] = _write(file, writer.first_events(), first=True)
        for number in range(5, 5 + shape.steps):
            steps = job.step(number)
            truth.add(steps)
            for step, file, writer in zip(steps, files, writers, strict=True):
                counts[step.rank] += _write(file, writer.events(step))
        for file, writer in zip(files, writers, strict=True):
            file.write(writer.footer())
    told = {"args": asdict(shape) | asdict(style), "units": "ns unless stated", **truth.told()}
    ranks = cast(Mapping[str, dict[str, object]], told["ranks"])
    for rank, (count, skew_ns) in enumerate(zip(counts, skews_ns, strict=True)):
        ranks[str(rank)] |= {"events": count, "clock_skew": skew_ns}
    (folder / "truth.json").write_text(json.dumps(told, indent=1), encoding="utf-8")
    return told


def opened(folder: Path, rank: int, style: Style) -> TextIO:
    path = folder / f"rank{rank}_trace.json{'.gz' if style.gzip else ''}"
    if style.gzip:
        return cast(TextIO, gzip.open(path, "wt", compresslevel=6, encoding="utf-8"))
    return path.open("w", encoding="utf-8", buffering=1 << 20)


def _write(file: TextIO, events: Iterator[str], *, first: bool = False) -> int:
    texts = list(events)
    file.write(("" if first else ",\n") + ",\n".join(texts))
    return len(texts)


def steps_for(shape: Shape, event_count: int) -> int:
    """How many steps give each rank about so many events; at least one."""
    one = Job(shape).step(5)[0]
    per_step = sum(1 for _ in Writer(shape, Style(), 0, 0).events(one))
    return max(1, round(event_count / per_step))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where to")
    plain = Shape()
    for field in fields(Shape):
        value = getattr(plain, field.name)
        name = f"--{field.name.replace('_', '-')}"
        if isinstance(value, bool):
            parser.add_argument(name, action="store_true")
        elif field.name != "quantum_ns":
            parser.add_argument(name, type=int if value is None else type(value), default=value)
    parser.add_argument("--events", type=int, help="about so many on each rank, instead of --steps")
    parser.add_argument("--era", choices=get_args(Era), default="relative")
    parser.add_argument("--layout", choices=get_args(Layout), default="torch")
    parser.add_argument("--maker", choices=get_args(Maker), default="cuda")
    parser.add_argument("--no-groups", action="store_false", dest="groups_told")
    parser.add_argument("--gzip", action="store_true")
    asked = vars(parser.parse_args())
    known = {field.name for field in fields(Shape)}
    shape = Shape(**{name: value for name, value in asked.items() if name in known})
    if asked["events"]:
        shape = replace(shape, steps=steps_for(shape, asked["events"]))
    style = Style(**{field.name: asked[field.name] for field in fields(Style)})
    generate(asked["folder"], shape, style)
    for path in sorted(asked["folder"].glob("rank*_trace.json*")):
        print(f"{path.stat().st_size / 1e6:9.1f} MB  {path}")


if __name__ == "__main__":
    main()
