"""The schedulers `slurm` and `slurm-step` against a real Slurm, with small programs as agents."""

import re
import time
from os import cpu_count

import pytest

from evaluator.launchers.cluster.scheduler import (
    AgentRequest,
    Gone,
    Running,
    SchedulerBusy,
    SchedulerError,
    Waiting,
)
from evaluator.launchers.cluster.schedulers.slurm import Slurm, SlurmStep
from records.study import Cluster

LIMIT_S = 60.0
NAME = "cclsearch-20261124-142926-208b-1"


@pytest.fixture
def asked(shared_folder):
    """Make requests for agents that only wait."""

    def make(*, name=NAME, node_count=2, command=("sleep", "1000")):
        log = shared_folder / f"{name}.log"
        return AgentRequest(name=name, node_count=node_count, command=command, log=log)

    return make


def state_of_kind(scheduler, job, kind, limit_s=LIMIT_S):
    """Wait for a state of a kind and return it."""
    deadline_s = time.monotonic() + limit_s
    while not isinstance(state := scheduler.state(job), kind):
        assert time.monotonic() < deadline_s, state
        time.sleep(0.2)
    return state


@pytest.fixture
def jobs(slurm):
    """Make schedulers that submit jobs, as from a login node."""

    def make(**settings):
        return Slurm(Cluster(**settings), {**slurm.environment})

    return make


@pytest.fixture
def steps(slurm):
    """Make a scheduler in an allocation of two nodes that asked for much that an agent must not."""
    options = ["--no-shell", "--exclusive", "--nodes=2", "--time=60"]
    allocation = re.search(r"\d+", slurm.run("salloc", *options)).group()
    variables = {"SLURM_JOB_ID": allocation, "SLURM_NTASKS": "16", "SLURM_MEM_PER_CPU": "100"}
    yield SlurmStep(Cluster(), {**slurm.environment, **variables})
    slurm.run("scancel", allocation)
    slurm.wait_until_idle()


@pytest.fixture(params=["slurm", "slurm-step"])
def scheduler(request, slurm):  # noqa: ARG001 - its parameters
    """Both ways, with what both promise."""
    if request.param == "slurm":
        return request.getfixturevalue("jobs")()
    return request.getfixturevalue("steps")


def test_each_node_runs_one_agent_that_may_use_all_of_its_cores(scheduler, shared_folder, asked):
    script = f"nproc > {shared_folder}/$(hostname).cores; sleep 1000"

    job = scheduler.submit(asked(command=("sh", "-c", script)))
    running = state_of_kind(scheduler, job, Running)
    deadline_s = time.monotonic() + LIMIT_S
    while len(cores := list(shared_folder.glob("*.cores"))) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.1)
    scheduler.cancel(job)

    assert running.nodes == ("n1", "n2")
    assert sorted(path.name for path in cores) == ["n1.cores", "n2.cores"]
    assert {int(path.read_text()) for path in cores} == {cpu_count()}


def test_a_job_is_found_by_its_name_until_it_is_cancelled(scheduler, asked):
    job = scheduler.submit(asked())

    found, again = scheduler.find(NAME), scheduler.submit(asked())
    scheduler.cancel(job)

    assert found == again == job
    assert scheduler.find(NAME) is None
    assert isinstance(scheduler.state(job), Gone)


def test_agents_that_cannot_start_leave_the_words_of_the_node(scheduler, asked):
    command = ("/nowhere/python",)

    try:
        gone = state_of_kind(scheduler, scheduler.submit(asked(command=command)), Gone)
        words = gone.words
    except SchedulerError as error:
        words = str(error)

    assert "/nowhere/python: No such file or directory" in words


def test_a_job_that_someone_cancels_is_cancelled(scheduler, slurm, asked):
    job = scheduler.submit(asked())
    state_of_kind(scheduler, job, Running)

    slurm.run("scancel", job)
    gone = state_of_kind(scheduler, job, Gone)

    assert gone.kind == "cancelled"


def test_a_node_that_dies_is_a_failed_node(scheduler, slurm, asked):
    job = scheduler.submit(asked())
    state_of_kind(scheduler, job, Running)

    slurm.kill_node("n2")
    try:
        gone = state_of_kind(scheduler, job, Gone, limit_s=120)
    finally:
        slurm.start_node("n2")
        slurm.run("scontrol", "update", "nodename=n2", "state=resume", check=False)

    assert gone.kind == "node_failed", gone.words


def test_while_the_controller_restarts_nothing_is_gone(scheduler, slurm, asked):
    job = scheduler.submit(asked())
    state_of_kind(scheduler, job, Running)

    slurm.stop_controller()
    try:
        with pytest.raises(SchedulerBusy):
            scheduler.state(job)
        with pytest.raises(SchedulerBusy):
            scheduler.submit(asked(name="cclsearch-other-1"))
    finally:
        slurm.start_controller()
    running = first_answer(scheduler, job)
    scheduler.cancel(job)

    assert isinstance(running, Running)


