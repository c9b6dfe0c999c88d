"""Collectives on the ranks that there are, and knobs of NCCL as its own debug output shows them."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

from part import CommandFailed, Findings, Grid, Place, cclsearch

from evaluator.evaluate import TrialEvaluator
from evaluator.launchers.local import LocalLauncher
from evaluator.recipes.catalog import recipe_of
from records.study import Study
from records.trial import Config, Failed
from search.settings import trial_environment
from search.study.spaces import completed
from search.study.study_file import builtin_study, read_study_file
from search.views.format import format_decimal_bytes, format_duration

SWEEP = {
    "cuda": ("all", "--max-size", "64M", "--size-scaling-factor", "64", "--iters", "100"),
    "cpu": ("all_reduce", "--max-size", "64K", "--size-scaling-factor", "128", "--iters", "50"),
}
POINT_S = 15
MISSED = 3
STUDY = """
[workload]
phase = "communication"
[launch]
recipe = "collectives"
[environment]
world_size = {ranks}
ranks_per_node = {ranks}
[measure]
timeout_s = 60
[[message]]
collective = "all_reduce"
size_bytes = 4194304
[space.{knob}]
"""
DEBUG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING"}
KNOBS: Mapping[str, int | str] = {
    "nccl_nthreads": 256,
    "nccl_buffsize": 1 << 20,
    "nccl_min_nchannels": 4,
    "nccl_max_nchannels": 4,
}
RANKS_KNOBS: Mapping[str, int | str] = {"nccl_algo": "Ring", "nccl_proto": "Simple"}
"""What NCCL chooses, and reports, only where there are several ranks."""
GLOO_KNOBS: Mapping[str, int | str] = {"in_flight": 4}
_SET = re.compile(r"(?P<name>NCCL_[A-Z0-9_]+) set by environment to (?P<value>[^\s.]+)")
_VERSION = re.compile(r"NCCL version (?P<version>\S+)")
_CHANNELS = re.compile(r"NCCL INFO (?:comm \w+, )?(\d+) coll channels")
_CHOICE = re.compile(r"\d+ Bytes -> Algo (\w+) proto (\w+)")
ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")
"""What NCCL before 2.24 prints the numbers of."""


def measure(place: Place) -> Findings:
    """Sweep message sizes, then launch a step of messages under knobs of the library."""
    found = Findings(lead="cclsearch bench collectives, and a launch of the recipe collectives.")
    try:
        points = swept(place)
    except CommandFailed as failed:
        points = []
        found.doubts.append(str(failed))
    found.facts.append(("points", _counts(points) or "none"))
    found.tables.append(_table(points))
    for point in points:
        status, reason = point["point"]["status"], point["point"]["reason"]
        if status not in ("measured", "skipped"):
            found.doubts.append(f"{_name(point)}: {status}: {reason}")
    if place.has_gpu and place.machine.world_size == 1:
        found.lacks.append(
            "traffic between GPUs: one rank exchanges nothing, and NCCL chooses no algorithm"
        )
    found.data = {"points": points, "knobs": _add_knobs(found, place)}
    if place.has_gpu and place.machine.world_size > 1:
        found.facts.append(("search", searched(place)))
    return found


def swept(place: Place) -> list[dict]:
    """Every point of the sweep, as its record says."""
    ranks = place.machine.world_size if place.has_gpu else 2
    words = (*SWEEP[place.machine.device], "--c10d", "--nproc-per-node", ranks, "--warmup", 5)
    folder = place.folder("collectives")
    files = ("--csv", "--output-dir", folder, "--timeout", POINT_S, "--json")
    printed = cclsearch("bench", "collectives", *words, *files, statuses=(0, MISSED))
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


def _counts(points: Sequence[Mapping]) -> str:
    statuses = [point["point"]["status"] for point in points]
    return ", ".join(f"{statuses.count(each)} {each}" for each in dict.fromkeys(statuses))


def _name(point: Mapping) -> str:
    operation = point["point"]["operation"]
    return f"{operation['collective']}, {format_decimal_bytes(operation['size_bytes'])}"


def _table(points: Sequence[Mapping]) -> Grid:
    """The largest message of each collective that was measured."""
    largest = {point["point"]["operation"]["collective"]: point for point in points}
    rows = []
    for collective, point in largest.items():
        metrics = point["metrics"]
        size = format_decimal_bytes(point["point"]["operation"]["size_bytes"])
        if metrics is None:
            rows.append((collective, size, point["point"]["status"], "", point["point"]["reason"]))
            continue
        bandwidth, latency_s = metrics["bandwidth"], metrics["median_time_us"] / 1e6
        rows.append(
            (
                *(collective, size, "measured", format_duration(latency_s)),
                _bandwidth_words(bandwidth) if bandwidth else "",
            )
        )
    headings = ("collective", "message", "status", "latency", "bandwidth")
    return Grid(about="The largest message of each collective", headings=headings, rows=rows)


def _bandwidth_words(bandwidth: Mapping[str, float]) -> str:
    on_bus = f", {bandwidth['bus_gbps']:.3g} on the bus" if bandwidth["factor"] else ""
    return f"{bandwidth['algorithm_gbps']:.3g} GB/s{on_bus}"


def collective_study(place: Place, knob: str) -> Study:
    """A study of one all-reduce on all ranks."""
    ranks = place.machine.world_size if place.has_gpu else 2
    path = place.folder("collectives") / "study.toml"
    path.write_text(STUDY.format(ranks=ranks, knob=knob), encoding="utf-8")
    return completed(read_study_file(path, builtin_study(place.machine)))


def _add_knobs(found: Findings, place: Place) -> dict[str, object]:
    """Launch with knobs that are set, and look for each in what the library prints."""
    study = collective_study(place, "in_flight")
    several = study.environment.world_size > 1
    knobs = {**KNOBS, **(RANKS_KNOBS if several else {})} if place.has_gpu else GLOO_KNOBS
    recipe = recipe_of(study)
    folder = place.folder("collectives") / "knobs"
    folder.mkdir()
    seen = {**recipe.inherited(study, trial_environment()), **DEBUG}
    with closing(LocalLauncher(seen, study.launch.threads_per_rank)) as launcher:
        evaluator = TrialEvaluator(recipe, launcher, lambda _phase: None)
        outcome = evaluator.evaluate(study, Config(dict(knobs)), folder)
    if isinstance(outcome, Failed):
        found.doubts.append(f"a launch with {knobs}: {outcome}")
        return {"asked": dict(knobs), "failure": str(outcome)}
    found.facts.append(("a step under knobs", format_duration(outcome.metric("step_time"))))
    if not place.has_gpu:
        found.lacks.append("knobs of NCCL, which is for GPUs; a knob of gloo was launched instead")
        return {"asked": dict(knobs)}
    log = "\n".join(path.read_text(errors="replace") for path in sorted(folder.glob("rank*.log")))
    return {"asked": dict(knobs), **add_nccl(found, knobs, log)}


def add_nccl(found: Findings, knobs: Mapping[str, object], log: str) -> dict[str, object]:
    """Compare knobs with what NCCL's debug output says that it took, and then did."""
    version, taken, done = _VERSION.search(log), taken_by_nccl(log), done_by_nccl(log)
    found.facts.append(("NCCL's own version", version["version"] if version else "not printed"))
    rows = list(compared(knobs, taken, done))
    headings = ("knob", "asked for", "NCCL takes", "NCCL then uses", "in effect")
    found.tables.append(Grid(about="Knobs in NCCL's output", headings=headings, rows=rows))
    missing = [row[0] for row in rows if row[-1] == "no"]
    if missing:
        found.doubts.append(f"NCCL's output does not confirm {', '.join(missing)}")
    return {"version": version and version["version"], "taken": taken, "used": done}


