"""Landscapes that nothing of a search was ever tuned on, each from physics of its own.

No formula is that of cclsearch's cost model, and no constant of a strategy was chosen by what a
search did here; nor may it be. A kind is drawn by a seed: peaks, links, latencies and model sizes
differ from seed to seed, while published results are those of `SEED`. Launches vary by `NOISE`.

`dense-16` and `dense-64` train a decoder: matrices in whole waves of tiles, memory-bound
operators, rings within and between nodes, uneven pipeline stages, and a memory wall.
`prior-reversed` is `dense-16` with estimates that rank it backwards. In `serving` a queue (M/G/k)
has limits on the time to the first and to the next token. `nccl` has categories that only work
together. `kernel`, `infeasible`, `plateau` and `needle` have knobs without a meaning, with up to 29
choices: a GPU kernel by its occupancy, 83 % that do not run, hardly anything that differs, and one
good configuration that nothing near it announces.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from random import Random
from typing import Final, TypeAlias

from dense_training import LIBRARIES_BYTES, Cluster, Training

from policies.space import Space
from records.study import (
    Command,
    Constraint,
    Dimension,
    Environment,
    Launch,
    Link,
    Objective,
    SearchSpace,
    Value,
)
from records.trial import FailureKind
from records.workload import Workload
from search.strategy_bench.landscape import Entry, Fault, Landscape, with_estimates

SEED: Final = 2026
NOISE: Final = 0.02
GIB: Final = 2**30
Settings: TypeAlias = Mapping[str, Value]
Answer: TypeAlias = float | Fault | tuple[float, int]
"""A value of the objective, with the peak memory where that is measured; or how launches fail."""
SCRIPT: Final = Command(run=("unseen_landscapes",), rank_count="tp * pp * dp")
SINGLE: Final = Command(run=("unseen_landscapes",), rank_count="1")
PLAIN: Final = Workload(name="unseen", global_batch=1, sequence_length=1)
HOST: Final = Environment(
    name="unseen", device="cuda", accelerator="GPU", world_size=1, ranks_per_node=1
)
STEP_TIME: Final = Objective(expression="step_time", direction="minimize")


def unseen_landscape(kind: str, seed: int = SEED) -> Landscape:
    """Return the landscape of one of `KINDS`."""
    return KINDS[kind](kind, Random(f"{kind}/{seed}"))


def _landscape(
    name: str,
    about: str,
    choices: Mapping[str, Sequence[Value]],
    answer: Callable[[Settings], Answer],
    *,
    rules: Sequence[str] = (),
    when: Mapping[str, str] | None = None,
    objective: Objective = STEP_TIME,
    unit: str = "s",
    workload: Workload = PLAIN,
    environment: Environment = HOST,
    command: Command = SINGLE,
) -> Landscape:
    """Ask for every configuration; a search starts at one that is worse than seven of eight."""
    space = SearchSpace(
        dimensions=tuple(
            Dimension(name=knob, choices=tuple(values), when=(when or {}).get(knob))
            for knob, values in choices.items()
        ),
        constraints=tuple(
            Constraint(name=f"rule_{n}", expression=rule) for n, rule in enumerate(rules, start=1)
        ),
    )
    entries = [
        _entry(config.values, answer(config.values))
        for config in Space(space, workload, environment).feasible
    ]
    lower = objective.direction == "minimize"
    measured = sorted((e for e in entries if e.samples), key=lambda e: e.samples, reverse=not lower)
    return Landscape(
        version=1,
        name=name,
        about=about,
        objective=objective,
        unit=unit,
        workload=workload,
        environment=environment,
        launch=Launch(recipe="command"),
        command=command,
        space=space,
        seed=measured[len(measured) * 7 // 8].config,
        noise_sigma=NOISE,
        entries=tuple(entries),
    )


def _entry(config: Settings, answer: Answer) -> Entry:
    if isinstance(answer, Fault):
        return Entry(config=config, failure=answer)
    value, peak = answer if isinstance(answer, tuple) else (answer, None)
    return Entry(config=config, samples=(float(f"{value:.6g}"),), peak_memory_bytes=peak)


def _out_of_memory(capacity: float, asked: float) -> Fault:
    """Return what PyTorch reports: the allocation that failed, not all that was needed."""
    free = min(0.7 * asked, 0.02 * capacity)
    return Fault(
        kind=FailureKind.OUT_OF_MEMORY,
        message=f"CUDA out of memory. Tried to allocate {asked / GIB:.2f} GiB. GPU 0 has a total "
        f"capacity of {capacity / GIB:.2f} GiB of which {free / GIB:.2f} GiB is free.",
    )


def _dense(name: str, draw: Random, model: str, layer_count: int, node_count: int) -> Landscape:
    hidden, ffn = (4096, 14336) if model == "8B" else (8192, 28672)
    cluster = Cluster(
        node_count=node_count,
        flops_per_s=draw.choice([280e12, 800e12]),
        memory_bytes_per_s=draw.uniform(1.7e12, 3.2e12),
        memory_bytes=draw.choice([64, 80]) * 0.985 * GIB,
        cores=draw.choice([108, 132]),
        nvlink_bytes_per_s=draw.uniform(180e9, 380e9),
        network_bytes_per_s=draw.uniform(10e9, 45e9),
        hop_s=draw.uniform(2e-6, 5e-6),
    )
    ranks = 8 * node_count
    work = Workload(
        name=f"decoder-{model}",
        global_batch=ranks * draw.choice([2, 4]),
        sequence_length=draw.choice([4096, 8192]),
        precision="bf16",
        family="dense",
        layer_count=layer_count,
        hidden_size=hidden,
        head_count=hidden // 128,
        kv_head_count=8,
        ffn_size=ffn,
        vocab_size=128256,
    )
    environment = Environment(
        name="unseen",
        device="cuda",
        accelerator="NVIDIA H100 80GB HBM3" if cluster.cores == 132 else "NVIDIA A100-SXM4-80GB",
        world_size=ranks,
        ranks_per_node=8,
        memory_bytes=int(cluster.memory_bytes),
        scale_up=Link(bandwidth_bytes_per_s=cluster.nvlink_bytes_per_s),
        scale_out=Link(bandwidth_bytes_per_s=cluster.network_bytes_per_s),
    )

    def answer(knobs: Settings) -> Answer:
        run = Training(
            work=work,
            cluster=cluster,
            tp=int(knobs["tp"]),
            pp=int(knobs["pp"]),
            dp=int(knobs["dp"]),
            micro_batch=int(knobs["micro_batch"]),
            recompute=str(knobs["activation_checkpointing"]),
            zero_stage=int(knobs["zero_stage"]),
            chunks=int(knobs.get("virtual_stages", 1)),
        )
        needed = run.needed_bytes()
        if needed > cluster.memory_bytes:
            return _out_of_memory(cluster.memory_bytes, 2.0 * run.tokens * hidden)
        return run.step_s(), int(needed - LIBRARIES_BYTES)

    powers = [2**n for n in range(ranks.bit_length())]
    return with_estimates(
        _landscape(
            name,
            f"A decoder of {model} parameters on {ranks} accelerators.",
            {
                "tp": powers[:4],
                "pp": powers[:5],
                "dp": powers,
                "micro_batch": (1, 2, 4, 8),
                "activation_checkpointing": ("none", "selective", "full"),
                "zero_stage": (0, 1, 2, 3),
                "virtual_stages": (1, 2),
            },
            answer,
            rules=(
                "tp * pp * dp == world_size",
                "global_batch % (dp * micro_batch) == 0",
                f"{layer_count} % (pp * 2) == 0",
            ),
            when={"virtual_stages": "pp > 1"},
            workload=work,
            environment=environment,
            command=SCRIPT,
        )
    )


def _reversed(name: str, draw: Random) -> Landscape:
    """Return `dense-16` with estimates that promise most where least is to be had."""
    landscape = KINDS["dense-16"](name, draw)
    totals = [sum((entry.estimate or {}).values()) for entry in landscape.entries]
    middle = math.sqrt(max(totals) * min(totals))
    entries = (
        replace(
            entry,
            estimate={
                part: s * (middle / total) ** 2 for part, s in (entry.estimate or {}).items()
            },
        )
        for entry, total in zip(landscape.entries, totals, strict=True)
    )
    about = f"{landscape.about} Estimates backwards."
    return replace(landscape, about=about, entries=tuple(entries))


FIRST_TOKEN_S, NEXT_TOKEN_S = 1.5, 0.045
PROMPT, ANSWERED = 1400, 220


def _serving(name: str, draw: Random) -> Landscape:
    parameters, layers = draw.choice([(8e9, 32), (14e9, 40), (32e9, 64)])
    flops, read = draw.uniform(250e12, 600e12), draw.uniform(1.8e12, 3.0e12)
    memory, token_bytes = 80 * GIB, 4096.0 * layers
    reduce_s, dispatch_s = draw.uniform(8e-6, 25e-6), draw.uniform(1e-3, 4e-3)

    def answer(knobs: Settings) -> Answer:
        tp, replicas = int(knobs["tensor_parallel_size"]), int(knobs["data_parallel_size"])
        batched, small = int(knobs["max_num_batched_tokens"]), knobs["kv_cache_dtype"] == "fp8"
        chunked = bool(knobs["enable_chunked_prefill"])
        share = float(knobs["gpu_memory_utilization"])
        working = (1.0 + 2.2e-4 * batched) * GIB
        cache = share * memory - 2 * parameters / tp - working
        if cache < 2 * GIB or (1 - share) * memory < 0.6 * working:
            return _out_of_memory(memory, working)
        kept = cache * tp / (token_bytes * (0.5 if small else 1.0))
        slots = min(int(knobs["max_num_seqs"]), int(kept / (PROMPT + ANSWERED)))
        prefill = tp**0.9 * flops / (2 * parameters) * batched / (batched + 1500)

        def meets(rate: float) -> bool:
            """Whether a replica keeps both limits at this rate of requests."""
            busy = rate * PROMPT / prefill
            if busy >= 0.95:
                return False
            decode = 2 * parameters / tp / read
            decode += dispatch_s + 2 * layers * reduce_s * (tp > 1) * math.log2(2 * tp)
            row = token_bytes * (PROMPT + ANSWERED / 2) * (0.55 if small else 1.0) / (tp * read)
            room = 1 - busy - rate * ANSWERED * (row + 1.5e-5)
            if room <= 0:
                return False
            iteration = decode / room
            running = rate * ANSWERED * iteration
            used = running / slots
            if used >= 1:
                return False
            stall = 0.3 * batched / prefill if chunked else 1.5 * PROMPT / prefill + 0.004
            wait = used ** (math.sqrt(2 * (slots + 1)) - 1) / (1 - used) / slots
            first = 3 * wait * ANSWERED * iteration + 2.2 * PROMPT / prefill / (1 - busy)
            first += PROMPT / batched * iteration if chunked else 0.0
            return first <= FIRST_TOKEN_S and iteration + busy * stall <= NEXT_TOKEN_S

        low, high = 0.0, 400.0
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (middle, high) if meets(middle) else (low, middle)
        return max(0.05, low * replicas * 0.985 ** (replicas - 1))

    return _landscape(
        name,
        f"Requests per second within both limits: {parameters / 1e9:.0f}B parameters on 8 GPUs.",
        {
            "tensor_parallel_size": (1, 2, 4, 8),
            "data_parallel_size": (1, 2, 4, 8),
            "max_num_seqs": (16, 32, 64, 128, 256, 512),
            "max_num_batched_tokens": (1024, 2048, 4096, 8192, 16384),
            "enable_chunked_prefill": (True, False),
            "kv_cache_dtype": ("auto", "fp8"),
            "gpu_memory_utilization": (0.8, 0.9, 0.95),
        },
        answer,
        rules=("tensor_parallel_size * data_parallel_size <= world_size",),
        objective=Objective(expression="goodput", direction="maximize"),
        unit="requests/s",
        environment=replace(HOST, world_size=8, ranks_per_node=8),
    )


def _nccl(name: str, draw: Random) -> Landscape:
    nic, lane = draw.uniform(20e9, 48e9), draw.uniform(14e9, 26e9)
    compute_s, is_near = draw.uniform(0.02, 0.06), draw.random() < 0.5
    direct = {"LOC": 0.55, "PHB": 1.0 if is_near else 0.55, "SYS": 0.8 if is_near else 1.0}
    delays = {"LL": 1.1e-6, "LL128": 2.0e-6, "Simple": 6.5e-6}
    shares = {"LL": 0.48, "LL128": 0.94, "Simple": 1.0}
    sent = ((64 * 1024, 220), (4 << 20, 48), (96 << 20, 6))

    def answer(knobs: Settings) -> Answer:
        algorithm, protocol = str(knobs["NCCL_ALGO"]), str(knobs["NCCL_PROTO"])
        channels, threads = int(knobs["NCCL_MAX_NCHANNELS"]), int(knobs["NCCL_NTHREADS"])
        if algorithm in ("NVLS", "CollnetChain") and protocol != "Simple":
            words = f"NCCL WARN Algorithm {algorithm} is not supported with {protocol}"
            return Fault(kind=FailureKind.CRASH, message=words)
        level, queues = str(knobs["NCCL_NET_GDR_LEVEL"]), int(knobs["NCCL_IB_QPS_PER_CONNECTION"])
        used = min(1.0, 0.62 + 0.13 * queues) - 0.02 * max(0, queues - 2)
        wire = nic * direct[level] * used
        own = channels * lane * min(1.0, threads / (512 if protocol == "LL128" else 256)) * 0.45
        buffer = int(knobs["NCCL_BUFFSIZE"])
        seconds = 0.0
        for size, count in sent:
            hops = {"Ring": 62, "Tree": 14, "CollnetChain": 9, "NVLS": 7}[algorithm]
            waste = {"Ring": 1.0, "Tree": 1.18, "CollnetChain": 1.3, "NVLS": 0.86}[algorithm]
            pieces = max(1.0, size / buffer / channels)
            delay = hops * delays[protocol] * (1 + 0.03 * (channels - 1)) + pieces * 2e-6
            delay += 2e-5 * (algorithm == "NVLS") + (queues - 1) * 2e-6
            seconds += count * (delay + 2 * waste * size / min(own, wire) / shares[protocol])
        taken = channels * threads / 512 / 132
        return seconds + compute_s * (1 + 3.5 * taken)

    return _landscape(
        name,
        "All-reduces beside compute on four nodes, by the settings of a communication library.",
        {
            "NCCL_ALGO": ("Ring", "Tree", "CollnetChain", "NVLS"),
            "NCCL_PROTO": ("LL", "LL128", "Simple"),
            "NCCL_MAX_NCHANNELS": (2, 4, 8, 16, 32),
            "NCCL_NTHREADS": (128, 256, 512),
            "NCCL_NET_GDR_LEVEL": ("LOC", "PHB", "SYS"),
            "NCCL_IB_QPS_PER_CONNECTION": (1, 2, 4),
            "NCCL_BUFFSIZE": (1 << 20, 4 << 20),
        },
        answer,
    )


def _kernel(name: str, draw: Random) -> Landscape:
    base, each = draw.randrange(22, 34), draw.uniform(2.5, 5.0)
    row, reach = draw.choice([1536, 2560, 3072]), draw.uniform(0.3, 0.6)

    def answer(knobs: Settings) -> Answer:
        threads, unrolled = 32 * int(knobs["k1"]), int(knobs["k2"])
        stages, wide, ahead = int(knobs["k3"]), bool(knobs["k4"]), bool(knobs["k5"])
        registers = base + each * unrolled * (2 if wide else 1) + 6 * ahead
        shared = stages * threads * unrolled * (16 if wide else 4)
        if shared > 164 * 1024 or registers > 255:
            return Fault(kind=FailureKind.CRASH, message="too many resources requested for launch")
        blocks = min(
            65536 // int(threads * (8 * math.ceil(registers / 8))),
            167936 // max(shared, 1024),
            2048 // threads,
            32,
        )
        if blocks == 0:
            return Fault(kind=FailureKind.CRASH, message="too many resources requested for launch")
        waiting = blocks * threads / 2048 * unrolled**reach * (1 + 0.25 * (stages - 1))
        hidden = waiting / (waiting + 0.55)
        covered = threads * unrolled * (4 if wide else 1)
        idle = math.ceil(row * 24 / covered) * covered / (row * 24)
        issue = 1 + 0.22 / unrolled + 0.05 * (stages - 1) - 0.07 * ahead * (stages > 1)
        return 1e-3 * idle * issue * (1.0 if wide else 1.13) / hidden

    return _landscape(
        name,
        "A memory-bound kernel by its occupancy, under names that say nothing.",
        {
            "k1": tuple(range(1, 30)),
            "k2": (1, 2, 3, 4, 6, 8, 12, 16),
            "k3": (1, 2, 3, 4),
            "k4": (True, False),
            "k5": (True, False),
        },
        answer,
    )


def _infeasible(name: str, draw: Random) -> Landscape:
    powers = [draw.uniform(0.6, 1.4) for _ in range(4)]
    centres = [draw.uniform(0.2, 0.8) for _ in range(4)]

    def load(knobs: Settings) -> float:
        places = (int(knobs[f"k{n}"]) / 6 for n in range(1, 5))
        return math.prod((0.25 + x) ** p for x, p in zip(places, powers, strict=True)) * (
            1.35 if knobs["k5"] == "b" else 1.0
        )

    choices: dict[str, Sequence[Value]] = {f"k{n}": tuple(range(7 - n % 3)) for n in range(1, 5)}
    choices["k5"] = ("a", "b")
    every = [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]
    most = sorted(map(load, every))[int(0.17 * len(every))]

    def answer(knobs: Settings) -> Answer:
        if load(knobs) > most:
            return Fault(kind=FailureKind.CRASH, message="exit status 1")
        off = sum((int(knobs[f"k{n + 1}"]) / 6 - c) ** 2 for n, c in enumerate(centres))
        return (1 + 0.9 * off) / (0.6 + load(knobs) / most) * (0.93 if knobs["k5"] == "b" else 1)

    return _landscape(name, "Five of six configurations do not run.", choices, answer)


def _plateau(name: str, draw: Random) -> Landscape:
    sizes = (7, 6, 5, 4, 3)
    right = [draw.randrange(1, size - 1) for size in sizes[:3]]

    def answer(knobs: Settings) -> Answer:
        places = [int(knobs[f"k{n}"]) for n in range(1, 6)]
        off = [abs(x - y) for x, y in zip(places, right, strict=False)]
        return (0.82 if off[0] <= 1 and not any(off[1:]) else 1.0) * (
            1 + 0.003 * places[3] + 0.004 * places[4]
        )

    choices = {f"k{n}": tuple(range(size)) for n, size in enumerate(sizes, start=1)}
    return _landscape(name, "Nothing differs, but for a corner of 1.4 %.", choices, answer)


def _needle(name: str, draw: Random) -> Landscape:
    sizes = (8, 7, 6, 5)
    centre, needle = ([draw.randrange(size) for size in sizes] for _ in range(2))

    def answer(knobs: Settings) -> Answer:
        places = [int(knobs[f"k{n}"]) for n in range(1, 5)]
        if places == needle:
            return 0.7
        off = (abs(x - y) / size for x, y, size in zip(places, centre, sizes, strict=True))
        return 1 + 0.6 * sum(off)

    choices = {f"k{n}": tuple(range(size)) for n, size in enumerate(sizes, start=1)}
    return _landscape(name, "A smooth slope, and one good point far from it.", choices, answer)


KINDS: Final[Mapping[str, Callable[[str, Random], Landscape]]] = {
    "dense-16": lambda name, draw: _dense(name, draw, "8B", 32, 2),
    "dense-64": lambda name, draw: _dense(name, draw, "70B", 80, 8),
    "prior-reversed": _reversed,
    "serving": _serving,
    "nccl": _nccl,
    "kernel": _kernel,
    "infeasible": _infeasible,
    "plateau": _plateau,
    "needle": _needle,
}
"""By name; those before `serving` have estimates."""
