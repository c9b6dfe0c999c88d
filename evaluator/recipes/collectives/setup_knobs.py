"""Knobs of how ranks make their calls, whatever carries the bytes, and those of gloo."""

from collections.abc import Iterator, Mapping

from evaluator.recipes.collectives.knob import LIBRARY, OTHER_THAN_MPI, Knob
from evaluator.recipes.constraints import new_rule
from records.rule import Rule
from records.study import Study, Value

ADAPTERS = ("c10d", "mpi", "torchcomms", "c10d_torchcomms")
TORCHCOMMS = ("torchcomms", "c10d_torchcomms")
GLOO = "comm_adapter == 'c10d' and backend == 'gloo'"
HALVES = ("float16", "bfloat16")
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
_INTERFACES = r"[\w.:-]+(,[\w.:-]+)*"


def setup_knobs(device: str) -> Mapping[str, Knob]:
    """The knobs by name; NCCL is for GPUs, so backends depend on the device."""
    backends: tuple[Value, ...] = ("gloo",) if device == "cpu" else ("nccl", "gloo")
    return {
        "comm_adapter": Knob(
            default="c10d", choices=ADAPTERS, description="library that ranks make their calls to"
        ),
        "backend": Knob(
            default=backends[0],
            choices=backends,
            more=("gloo", "nccl", "ncclx"),
            when=OTHER_THAN_MPI,
            description="what carries the bytes below torch's calls",
        ),
        "in_flight": Knob(
            default=1,
            choices=(1, 2, 4),
            least=1,
            description="calls that are started before one is waited for",
        ),
        "fusion_bytes": Knob(
            default=0,
            choices=(0, 1 << 20, 25 << 20),
            least=0,
            of=("all_reduce",),
            description="neighbouring all-reduces are put together up to this size, as in DDP's "
            "buckets; 0: none",
        ),
        "chunk_count": Knob(
            default=1,
            choices=(1, 2, 4),
            least=1,
            of=("all_reduce",),
            description="parts that each all-reduce is cut into",
        ),
        "compression": Knob(
            default="none",
            choices=("none", "fp16", "bf16"),
            of=("all_reduce",),
            description="number format that all-reduces travel in, as with DDP's hooks",
        ),
        "gloo_threads": Knob(
            default=2,
            choices=(1, 2, 4),
            least=1,
            when=GLOO,
            description="threads of a rank that run gloo's calls",
        ),
        "gloo_interfaces": Knob(
            default=LIBRARY,
            choices=(LIBRARY, "lo", "lo,lo"),
            pattern=_INTERFACES,
            when=GLOO,
            variables=("GLOO_SOCKET_IFNAME",),
            description="network interfaces that gloo spreads its calls over, one listed twice "
            "is used twice",
        ),
    }


def setup_document(settings: Mapping[str, Value]) -> dict[str, Value | None]:
    """The setup as ranks read it, from a live value of every knob."""
    document: dict[str, Value | None] = {name: settings[name] for name in setup_knobs("cpu")}
    if settings["comm_adapter"] == "mpi":
        document["backend"] = "mpi"
    if settings["gloo_interfaces"] == LIBRARY:
        document["gloo_interfaces"] = None
    return document


def setup_rules(study: Study) -> Iterator[Rule]:
    """What the libraries cannot do, each with its reason."""
    yield new_rule(
        "nccl_device",
        "device == 'cuda' or comm_adapter == 'mpi' or backend == 'gloo'",
        "NCCL moves memory of GPUs only",
    )
    yield new_rule(
        "ncclx_adapter",
        "backend != 'ncclx' or comm_adapter in ['mpi', 'torchcomms', 'c10d_torchcomms']",
        "only torchcomms brings this backend",
    )
    yield new_rule(
        "mpi_device",
        "comm_adapter != 'mpi' or device == 'cpu'",
        "messages are handed to MPI in the memory of the host",
    )
    yield new_rule(
        "mpi_compression",
        "comm_adapter != 'mpi' or compression == 'none'",
        "MPI has no half-precision numbers to add up",
    )
    if any(
        message.dtype in HALVES and message.collective.removesuffix("_single") in REDUCING
        for message in study.workload.messages
    ):
        yield new_rule(
            "mpi_half",
            "comm_adapter != 'mpi'",
            "the mix adds up half-precision numbers, which MPI does not have",
        )