def first_answer(scheduler, job):
    """The first state that is answered."""
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        try:
            return scheduler.state(job)
        except SchedulerBusy:
            assert time.monotonic() < deadline_s


@pytest.mark.parametrize(
    ("settings", "node_count", "words"),
    [
        ({"partition": "nonsense"}, 2, "invalid partition specified: nonsense"),
        ({"options": ("--nonsense",)}, 2, "unrecognized option '--nonsense'"),
        ({"exclude": ("nonsense",)}, 2, "Invalid node name specified"),
    ],
)
def test_what_slurm_refuses_is_said_in_its_words(jobs, settings, node_count, words, asked):
    with pytest.raises(SchedulerError, match=re.escape(words)) as caught:
        jobs(**settings).submit(asked(node_count=node_count))

    assert not isinstance(caught.value, SchedulerBusy)


@pytest.mark.parametrize("running_slurm", ["accounting"], indirect=True)
def test_an_unknown_account_is_refused_where_accounts_are_kept(jobs, asked):
    with pytest.raises(SchedulerError, match="Invalid account"):
        jobs(account="nonsense").submit(asked())


def test_a_step_on_more_nodes_than_the_allocation_has_is_refused(steps, asked):
    with pytest.raises(SchedulerError, match="nodes"):
        steps.submit(asked(node_count=3))


@pytest.mark.parametrize(("partition", "node_count"), [("single", 2), ("main", 5)])
def test_more_nodes_than_a_partition_has_are_refused(jobs, partition, node_count, asked):
    scheduler = jobs(partition=partition)

    gone = scheduler.state(scheduler.submit(asked(node_count=node_count)))

    words = f"Slurm would never start the job in partition {partition}: PartitionConfig"
    assert gone == Gone("refused", words)


def test_a_job_waits_while_all_nodes_are_in_use(jobs, asked):
    first = jobs().submit(asked())
    state_of_kind(jobs(), first, Running)

    second = jobs().submit(asked(name="cclsearch-other-1"))
    waiting = jobs().state(second)
    jobs().cancel(second)
    jobs().cancel(first)

    assert isinstance(waiting, Waiting)
    assert waiting.reason in ("Resources", "Priority", "None")


def test_a_job_waits_for_a_drained_node(jobs, slurm, asked):
    slurm.run("scontrol", "update", "nodename=n2", "state=drain", "reason=test")
    try:
        job = jobs().submit(asked())
        time.sleep(5)
        waiting = jobs().state(job)
        jobs().cancel(job)
    finally:
        slurm.run("scontrol", "update", "nodename=n2", "state=resume")

    assert isinstance(waiting, Waiting)


def test_a_full_queue_is_busy_and_holds_no_second_job_afterwards(jobs, slurm, asked):
    slurm.fill_queue()

    with pytest.raises(SchedulerBusy, match="Slurm temporarily unable to accept job"):
        jobs().submit(asked())
    slurm.run("scancel", "--name=other")
    job = jobs().submit(asked())
    names = slurm.run("squeue", "--noheader", "--format=%j").split()
    jobs().cancel(job)

    assert names == [NAME]


def test_a_job_that_gives_way_to_another_is_preempted(jobs, asked):
    job = jobs().submit(asked())
    state_of_kind(jobs(), job, Running)

    urgent = jobs(partition="urgent").submit(asked(name="cclsearch-urgent-1"))
    gone = state_of_kind(jobs(), job, Gone)
    jobs().cancel(urgent)

    assert gone.kind == "preempted"


def test_a_job_at_its_time_limit_says_so_even_once_slurm_has_forgotten_it(jobs, slurm, asked):
    scheduler = jobs(time_limit_s=60)
    job = scheduler.submit(asked())
    running = state_of_kind(scheduler, job, Running)
    assert 0 < running.ends_in_s <= 60

    gone = state_of_kind(scheduler, job, Gone, limit_s=180)
    while "Invalid" not in slurm.run("squeue", f"--jobs={job}", check=False):
        time.sleep(1)
    forgotten = scheduler.state(job)

    assert gone.kind == forgotten.kind == "time_limit"


def test_the_facts_name_version_partitions_and_accounting(jobs, running_slurm):
    facts = jobs().facts()

    assert re.fullmatch(r"\d+\.\d+\.\d+.*", facts["version"])
    assert "main* (2 nodes, up, time limit infinite)" in facts["partitions"]
    assert facts["accounting"] == ("slurmdbd" if running_slurm.accounting else "none")
