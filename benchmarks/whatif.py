"""How far what-if answers can be trusted: against other runs, recorded traces and published ones.

`oracle`: made-up jobs, each generated with one thing changed: the step that the replay of the
unchanged job predicts beside the step of the changed job. `corpus`: how far the unchanged replay of
each recorded trace is off in its worst step. `stragglers`: production jobs of StragglerAnalysis
(OSDI 2025): their replay and ours, with the durations as measured and with those of each operation
made equal, as theirs does by the mean; and our own answer, which takes the median rank. `chakra`:
the same jobs written as Chakra traces and read back, with the times that we write and without, as
others write them. `scale`: CPU time and memory of a large job.

    python benchmarks/whatif.py
    python benchmarks/whatif.py scale --events 1000000 --ranks 8
"""

import argparse
import json
import re
import resource
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from generated_events import Style
from generated_job import Shape
from generated_traces import generate, steps_for

from evaluator.traces.analysis.collectives import match
from evaluator.traces.intervals import Nanoseconds
from evaluator.traces.model import (
    Activity,
    CollectiveKind,
    Collectives,
    Device,
    Lane,
    RankGroup,
    RankTrace,
    Spans,
    SpanWaits,
    StepWindows,
    TraceSet,
)
from evaluator.traces.readers import protobuf
from evaluator.traces.readers.read import read_folder
from evaluator.whatif.questions import Question, Unanswered, WhatIf
from evaluator.whatif.replay import Durations
from records.errors import TraceError
from search.traces.chakra import write_chakra

