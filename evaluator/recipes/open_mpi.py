"""Open MPI's parameters as knobs: the algorithm of each collective, segments, shared memory.

MPICH is tuned by other variables, which are no knobs here.
"""

from collections.abc import Iterator, Mapping
from itertools import chain

from evaluator.recipes.knobs import LIBRARY, MPI, Knob, listed, new_rule
from records.expression import Rule
from records.study import Value

ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "allreduce": (
        *(LIBRARY, "linear", "nonoverlapping", "recursive_doubling", "ring", "segmented_ring"),
        "rabenseifner",
    ),
    "bcast": (
        *(LIBRARY, "linear", "chain", "pipeline", "split_binary_tree", "binary_tree", "binomial"),
        *("knomial", "scatter_allgather", "scatter_allgather_ring"),
    ),
    "reduce": (
        *(LIBRARY, "linear", "chain", "pipeline", "binary", "binomial", "in_order_binary"),
        "rabenseifner",
    ),
    "allgather": (
        *(LIBRARY, "linear", "bruck", "recursive_doubling", "ring", "neighbor", "two_proc"),
    ),
    "reduce_scatter_block": (
        *(LIBRARY, "linear", "recursive_doubling", "recursive_halving", "butterfly"),
    ),
    "alltoall": (LIBRARY, "linear", "pairwise", "modified_bruck", "linear_sync", "two_proc"),
    "gather": (LIBRARY, "linear", "binomial", "linear_sync"),
    "scatter": (LIBRARY, "linear", "binomial", "linear_nonblocking"),
    "barrier": (
        *(LIBRARY, "linear", "double_ring", "recursive_doubling", "bruck", "two_proc", "tree"),
    ),
}
"""The algorithms of Open MPI 4 and 5, each at its number."""
SEGMENTED: Mapping[str, tuple[str, ...]] = {
    "allreduce": ("segmented_ring",),
    "bcast": ("chain", "pipeline", "split_binary_tree", "binary_tree", "binomial", "knomial"),
    "reduce": ("chain", "pipeline", "binary", "binomial", "in_order_binary"),
}
"""Those that cut a message into segments."""
COLLECTIVES: Mapping[str, str] = {
    "allreduce": "all_reduce",
    "bcast": "broadcast",
    "allgather": "all_gather",
    "reduce_scatter_block": "reduce_scatter",
    "alltoall": "all_to_all",
}
"""What the mix calls them, where it has another name."""
PREFIX = "OMPI_MCA_"
FIRST = "100"
"""A priority above those that components have by themselves."""
SHARED_MEMORY_SINCE_5, SHARED_MEMORY_BEFORE_5 = "sm", "vader"
_TUNED = f"{MPI} and in_flight == 1 and ompi_coll in ['{LIBRARY}', 'tuned']"
"""Calls that do not block are made by another component, which has no such choice."""


def _mine(*names: str) -> tuple[str, ...]:
    return tuple(PREFIX + name for name in names)


def _algorithm_knob(name: str, algorithms: tuple[str, ...]) -> Knob:
    collective = COLLECTIVES.get(name, name)
    return Knob(
        default=LIBRARY,
        choices=algorithms,
        when=_TUNED,
        of=(collective,),
        variables=_mine(
            f"coll_tuned_{name}_algorithm",
            *("coll_tuned_use_dynamic_rules", "coll_tuned_dynamic_rules_filename"),
            *("coll", "coll_*_priority"),
        ),
        description=f"how Open MPI does each {collective}",
    )


def _segment_knob(name: str, segmented: tuple[str, ...]) -> Knob:
    return Knob(
        default=0,
        choices=(16 << 10, 64 << 10, 256 << 10, 1 << 20),
        least=0,
        when=f"{_TUNED} and ompi_{name}_algorithm in {listed(segmented)}",
        of=(COLLECTIVES.get(name, name),),
        variables=_mine(f"coll_tuned_{name}_algorithm_segmentsize"),
        description="bytes of the parts that a message is passed on in; 0: it is passed on whole",
    )


OPEN_MPI_KNOBS: Mapping[str, Knob] = {
    "ompi_coll": Knob(
        default=LIBRARY,
        choices=(LIBRARY, "tuned", "basic", "sm"),
        more=("han",),
        when=MPI,
        variables=_mine("coll", "coll_*_priority"),
        description="component that comes first; tuned is the one whose algorithms can be chosen",
    ),
    **{f"ompi_{name}_algorithm": _algorithm_knob(name, has) for name, has in ALGORITHMS.items()},
    **{f"ompi_{name}_segment_bytes": _segment_knob(name, has) for name, has in SEGMENTED.items()},
    "ompi_btl": Knob(
        default=LIBRARY,
        choices=(LIBRARY, "shared_memory", "tcp"),
        when=MPI,
        variables=_mine("btl", "pml"),
        description="what carries bytes between ranks of one node",
    ),
    "ompi_single_copy": Knob(
        default=LIBRARY,
        choices=(LIBRARY, "cma", "none"),
        when=f"{MPI} and ompi_btl != 'tcp'",
        variables=_mine("smsc", "smsc_*", "btl_*_single_copy_mechanism", "pml"),
        description="whether a rank reads from another's memory (cma), or both copy (none)",
    ),
    "ompi_eager_limit": Knob(
        default=0,
        choices=(0, 1 << 10, 16 << 10, 32 << 10),
        least=0,
        when=MPI,
        variables=_mine(
            "btl_sm_eager_limit", "btl_vader_eager_limit", "btl_tcp_eager_limit", "pml"
        ),
        description="messages up to this size are sent unasked; 0 leaves it to Open MPI",
    ),
}


