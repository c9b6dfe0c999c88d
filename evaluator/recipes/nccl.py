"""NCCL's environment variables as knobs, and what its documentation and its tuner rule out.

A knob is the variable in lower case. PAT is missing from the algorithms: it knows no all-reduce,
with which ranks begin and end a launch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from evaluator.recipes.knobs import LIBRARY, OTHER_THAN_MPI, Knob, listed, new_rule
from records.expression import Rule
from records.study import Value

NCCL = f"{OTHER_THAN_MPI} and backend in ['nccl', 'ncclx']"
ACROSS_NODES = "world_size > ranks_per_node"
REDUCING_ONLY = ("Tree", "NVLSTree", "CollnetChain")
"""Algorithms that are there for all-reduces only."""
GATHERING_TOO = ("NVLS", "CollnetDirect")
"""Those for all-reduces, all-gathers and reduce-scatters; a ring does everything."""
IN_NETWORK = ("CollnetDirect", "CollnetChain")
BETWEEN_NODES = ("NVLSTree", *IN_NETWORK)
SIMPLE_ONLY = ("NVLS", "NVLSTree", *IN_NETWORK)
WITH_ALGORITHMS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "barrier")
"""The others are made of transfers between two ranks, which no algorithm is for."""
THREADS = (64, 128, 256, 512)
MOST_CHANNELS = 64
_DISTANCES = ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS")

_KNOBS: Mapping[str, Knob] = {
    "nccl_algo": Knob(
        default=LIBRARY,
        choices=(LIBRARY, "Ring", "Tree", *GATHERING_TOO, "NVLSTree", "CollnetChain"),
        of=WITH_ALGORITHMS,
        variables=("NCCL_COLLNET_ENABLE",),
        description="how NCCL passes messages on",
    ),
    "nccl_proto": Knob(
        default=LIBRARY,
        choices=(LIBRARY, "LL", "Simple"),
        more=("LL128",),
        description="how NCCL signals that a part has arrived; LL128 is safe only where NCCL "
        "itself would take it",
    ),
    "nccl_min_nchannels": Knob(
        default=0,
        choices=(0, 4, 16),
        least=0,
        variables=("NCCL_MIN_CTAS", "NCCL_MIN_NRINGS"),
        description="fewest channels, each a thread block; 0 leaves it to NCCL",
    ),
    "nccl_max_nchannels": Knob(
        default=0,
        choices=(0, 4, 16),
        least=0,
        variables=("NCCL_MAX_CTAS", "NCCL_MAX_NRINGS"),
        description="most channels; 0 leaves it to NCCL",
    ),
    "nccl_buffsize": Knob(
        default=0,
        choices=(0, 1 << 20, 4 << 20, 16 << 20),
        least=0,
        description="bytes of the buffer between two GPUs; 0 leaves it to NCCL",
    ),
    "nccl_nthreads": Knob(
        default=0,
        choices=(0, *THREADS),
        least=0,
        description="threads of each thread block; 0 leaves it to NCCL",
    ),
    "nccl_nvls_enable": Knob(
        default=True,
        choices=(True, False),
        description="reductions may be done by the switches of NVLink",
    ),
    "nccl_p2p_disable": Knob(
        default=False,
        choices=(False, True),
        description="GPUs do not write to each other directly",
    ),
    "nccl_shm_disable": Knob(
        default=False,
        choices=(False, True),
        description="GPUs of one node do not go through shared memory of the host",
    ),
    "nccl_p2p_level": Knob(
        default=LIBRARY,
        choices=(LIBRARY, *_DISTANCES),
        when="not nccl_p2p_disable",
        description="the longest path between GPUs that write to each other directly",
    ),
    "nccl_net_gdr_level": Knob(
        default=LIBRARY,
        choices=(LIBRARY, *_DISTANCES),
        when=ACROSS_NODES,
        variables=("NCCL_IB_GDR_LEVEL",),
        description="how far a GPU may be from a network card that reads its memory",
    ),
    "nccl_ib_qps_per_connection": Knob(
        default=0,
        choices=(0, 2, 4),
        least=0,
        when=ACROSS_NODES,
        description="InfiniBand queue pairs of each connection; 0 leaves it to NCCL",
    ),
    "nccl_cross_nic": Knob(
        default=2,
        choices=(2, 0, 1),
        when=ACROSS_NODES,
        description="rings and trees may change network cards between nodes: 0 never, 1 always, "
        "2 as NCCL likes",
    ),
}
NCCL_KNOBS: Mapping[str, Knob] = {
    name: replace(
        knob,
        when=" and ".join(filter(None, (NCCL, knob.when))),
        variables=(name.upper(), *knob.variables),
    )
    for name, knob in _KNOBS.items()
}


def nccl_variables(settings: Mapping[str, Value]) -> dict[str, str]:
    """Return the variables of NCCL for a live value of every knob; none for what is left to it."""
    variables = {
        name.upper(): str(int(value) if isinstance(value, bool) else value)
        for name, knob in NCCL_KNOBS.items()
        if (value := settings[name]) != knob.default
    }
    if settings["nccl_algo"] in IN_NETWORK:
        variables["NCCL_COLLNET_ENABLE"] = "1"
    return variables


def nccl_rules(mix: frozenset[str]) -> Iterator[Rule]:
    """What NCCL would refuse, ignore or get wrong, each with its reason."""
    for name, expression, reason in _RULES:
        yield new_rule(name, expression, reason)
    ringed = sorted(mix & {"broadcast", "reduce"})
    if ringed:
        yield new_rule(
            "nccl_ring",
            f"nccl_algo in {listed((LIBRARY, 'Ring'))}",
            f"the mix has {' and '.join(ringed)}, which NCCL does in rings only",
        )
    gathering = sorted(mix & {"all_gather", "reduce_scatter"})
    if gathering:
        yield new_rule(
            "nccl_gathering",
            f"nccl_algo not in {listed(REDUCING_ONLY)}",
            f"the mix has {' and '.join(gathering)}, and NCCL has these for all-reduces only",
        )


_RULES = (
    (
        "nccl_between_nodes",
        f"nccl_algo not in {listed(BETWEEN_NODES)} or {ACROSS_NODES}",
        "these begin where a node ends, and Collnet needs a plugin for switches that add up",
    ),
    (
        "nccl_switches",
        "nccl_algo not in ['NVLS', 'NVLSTree'] or nccl_nvls_enable and not nccl_p2p_disable",
        "these are done by the switches of NVLink",
    ),
    (
        "nccl_simple",
        f"nccl_algo not in {listed(SIMPLE_ONLY)} or nccl_proto in {listed((LIBRARY, 'Simple'))}",
        "these algorithms know the protocol Simple only",
    ),
    (
        "nccl_ll128",
        "nccl_proto != 'LL128' or not nccl_p2p_disable and nccl_p2p_level != 'LOC'",
        "LL128 counts on 128 bytes arriving whole, as over NVLink; elsewhere results may be wrong",
    ),
    (
        "nccl_ll128_threads",
        "nccl_proto != 'LL128' or nccl_nthreads == 0",
        "LL128 has its own number of threads",
    ),
    (
        "nccl_channels",
        "nccl_max_nchannels == 0 or nccl_min_nchannels <= nccl_max_nchannels",
        "the fewest channels cannot be more than the most",
    ),
    (
        "nccl_most_channels",
        f"max(nccl_min_nchannels, nccl_max_nchannels) <= {MOST_CHANNELS}",
        "NCCL has no more channels than these",
    ),
    (
        "nccl_threads",
        f"nccl_nthreads in {[0, *THREADS]}",
        "NCCL takes these numbers of threads, and another one as the nearest of them",
    ),
    (
        "nccl_buffer",
        "nccl_buffsize == 0 or nccl_buffsize >= 4096 and 2 ** floor(log2(nccl_buffsize)) == "
        "nccl_buffsize",
        "buffers are powers of two, of a page at least",
    ),
)