SHARED = Path(__file__).parents[2] / "shared" / "data" / "traces"
LINKS = Question(bandwidth={"communication": 2.0})
JOBS = {
    "sharded": Shape(),
    "straggler": Shape(straggler=2),
    "slow links": Shape(bus_gb_per_s=25.0),
    "tensor parallel, experts": Shape(tensor_parallel=2, experts=True),
    "8 ranks, skew, straggler": Shape(ranks=8, world=8, skew_us=250.0, straggler=5),
    "small operators": Shape(operators=3, layers=12, bus_gb_per_s=60.0),
}
PER_NODE = 2
ATTRIBUTE = 10  # the field of a Chakra node
TIMES = re.compile(rb"..(?:start|end)_ns", re.DOTALL)
CHANGES = {
    "links x 2": (LINKS, {"bus_gb_per_s": 2.0}),
    "links x 4": (Question(bandwidth={"communication": 4.0}), {"bus_gb_per_s": 4.0}),
    "links x 0.5": (Question(bandwidth={"communication": 0.5}), {"bus_gb_per_s": 0.5}),
    "latency x 0.5": (Question(latency={"communication": 0.5}), {"latency_us": 0.5}),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("parts", nargs="*", default=["oracle", "corpus", "stragglers", "chakra"])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--events", type=int, default=1_000_000, help="of each rank, for scale")
    parser.add_argument("--folder", type=Path, help="where the traces of scale are, or will be")
    asked = parser.parse_args()
    parts = {
        "oracle": oracle,
        "corpus": corpus,
        "stragglers": stragglers,
        "chakra": chakra,
        "scale": lambda: scale(asked.ranks, asked.events, asked.folder),
    }
    return max(parts[name]() for name in asked.parts)


def oracle() -> int:
    """Compare predictions with runs of the changed job; return 1 if one is more than 1 % off.

    With more nodes, return 1 if a run is outside the bounds: the latency of the generated links
    does not depend on the number of ranks, whereas the predicted latency grows with it.
    """
    worst, outside = 0.0, 0
    print(
        f"{'job':<26} {'change':<14} {'step ms':>8} {'then':>8} {'replay':>8} {'off':>7}  between"
    )
    for name, shape in JOBS.items():
        found = replayed(made(shape))
        changes = [
            (words, question, replace(shape, **{k: getattr(shape, k) * f for k, f in by.items()}))
            for words, (question, by) in CHANGES.items()
        ]
        if shape.straggler is not None:
            changes.append(
                ("no straggler", Question(no_straggler=True), replace(shape, straggler=None))
            )
        if not shape.experts:  # their groups are taken to stay as they are
            changes += [
                (f"{nodes} nodes", Question(nodes=nodes), replace(shape, ranks=n, world=n))
                for nodes in (8, 16)
                for n in [nodes * PER_NODE]
            ]
        for words, question, other in changes:
            asked = found if question.nodes is None else replayed(found.traces, PER_NODE)
            answer = asked.answer(question)
            assert not isinstance(answer, Unanswered), answer
            then_s = replayed(made(other)).measured_s
            off = answer.predicted_s / then_s - 1
            if question.nodes is None:
                worst = max(worst, abs(off))
            elif not answer.low_s <= then_s <= answer.high_s:
                outside += 1
            print(
                f"{name:<26} {words:<14} {1e3 * answer.measured_s:8.3f} {1e3 * then_s:8.3f} "
                f"{1e3 * answer.predicted_s:8.3f} {off:+7.2%}  "
                f"{1e3 * answer.low_s:.3f} to {1e3 * answer.high_s:.3f}"
            )
    print(f"worst: {worst:.2%}; on more nodes outside of the bounds: {outside}\n")
    return int(worst > 0.01 or outside > 0)


def made(shape: Shape) -> TraceSet:
    """The traces of a made-up job."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder), shape, Style())
        return read_folder(Path(folder), use_cache=False)


def replayed(traces: TraceSet, ranks_per_node: int | None = None) -> WhatIf:
    """Its replay."""
    found = WhatIf.of(traces, match(traces), ranks_per_node)
    assert isinstance(found, WhatIf), found
    return found


def corpus() -> int:
    """The identity error of every recorded trace, or why there is none."""
    for path in sorted((*SHARED.glob("*/*.gz"), *(p for p in SHARED.glob("*/*") if p.is_dir()))):
        name = f"{path.parent.name}/{path.name}"
        try:
            traces = read_folder(path, use_cache=False)
        except TraceError:
            continue
        began = time.process_time()
        found = WhatIf.of(traces, match(traces))
        took_s = time.process_time() - began
        if isinstance(found, Unanswered):
            print(f"{name:<48} {found.reason}")
            continue
        links, kernels = (
            utility(found, question) for question in (LINKS, Question(kernels={"compute": 2.0}))
        )
        print(
            f"{name:<48} {found.graph.works.count:6} works  identity {found.identity_error:8.3%}  "
            f"unexplained {found.unexplained_share:6.1%}  U links {links}  U compute {kernels}"
            f"  {took_s:.2f} s"
        )
    print()
    return 0


def utility(found: WhatIf, question: Question) -> str:
    answer = found.answer(question)
    return "refused" if isinstance(answer, Unanswered) else f"{answer.utility:.1%}"


SAME = {
    "links x 2": LINKS,
    "latency x 0.5": Question(latency={"communication": 0.5}),
    "compute x 2": Question(kernels={"compute": 2.0}),
    "no straggler": Question(no_straggler=True),
    "8 nodes": Question(nodes=8),
}


def chakra() -> int:
    """Compare jobs with their Chakra traces; return 1 if what we wrote gives another answer.

    Without times, the step is that of a schedule, and answers may differ.
    """
    changed = 0
    recorded = {"recorded, 4 ranks": SHARED / "kineto" / "synth_fsdp_4rank_straggler2"}
    jobs = {name: read_folder(path, use_cache=False) for name, path in recorded.items()}
    jobs |= {name: made(shape) for name, shape in JOBS.items()}
    print(f"{'job':<26} {'step ms':>8} {'read back':>10} {'same':>9} {'scheduled':>10}  off")
    for name, traces in jobs.items():
        found = replayed(traces, PER_NODE)
        with tempfile.TemporaryDirectory() as temporary:
            written, bare = Path(temporary, "written"), Path(temporary, "bare")
            write_chakra(found, written)
            bare.mkdir()
            for file in written.iterdir():
                (bare / file.name).write_bytes(without_times(file.read_bytes()))
            back, scheduled = (
                replayed(read_folder(folder), PER_NODE) for folder in (written, bare)
            )
        same = [found.answer(question) == back.answer(question) for question in SAME.values()]
        changed += len(same) - sum(same)
        off = [difference(found, scheduled, question) for question in SAME.values()]
        print(
            f"{name:<26} {1e3 * found.measured_s:8.3f} "
            f"{back.measured_s / found.measured_s - 1:+10.4%} {sum(same):4} of {len(same)} "
            f"{scheduled.measured_s / found.measured_s - 1:+10.4%}  {', '.join(off)}"
        )
    print(f"answers off by points of the step: {', '.join(SAME)}")
    print(f"answers that differ after reading back: {changed}\n")
    return int(changed > 0)


def difference(found: WhatIf, other: WhatIf, question: Question) -> str:
    answer, then = found.answer(question), other.answer(question)
    if isinstance(answer, Unanswered) or isinstance(then, Unanswered):
        return "refused"
    return f"{100 * (then.utility - answer.utility):+.2f}"


def without_times(content: bytes) -> bytes:
    """A Chakra trace as others write it: durations only."""
    data, found, at = bytearray(content), bytearray(), 0
    while at < len(data):
        size, start = protobuf.varint(data, at)
        at, kept = start + size, b""
        for key, value, end in protobuf.fields(data, start, at):
            field, how = key >> 3, key & 7
            if how == protobuf.NUMBER:
                kept += protobuf.number_field(field, value)
            elif not (field == ATTRIBUTE and TIMES.match(data[value:end])):
                kept += protobuf.bytes_field(field, bytes(data[value:end]))
        found += protobuf.delimited(kept)
    return bytes(found)


KINDS = {
    "all-reduce": CollectiveKind.ALL_REDUCE,
    "reduce-scatter": CollectiveKind.REDUCE_SCATTER,
    "all-gather": CollectiveKind.ALL_GATHER,
    "clip-main-grad": CollectiveKind.ALL_REDUCE,
    "send": CollectiveKind.SEND,
    "recv": CollectiveKind.RECV,
}


CLOCK_NS = 5_000


def stragglers() -> int:
    """Published what-if results of production jobs, and ours."""
    from pyarrow import parquet

    for path in sorted((SHARED / "straggler").glob("trace-*.parquet")):
        name = path.stem.removeprefix("trace-")
        result = json.loads((path.parent / f"result-{name}.json").read_text())
        jobs = [replayed(job) for job in published_jobs(parquet.read_table(path), result)]
        theirs_s = {
            "measured": mean(result["step_t_base"].values()),
            "replayed": mean(result["step_t_nodelay"].values()),
            "operations equal": mean(result["step_t_noblk"].values()),
        }
        ours_s = {
            "measured": mean(one.measured_s for one in jobs),
            "replayed": mean(one.step_s(one.unchanged) for one in jobs),
            "operations equal": mean(one.step_s(one.replay.times(equal(one))) for one in jobs),
        }
        print(f"job {name}: {len(jobs)} steps of {len(jobs[0].traces.ranks)} workers")
        for what, their_s in theirs_s.items():
            off = ours_s[what] / their_s - 1
            print(f"  {what:<18} theirs {their_s:.4f} s  ours {ours_s[what]:.4f} s  {off:+.2%}")
        slowdown = ours_s["replayed"] / ours_s["operations equal"]
        print(
            f"  slowdown           theirs {result['blocking_slowdown']:.4f}    ours {slowdown:.4f}"
        )
        print(
            f"  worst step: identity {max(one.identity_error for one in jobs):.3%}, "
            f"unexplained {max(one.unexplained_share for one in jobs):.1%}"
        )
        answers = [one.answer(Question(no_straggler=True)) for one in jobs]
        medians_s = [one.predicted_s for one in answers if not isinstance(one, Unanswered)]
        asked = f"{len(medians_s)} of {len(jobs)} steps answered"
        said = f", {mean(medians_s):.4f} s" if medians_s else ""
        print(f"  no straggler, by the median worker: {asked}{said}")
    return 0


def equal(found: WhatIf) -> Durations:
    """Each operation of a name as long as at the mean over workers, as theirs has it."""
    works, recorded = found.graph.works, found.recorded
    _, place = np.unique(works.name, return_inverse=True)
    counts = np.bincount(place)
    mean_ns = np.bincount(place, works.duration_ns) / counts
    joint = works.instance >= 0
    transfer_ns = recorded.transfer_ns.copy()
    _, kind = np.unique(found.matches.kind[found.graph.instances], return_inverse=True)
    transfer_ns = (np.bincount(kind, transfer_ns) / np.bincount(kind))[kind].astype(np.int64)
    work_ns = np.where(joint, works.duration_ns, mean_ns[place]).astype(np.int64)
    return Durations(work_ns=work_ns, transfer_ns=transfer_ns)


def published_jobs(table: Any, result: Mapping[str, Any]) -> list[TraceSet]:
    """Each step of a published job as the traces of its workers."""
    meta = result["job_meta"]
    by_step: dict[int, dict[int, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for one in table.to_pylist():
        by_step[one["step"]][one["dp_rank"] * meta["pp_size"] + one["stage"]].append(one)
    return [
        TraceSet(ranks=tuple(worker(rank, own, meta) for rank, own in sorted(by_rank.items())))
        for by_rank in by_step.values()
    ]


def worker(rank: int, own: list[dict[str, Any]], meta: Mapping[str, int]) -> RankTrace:
    """The trace of one worker: a stream of compute, and one of each sort of communication."""
    own.sort(key=lambda one: float(one["start_ts"]))
    names = sorted({one["optype"] for one in own})
    kinds = [
        next((kind for word, kind in KINDS.items() if one["optype"].endswith(word)), None)
        for one in own
    ]
    start_ns = np.array([round(1e9 * one["start_ts"]) for one in own])
    end_ns = start_ns + np.array([round(1e9 * one["duration"]) for one in own])
    # Compute begins up to 3 us before the end of what it waits for, as it was recorded.
    talk = np.array([kind is not None for kind in kinds])
    end_ns[talk] = np.maximum(end_ns[talk] - CLOCK_NS, start_ns[talk])
    lanes = [
        0 if kind is None else 1 + names.index(one["optype"])
        for one, kind in zip(own, kinds, strict=True)
    ]
    talks = [place for place, kind in enumerate(kinds) if kind is not None]
    steps = np.array([one["step"] for one in own])
    numbers = np.unique(steps)
    windows = StepWindows.plain(
        numbers,
        np.array([start_ns[steps == number].min() for number in numbers]),
        np.array([end_ns[steps == number].max() for number in numbers]),
    )
    world_size = meta["pp_size"] * meta["dp_size"]
    return RankTrace(
        rank=rank,
        world_size=world_size,
        backend=None,
        device=Device(name="worker"),
        source="kineto",
        spans=Spans.build(
            names=names,
            lanes=[Lane("0", str(lane)) for lane in range(len(names) + 1)],
            start_ns=start_ns,
            end_ns=end_ns,
            name_id=[names.index(one["optype"]) for one in own],
            lane_id=lanes,
            activity=[
                Activity.COMPUTE if kind is None else Activity.COMMUNICATION for kind in kinds
            ],
        ),
        collectives=Collectives.build(
            span=np.array(talks),
            kind=[kind for kind in kinds if kind is not None],
            groups=[
                group_of(own[place]["optype"], rank, meta["pp_size"], world_size) for place in talks
            ],
            bytes=np.zeros(len(talks)),
        ),
        waits=program_order(start_ns, end_ns),
        steps=windows,
        host_steps=windows,
    )


def program_order(start_ns: Nanoseconds, end_ns: Nanoseconds) -> SpanWaits:
    """A worker makes its operations one after the other; a send and a receipt start together.

    So each waits for those of the start before, as far as they had ended; rows are by start.
    """
    moments = np.unique(start_ns)
    place = np.searchsorted(moments, start_ns)
    pairs = [
        (source, target)
        for number in range(1, moments.size)
        for source in np.flatnonzero(place == number - 1).tolist()
        for target in np.flatnonzero(place == number).tolist()
        if end_ns[source] <= start_ns[target] + CLOCK_NS
    ]
    source, target = np.array(pairs, np.int64).reshape(-1, 2).T
    return SpanWaits(source=source, target=target)


def group_of(name: str, rank: int, stages: int, world: int) -> RankGroup:
    """Who takes part: neighbours in the pipeline, the first and last stage, or all replicas."""
    replica, stage = divmod(rank, stages)
    if name.startswith("embedding"):
        ranks = sorted({replica * stages, replica * stages + stages - 1})
    elif name.endswith(("send", "recv")):
        ahead = name in {"forward-send", "backward-recv"}
        ranks = sorted((rank, rank + 1 if ahead else rank - 1))
    elif name.startswith("optimizer"):
        ranks = list(range(world))  # the norm of all gradients: it lasts until the last has come
    else:
        ranks = list(range(stage, world, stages))
    return RankGroup(f"{name.split('-')[0]} {ranks}", tuple(ranks), len(ranks))


def scale(rank_count: int, event_count: int, folder: Path | None) -> int:
    """CPU seconds and memory of a large job: read before, and read from its cache."""
    with tempfile.TemporaryDirectory() as temporary:
        place = folder or Path(temporary)
        if not any(place.glob("rank*")):
            shape = Shape(ranks=rank_count, world=rank_count, straggler=1)
            generate(place, replace(shape, steps=steps_for(shape, event_count)), Style())
            read_folder(place)
        laps = Laps()
        traces = read_folder(place)
        laps.done("read from the cache")
        matches = match(traces)
        laps.done("match collectives")
        found = WhatIf.of(traces, matches)
        assert isinstance(found, WhatIf)
        laps.done("graph, replay unchanged")
        answer = found.answer(LINKS)
        laps.done("first answer, with its bounds and the critical path")
        found.answer(Question(no_straggler=True))
        laps.done("second answer")
    print(f"{rank_count} ranks x {found.graph.works.count // rank_count} works, {answer}")
    print(f"identity {found.identity_error:.4%}; in all {time.process_time() - laps.began_s:.1f} s")
    return 0


class Laps:
    """Prints CPU seconds of each part, and the most memory so far."""

    def __init__(self) -> None:
        self.began_s = self._last_s = time.process_time()

    def done(self, what: str) -> None:
        """A part is done."""
        now_s = time.process_time()
        memory_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(f"{what:<54} {now_s - self._last_s:6.2f} s CPU, {memory_gb:.2f} GB")
        self._last_s = now_s


if __name__ == "__main__":
    sys.exit(main())
