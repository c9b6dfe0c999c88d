"""What one rank of a generated job did, as the text of the PyTorch profiler's events."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from generated_job import LAUNCH_AFTER_NS, RankStep, Run, Shape
from generated_kernels import MULTIPROCESSORS

Era = Literal["relative", "absolute", "integer"]
Layout = Literal["torch", "sorted"]
Maker = Literal["cuda", "mtia"]
BASE_NS = 1_775_078_550_000_000_000
BEGAN_NS = BASE_NS + 3_743_411_000_000_000
PROCESS, THREADS = 4200, (4200, 9400)
CALLS = {
    "compute": ("cudaLaunchKernel", 211),
    "communication": ("cudaLaunchKernelExC", 430),
    "copy": ("cudaMemcpyAsync", 41),
    "fill": ("cudaMemsetAsync", 51),
}
"""Name and number of the call that launches a kind of work."""
MTIA_NAMES = {"copy": "dma_request", "fill": "memset_request"}
MTIA_WAIT_NS = 6_000
FRAMES = (
    "torch/nn/modules/module.py(1775): _call_impl",
    "train.py(214): forward",
    "torch/nn/modules/linear.py(130): forward",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How a trace is written down."""

    era: Era = "relative"
    layout: Layout = "torch"
    maker: Maker = "cuda"
    groups_told: bool = True
    """Whether kernels and header say who takes part in collectives, as torch does from 2.3 on."""
    gzip: bool = False


