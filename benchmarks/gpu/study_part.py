"""The built-in search on the ranks that there are, and its trials read critically.

On one GPU it searches what one GPU decides: micro-batch, checkpointing, compilation, the attention
kernel, the precision of matrix products, and the optimizer's loop. Utilization is against the
device's peak, memory against the estimate.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

from clocks import add_clocks, sampled
from part import Findings, Grid, Place, cclsearch

from evaluator.estimate.memory import estimate_memory
from evaluator.rank.job import DeviceKind
from evaluator.recipes.builtin import rank_config, rank_workload
from records.expression import format_bytes
from records.store.store import Store
from records.study import Study
from records.trial import Failed, FailureKind, Measured, Trial
from search.views.format import format_flags, format_percent

HERE = Path(__file__).parent
LEAST_TRIALS = {"cuda": 6, "cpu": 4}
OFF_BY = 2.0
"""Estimated over measured memory, or the other way round, from which the estimate is doubted."""
IDLE = 0.9
LEAST_MFU = 0.02
UNEXPECTED = (FailureKind.CRASH, FailureKind.HANG, FailureKind.METRIC_ERROR)


def study_file(place: Place) -> Path:
    """The study for this machine: its sizes, and the knobs of several ranks where there are."""
    name = "study_cuda.toml" if place.has_gpu else "study_cpu.toml"
    text = (HERE / name).read_text(encoding="utf-8")
    ranks = place.machine.world_size if place.has_gpu else 1
    if ranks > 1:
        batch = tomllib.loads(text)["workload"]["global_batch"]
        text = text.replace(f"global_batch = {batch}", f"global_batch = {batch * ranks}")
        text += "\n[space.dp_replicate]\n[space.dp_shard]\n[space.tp]\n"
    path = place.folder("study") / "study.toml"
    path.write_text(text, encoding="utf-8")
    return path


def search(place: Place) -> Findings:
    """Search, then look at every trial."""
    asked = ("run", "-c", study_file(place), "--strategy", "offline", "--store", place.store)
    log = place.folder("study") / "clocks.csv"
    with sampled(log) if place.has_gpu else nullcontext():
        cclsearch(*asked, statuses=(0, 3))
    page = place.folder("study") / "report.md"
    cclsearch("report", "-o", page, "--store", place.store)
    with closing(Store(place.store)) as records:
        row = records.find("")
        trials = records.history(row.id).trials
    found = Findings(
        lead="A search by the built-in recipe, one launch a trial, its best launched again.",
        data={
            "study_id": row.id,
            "result": json.loads(row.summary) if row.summary else None,
            "trials": [_facts(trial, row.study) for trial in trials],
        },
    )
    work = row.study.workload
    found.facts += [
        ("model", f"{work.name}, {work.precision}, {work.tokens_per_step} tokens per step"),
        ("result", _result_words(row.summary)),
        ("report", f"{page.relative_to(place.out)}, by cclsearch report"),
    ]
    add_trials(found, found.data["trials"], on_gpu=place.has_gpu)
    if place.has_gpu:
        add_clocks(found, log.read_text(encoding="utf-8", errors="replace"))
    else:
        found.lacks.append("the peak of a CPU is not known, so there is no MFU")
        found.lacks.append("torch.compile, which takes a CPU longer than all other trials")
    return found


def add_trials(found: Findings, trials: Sequence[Mapping[str, Any]], *, on_gpu: bool) -> None:
    """Show what was measured of every trial, and doubt what cannot be right."""
    count = sum(each["step_s"] is not None for each in trials)
    found.facts.append(("trials", f"{len(trials)}, of which {count} were measured"))
    found.tables.append(_table(trials))
    if len(trials) < LEAST_TRIALS["cuda" if on_gpu else "cpu"]:
        found.doubts.append(f"only {len(trials)} trials fitted into the time")
    found.doubts += doubts(trials, on_gpu=on_gpu)
    ratios = [each["memory_ratio"] for each in trials if each["memory_ratio"]]
    if ratios:
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}, median {median(ratios):.2f}"
        found.facts.append(("estimated over measured memory", spread))


def _result_words(summary) -> str:
    found = json.loads(summary) if summary else {}
    if found.get("winner") is None:
        return "nothing was measured"
    return f"trial {found['winner']}; {found['stop_reason']}"


def _facts(trial: Trial, study: Study) -> dict[str, Any]:
    """What the page shows of a trial; None for what is not known."""
    outcome, config = trial.outcome, trial.config
    estimate = None
    if config is not None:
        settings = {**study.space.defaults, **config.values}
        device = DeviceKind(study.environment.device)
        work = rank_workload(study.workload)
        estimate = estimate_memory(work, rank_config(settings), device).total_bytes
    facts = {
        "trial": trial.ordinal,
        "config": "" if config is None else format_flags(config),
        "failure": str(outcome) if isinstance(outcome, Failed) else None,
        "kind": outcome.kind.value if isinstance(outcome, Failed) else None,
        "estimated_bytes": estimate,
        **dict.fromkeys(("step_s", "mfu", "no_mfu", "peak_bytes", "memory_ratio", "idle_share")),
        "is_profiled": False,
    }
    if isinstance(outcome, Measured):
        peak, parts = outcome.metric("peak_memory"), outcome.diagnosis
        facts["step_s"] = outcome.metric("step_time")
        facts["mfu"], facts["no_mfu"] = outcome.metric("mfu"), outcome.absent.get("mfu")
        facts["peak_bytes"] = peak
        facts["is_profiled"] = outcome.measurement.stopped != "slower"
        facts["memory_ratio"] = estimate / peak if estimate and peak else None
        if parts is not None:
            busy_s = parts.compute_s + parts.exposed_communication_s + parts.copy_s
            whole_s = busy_s + parts.idle_s
            facts["idle_share"] = parts.idle_s / whole_s if whole_s else None
    return facts


def _table(trials) -> Grid:
    rows = [
        (
            str(each["trial"]),
            each["config"],
            _text(each["step_s"], lambda value: f"{value * 1e3:.4g}"),
            _text(each["mfu"], format_percent),
            _text(each["peak_bytes"], format_bytes),
            _text(each["memory_ratio"], lambda value: f"{value:.2f}"),
            _text(each["idle_share"], format_percent),
            each["failure"] or ("" if each["is_profiled"] else "stopped early: slower"),
        )
        for each in trials
    ]
    headings = (
        *("trial", "configuration", "step, ms", "MFU", "peak memory"),
        *("estimate/measured", "device idle", "remark"),
    )
    return Grid(about="Trials in their order", headings=headings, rows=rows)


def _text(value, words) -> str:
    return "" if value is None else words(value)


def doubts(trials, *, on_gpu: bool) -> Iterator[str]:
    """Numbers of trials that cannot be right, or that a person should look at."""
    if all(each["step_s"] is None for each in trials):
        yield "no trial was measured"
    for each in trials:
        name = f"trial {each['trial']}"
        if each["kind"] in UNEXPECTED:
            yield f"{name}: {each['failure']}"
        if on_gpu and each["step_s"] is not None:
            yield from (f"{name}: {words}" for words in _strange(each))


def _strange(trial: Mapping[str, Any]) -> Iterator[str]:
    mfu, ratio, idle = trial["mfu"], trial["memory_ratio"], trial["idle_share"]
    if mfu is None:
        yield f"no MFU: {trial['no_mfu']}"
    elif mfu > 1 or mfu < LEAST_MFU:
        yield f"an MFU of {format_percent(mfu)}"
    if ratio is not None and not 1 / OFF_BY <= ratio <= OFF_BY:
        yield f"memory is estimated at {ratio:.2f} times what was measured"
    if idle is None and trial["is_profiled"]:
        yield "its trace shows no step on the device"
    elif idle is not None and idle > IDLE:
        yield f"the device is idle for {format_percent(idle)} of the profiled step"