def open_mpi_variables(settings: Mapping[str, Value], major_version: int) -> dict[str, str]:
    """Return variables for a live value of every knob; none for what is left to Open MPI."""
    parameters = chain(
        _collective_parameters(settings), _transport_parameters(settings, major_version)
    )
    return {PREFIX + name: value for name, value in parameters}


def open_mpi_ways(settings: Mapping[str, Value]) -> Mapping[str, tuple[str, int]]:
    """Algorithm, and bytes of its segments or 0, of each collective that has one."""
    return {
        COLLECTIVES.get(name, name): (
            str(settings[f"ompi_{name}_algorithm"]),
            int(settings.get(f"ompi_{name}_segment_bytes", 0)),
        )
        for name in ALGORITHMS
        if settings[f"ompi_{name}_algorithm"] != LIBRARY
    }


def open_mpi_rules(mix: frozenset[str], largest_bytes: int) -> Iterator[Rule]:
    """What Open MPI would refuse, or do in another way than asked, each with its reason.

    `largest_bytes` is the largest all-reduce of the mix.
    """
    for name in ("allgather", "alltoall", "barrier"):
        yield new_rule(
            f"ompi_{name}_pair",
            f"ompi_{name}_algorithm != 'two_proc' or world_size == 2",
            "it is for two ranks only",
        )
    yield new_rule(
        "ompi_allgather_neighbor",
        "ompi_allgather_algorithm != 'neighbor' or world_size % 2 == 0",
        "an odd number of ranks goes round in a ring instead",
    )
    yield new_rule(
        "ompi_allgather_doubling",
        "ompi_allgather_algorithm != 'recursive_doubling'"
        " or 2 ** floor(log2(world_size)) == world_size",
        "numbers of ranks that are no power of two take bruck instead",
    )
    yield new_rule(
        "ompi_coll_sm",
        "ompi_coll != 'sm' or world_size <= ranks_per_node",
        "this component is for ranks of one node",
    )
    yield new_rule(
        "ompi_coll_han",
        "ompi_coll != 'han' or world_size > ranks_per_node",
        "this component steps back where all ranks are on one node",
    )
    if "all_reduce" in mix:
        yield new_rule(
            "ompi_segments",
            "ompi_allreduce_algorithm != 'segmented_ring' or 0 < ompi_allreduce_segment_bytes"
            f" * world_size <= max(fusion_bytes, {largest_bytes})",
            "without several segments for each rank it is the ring",
        )


def _collective_parameters(settings: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
    first = settings["ompi_coll"]
    chosen = {
        name: algorithms.index(str(settings[f"ompi_{name}_algorithm"]))
        for name, algorithms in ALGORITHMS.items()
        if settings[f"ompi_{name}_algorithm"] != LIBRARY
    }
    if chosen:
        first = "tuned"
        yield "coll_tuned_use_dynamic_rules", "1"
    if first != LIBRARY:
        yield f"coll_{first}_priority", FIRST
    for name, number in chosen.items():
        yield f"coll_tuned_{name}_algorithm", str(number)
    for name in SEGMENTED:
        segment_bytes = settings[f"ompi_{name}_segment_bytes"]
        if segment_bytes:
            yield f"coll_tuned_{name}_algorithm_segmentsize", str(segment_bytes)


def _transport_parameters(
    settings: Mapping[str, Value], major_version: int
) -> Iterator[tuple[str, str]]:
    """Of the layer that `pml` ob1 uses, which is therefore asked for where one is set."""
    modern = major_version >= 5
    shared_memory = SHARED_MEMORY_SINCE_5 if modern else SHARED_MEMORY_BEFORE_5
    carrier = "tcp" if settings["ompi_btl"] == "tcp" else shared_memory
    copies, limit = settings["ompi_single_copy"], settings["ompi_eager_limit"]
    if (settings["ompi_btl"], copies, limit) != (LIBRARY, LIBRARY, 0):
        yield "pml", "ob1"
    if settings["ompi_btl"] != LIBRARY:
        yield "btl", f"self,{carrier}"
    if limit:
        yield f"btl_{carrier}_eager_limit", str(limit)
    if copies != LIBRARY and modern:
        yield "smsc", "cma" if copies == "cma" else "^cma,knem,xpmem"
    elif copies != LIBRARY:
        yield "btl_vader_single_copy_mechanism", str(copies)