class Writer:
    """Turns what one rank did into the text of its events."""

    def __init__(self, shape: Shape, style: Style, rank: int, skew_ns: int) -> None:
        self._frames = shape.python_frames
        self._style = style
        self._rank = rank
        self._zero_ns = skew_ns + BEGAN_NS - (BASE_NS if style.era == "relative" else 0)
        self._external = 0
        self._index = 0
        self._frame = 0
        self._flow = 0
        self._unanswered: list[int] = []

    def header(self, shape: Shape) -> str:
        """Everything in front of the first event."""
        device = (
            '"name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85017493504,\n'
            '      "computeMajor": 9, "computeMinor": 0,\n      "maxThreadsPerBlock": 1024, '
            f'"numSms": {MULTIPROCESSORS}'
        )
        devices = ",\n".join(f'    {{"id": {number}, {device}}}' for number in range(8))
        ranks = list(range(shape.world))
        group = f'{{"pg_name": "0", "pg_desc": "default_pg", "ranks": {ranks}}}'
        groups = f', "pg_count": 1, "pg_config": [{group}]' if self._style.groups_told else ""
        unit = "ms" if self._style.era == "relative" else "ns"
        base = f'  "baseTimeNanoseconds": {BASE_NS},\n' if self._style.era == "relative" else ""
        return (
            f'{{\n  "schemaVersion": 1,\n  "deviceProperties": [\n{devices}\n  ],\n'
            f'  "distributedInfo": {{"backend": "nccl", "rank": {self._rank}, "world_size": '
            f'{shape.world}{groups}, "nccl_version": "2.27.5"}},\n'
            f'  "displayTimeUnit": "{unit}",\n{base}  "traceEvents": [\n'
        )

    def footer(self) -> str:
        """Everything behind the last event."""
        return f'\n  ],\n  "traceName": "rank{self._rank}_trace.json"\n}}\n'

    def first_events(self) -> Iterator[str]:
        """Names of processes and threads."""
        at = self._time(0)
        names = [(PROCESS, 0, "process_name", "python3"), (0, 0, "process_name", "python3")]
        names += [(PROCESS, t, "thread_name", f"thread {t} (python3)") for t in THREADS]
        names += [(0, stream, "thread_name", f"stream {stream} ") for stream in (7, 20, 24, 31)]
        for process, thread, what, name in names:
            yield (
                f'  {{\n    "name": "{what}", "ph": "M", "ts": {at}, "pid": {process}, '
                f'"tid": {thread},\n    "args": {{\n      "name": "{name}"\n    }}\n  }}'
            )

    def events(self, step: RankStep) -> Iterator[str]:
        """All events of a step, host and device mixed as the profiler leaves them."""
        name = f"ProfilerStep#{step.number}"
        streams: dict[int, tuple[int, int]] = {}
        for run in step.runs:
            yield from self._run(run)
            first, last = streams.get(run.stream, (run.start_ns, run.end_ns))
            streams[run.stream] = min(first, run.start_ns), max(last, run.end_ns)
        host = step.host_start_ns, step.host_end_ns
        external = self._next_external()
        yield self._span("user_annotation", name, PROCESS, THREADS[0], *host, external)
        for stream, (first, last) in streams.items():
            yield self._span("gpu_user_annotation", name, 0, stream, first, last, external)
        waited = step.sync_ns, step.host_end_ns - 1_000
        arguments = f'"cbid": 165, "correlation": {step.runs[-1].correlation + 1}'
        yield self._span(
            "cuda_runtime", "cudaDeviceSynchronize", PROCESS, THREADS[0], *waited, arguments
        )

    def _run(self, run: Run) -> Iterator[str]:
        work, message = run.work, run.message
        thread = THREADS[run.thread]
        start, end = run.host_start_ns, run.host_end_ns
        for depth in range(self._frames):
            frame = FRAMES[depth % len(FRAMES)]
            arguments = f'"Python parent id": {self._frame}, "Python id": {self._frame + 1}'
            self._frame += 1
            arguments = self._recorded(arguments)
            yield self._span("python_function", frame, PROCESS, thread, start, end, arguments)
        outer = self._recorded(self._next_external())
        yield self._span("cpu_op", work.outer, PROCESS, thread, start, end, outer)
        external = self._next_external()
        if message is not None and self._style.groups_told:
            external = f"{external}, {message.arguments}"
        arguments = self._recorded(external)
        inner = start + 1_400, end - 800
        yield self._span("cpu_op", work.inner, PROCESS, thread, *inner, arguments)
        if message:
            note = f"nccl:{message.annotation}"
            noted = arguments
            if not self._style.groups_told:
                noted = f'{arguments}, "Input Dims": [[{message.in_elements}]]'
                noted += ', "Input type": ["c10::BFloat16"]'
            yield self._span("user_annotation", note, PROCESS, thread, *inner, noted)
            yield self._span(
                "gpu_user_annotation", note, 0, run.stream, run.start_ns, run.end_ns, external
            )
        else:
            yield self._passed_on(thread, start, backward=bool(run.thread))
        launched = start + LAUNCH_AFTER_NS
        call, number = CALLS[work.kind]
        arguments = f'{external}, "cbid": {number}, "correlation": {run.correlation}'
        done = launched + 2_400
        yield self._span("cuda_runtime", call, PROCESS, thread, launched, done, arguments)
        yield self._flow_event("s", run.correlation, PROCESS, thread, launched, "ac2g")
        if self._style.maker == "mtia":
            yield self._wait(run)
        yield self._device(run, external)
        yield self._flow_event("f", run.correlation, 0, run.stream, run.start_ns, "ac2g")

    def _device(self, run: Run, external: str) -> str:
        work = run.work
        place = (
            f'"device": 0, "context": 1, "stream": {run.stream}, "correlation": {run.correlation}'
        )
        if work.kind in {"copy", "fill"}:
            category = "gpu_memcpy" if work.kind == "copy" else "gpu_memset"
            rate = work.bytes / (run.end_ns - run.start_ns)
            arguments = f'{place}, "bytes": {work.bytes}, "memory bandwidth (GB/s)": {rate:.6f}'
        else:
            category = "kernel"
            arguments = f'"queued": 0, {place}, {work.arguments}'
        if run.message and self._style.groups_told:
            arguments = f"{arguments}, {run.message.arguments}"
        arguments = f"{external}, {arguments}"
        name = work.name
        if self._style.maker == "mtia":
            category, name = "mtia_ccp_events", MTIA_NAMES.get(work.kind, name)
        return self._span(category, name, 0, run.stream, run.start_ns, run.end_ns, arguments)

    def _wait(self, run: Run) -> str:
        """What a command processor of MTIA records before each piece of work."""
        start_ns = max(run.host_start_ns + LAUNCH_AFTER_NS, run.start_ns - MTIA_WAIT_NS)
        arguments = f'"correlation": {run.correlation}'
        waited = start_ns, run.start_ns, arguments
        return self._span("mtia_ccp_events", "wait_for_event", 0, run.stream, *waited)

    def _passed_on(self, thread: int, at_ns: int, *, backward: bool) -> str:
        """The flow from an operator to the one that computes its gradient."""
        if backward and self._unanswered:
            return self._flow_event("f", self._unanswered.pop(), PROCESS, thread, at_ns, "fwdbwd")
        self._flow += 1
        self._unanswered.append(self._flow)
        return self._flow_event("s", self._flow, PROCESS, thread, at_ns, "fwdbwd")

    def _recorded(self, arguments: str) -> str:
        self._index += 1
        return f'{arguments}, "Record function id": {self._index}, "Ev Idx": {self._index}'

    def _next_external(self) -> str:
        self._external += 1
        return f'"External id": {self._external}'

    def _time(self, ns: int) -> str:
        since_ns = ns + self._zero_ns
        if self._style.era == "integer":
            return str(since_ns // 1000)
        return f"{since_ns // 1000}.{since_ns % 1000:03d}"

    def _span(
        self, cat: str, name: str, pid: int, tid: int, start_ns: int, end_ns: int, args: str
    ) -> str:
        took_ns = end_ns - start_ns
        took = f"{took_ns // 1000}.{took_ns % 1000:03d}"
        if self._style.era == "integer":
            took = str(end_ns // 1000 - start_ns // 1000)
        at = self._time(start_ns)
        if self._style.layout == "sorted":
            return (
                f'{{"args":{{{args}}},"cat":"{cat}","dur":{took},"name":"{name}","ph":"X",'
                f'"pid":{pid},"tid":{tid},"ts":{at}}}'
            )
        return (
            f'  {{\n    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
            f'    "ts": {at}, "dur": {took},\n    "args": {{\n      {args}\n    }}\n  }}'
        )

    def _flow_event(self, ph: str, number: int, pid: int, tid: int, at_ns: int, cat: str) -> str:
        bound = ', "bp": "e"' if ph == "f" else ""
        return (
            f'  {{\n    "ph": "{ph}", "id": {number}, "pid": {pid}, "tid": {tid}, '
            f'"ts": {self._time(at_ns)},\n    "cat": "{cat}", "name": "{cat}"{bound}\n  }}'
        )
