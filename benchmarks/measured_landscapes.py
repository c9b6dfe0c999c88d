"""Landscape files out of exhaustive launches, as `landscape.py` beside this left them.

A configuration's sample of a launch is the median of its steps; one of which most launches failed
counts as failed. The estimates are those of the study's recipe. The built-in study is made for the
machine that its data file names.

    python benchmarks/measured_landscapes.py                       # the built-in study's
    python benchmarks/measured_landscapes.py -c study.toml --data mpi.jsonl --out mpi.json
"""

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluator.machine import local_environment
from policies.contract import decide, seed_policy
from records.codec import to_json
from records.study import Objective, Study, choices_of
from records.trial import Config, FailureKind
from search.strategy_bench.landscape import Entry, Fault, Landscape, with_estimates
from search.study.spaces import completed, space_of
from search.study.study_file import builtin_study, read_study_file

HERE = Path(__file__).parent
BUILTIN_DATA = HERE / "data" / "landscape.jsonl"
BUILTIN_OUT = HERE.parent / "search" / "strategy_bench" / "measured" / "builtin-cpu.json"
ABOUT = "Every valid configuration, each launched {launches} times in shuffled rounds: {machine}."


def main() -> None:
    parser = argparse.ArgumentParser(description="A landscape file out of exhaustive launches.")
    parser.add_argument("-c", "--config", type=Path, help="study file; else the built-in study")
    parser.add_argument("--data", type=Path, default=BUILTIN_DATA, help="exhaustive launches")
    parser.add_argument("--out", type=Path, default=BUILTIN_OUT, help="landscape file to write")
    options = parser.parse_args()
    header, *rows = map(json.loads, options.data.read_text(encoding="utf-8").splitlines())
    landscape = with_estimates(landscape_of(measured_study(options.config, header), header, rows))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_landscape(landscape, options.out)
    print(f"{options.out}: {len(landscape.entries)} configurations")


def measured_study(config: Path | None, header: Mapping[str, Any]) -> Study:
    """The study as it was on the machine that was measured."""
    machine = str(header["machine"])
    world_size = header["world_size"]
    here = replace(
        local_environment(),
        name="measured",
        device="cpu",
        accelerator=machine,
        world_size=world_size,
        ranks_per_node=world_size,
        memory_bytes=None,
        software={"torch": header["torch"]},
    )
    base = builtin_study(here)
    study = read_study_file(config, base) if config else base
    memory = header["memory_budget_bytes"]
    return completed(replace(study, launch=replace(study.launch, memory_budget_bytes=memory)))


def landscape_of(
    study: Study, header: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]
) -> Landscape:
    launches: dict[Config, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        launches[Config(row["config"])].append(row)
    counts = [len(each) for each in launches.values()]
    dimensions = (replace(d, choices=choices_of(d), range=None) for d in study.space.dimensions)
    return Landscape(
        version=1,
        name=study.name,
        about=ABOUT.format(launches=min(counts), machine=header["machine"]),
        objective=Objective(expression="step_time", direction="minimize"),
        unit="s",
        workload=study.workload,
        environment=study.usable_environment,
        launch=study.launch,
        space=replace(study.space, dimensions=tuple(dimensions)),
        seed=seed_of(study).values,
        entries=tuple(entry(config, each) for config, each in launches.items()),
    )


def seed_of(study: Study) -> Config:
    space = space_of(study)
    decided = decide(
        seed_policy(study.seed_policy, space), study.workload, study.usable_environment, space
    )
    if not isinstance(decided, Config):
        raise SystemExit(f"the seed policy decides for nothing: {decided}")
    return decided


def entry(config: Config, launches: list[Mapping[str, Any]]) -> Entry:
    samples = [statistics.median(row["step_times_s"]) for row in launches if "kind" not in row]
    failed = [row for row in launches if "kind" in row]
    most_failed = len(failed) > len(samples)
    return Entry(
        config=config.values,
        samples=() if most_failed else tuple(round(sample, 7) for sample in samples),
        failure=fault(failed[0]) if most_failed else None,
    )


def fault(row: Mapping[str, Any]) -> Fault:
    return Fault(kind=FailureKind(row["kind"]), message=str(row["message"]))


def write_landscape(landscape: Landscape, path: Path) -> None:
    """Write the file that `read_landscape` reads, one entry a line."""
    head = json.loads(to_json(landscape))
    del head["entries"]
    words = json.dumps(_without_empty(head), indent=1, ensure_ascii=False).removesuffix("\n}")
    lines = (
        json.dumps(_without_empty(json.loads(to_json(each))), ensure_ascii=False)
        for each in landscape.entries
    )
    entries = ",\n  ".join(lines)
    path.write_text(f'{words},\n "entries": [\n  {entries}\n ]\n}}\n', encoding="utf-8")


def _without_empty(value: object) -> object:
    """The document without empty values, so that a person can read it."""
    match value:
        case dict():
            kept = {key: _without_empty(each) for key, each in value.items()}
            return {key: each for key, each in kept.items() if each not in (None, [], {}, "")}
        case list():
            return [_without_empty(each) for each in value]
        case _:
            return value


if __name__ == "__main__":
    main()