def taken_by_nccl(log: str) -> dict[str, str]:
    """The value of every variable that NCCL says it took from the environment."""
    return {each["name"]: each["value"] for each in _SET.finditer(log)}


def done_by_nccl(log: str) -> dict[str, str]:
    """What NCCL made of a knob: the channels that it built, algorithm and protocol of messages."""
    channels = sorted({int(count) for count in _CHANNELS.findall(log)})
    words = ", ".join(map(str, channels))
    choices = dict.fromkeys(_CHOICE.findall(log))
    algorithms = dict.fromkeys(_named(algorithm, ALGORITHMS) for algorithm, _ in choices)
    protocols = dict.fromkeys(_named(protocol, PROTOCOLS) for _, protocol in choices)
    used = {
        **dict.fromkeys(("nccl_min_nchannels", "nccl_max_nchannels"), words),
        "nccl_algo": ", ".join(algorithms),
        "nccl_proto": ", ".join(protocols),
    }
    return {knob: value for knob, value in used.items() if value}


def _named(word: str, names: Sequence[str]) -> str:
    return names[int(word)] if word.isdecimal() and int(word) < len(names) else word


def compared(
    knobs: Mapping[str, object], taken: Mapping[str, str], used: Mapping[str, str]
) -> Iterator[Sequence[str]]:
    """Knob, value asked for, taken and used, and whether these are the same, as far as it says."""
    for knob, value in knobs.items():
        asked, took, does = str(value), taken.get(knob.upper(), "nothing"), used.get(knob)
        is_same = took.lower() == (does or asked).lower() == asked.lower()
        in_effect = "no" if not is_same else "yes" if does else "taken"
        yield knob, asked, took, does or "not shown", in_effect


def searched(place: Place) -> str:
    """A small search over settings of the library, on all GPUs."""
    path = place.folder("collectives") / "search.toml"
    text = STUDY.format(ranks=place.machine.world_size, knob="nccl_algo")
    path.write_text(text + "[space.nccl_proto]\n[space.nccl_nthreads]\n", encoding="utf-8")
    store = place.folder("collectives") / "store"
    words = ("run", "-c", path, "--strategy", "offline", "--trials", 6, "--max-wall", 60)
    printed = cclsearch(*words, "--store", store, "--json", statuses=(0, MISSED))
    finding = json.loads(printed.splitlines()[-1])
    return f"trial {finding['winner']} of study {finding['study_id']}; {finding['stop_reason']}"
