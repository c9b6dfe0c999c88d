"""Slurm's commands as they are called, and what its recorded answers mean.

`slurm_answers.toml` was recorded from the Slurm that `make clusters` runs.
"""

import shlex
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from evaluator.launchers.cluster.scheduler import (
    AgentRequest,
    Gone,
    Running,
    SchedulerBusy,
    SchedulerError,
    Waiting,
)
from evaluator.launchers.cluster.schedulers.slurm import Slurm, SlurmStep, seconds
from records.study import Cluster

HERE = Path(__file__).parent
ANSWERS = tomllib.loads((HERE / "slurm_answers.toml").read_text(encoding="utf-8"))
GOLDEN = HERE / "golden" / "slurm_commands.txt"
NAME = "cclsearch-20261124-142926-208b-1"
REQUEST = AgentRequest(
    name=NAME,
    node_count=2,
    command=("/usr/bin/python3", "/shared/me/agent.pyz", "/shared/me/it's here.json"),
    environment={"CCLSEARCH_AGENT": "1"},
    log=Path("/shared/me/agents.log"),
)
EVERYTHING = Cluster(
    shared_dir="/shared/me",
    partition="gpu",
    account="team",
    qos="high",
    reservation="tuesday",
    exclude=("n3", "n4"),
    options=("--gres=gpu:8",),
    time_limit_s=7201,
)
TOOL = """\
#!/bin/sh
tool=$(basename $0)
cd FOLDER
# In one write: squeue is called while srun begins.
printf '%s%s\\n' $tool "$(printf " '%s'" "$@")" >> called
case $tool in
    sbatch) cat >> called ;;
    srun) echo "12.0|n[1-2]|NAME" > squeue.answer
        while test -f squeue.answer; do sleep 0.01; done ;;
    scancel) rm -f squeue.answer ;;
esac
test -f $tool.error && { cat $tool.error >&2; exit 1; }
test -f $tool.answer && cat $tool.answer
exit 0
"""


class Tools:
    """Programs on the PATH that write down how they were called and give recorded answers."""

    def __init__(self, folder):
        self.folder = folder
        self.environment = {"PATH": f"{folder}:/usr/bin:/bin", "SLURM_CONF": "/etc/slurm.conf"}
        for name in ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo", "sacct"):
            tool = folder / name
            script = TOOL.replace("FOLDER", shlex.quote(str(folder))).replace("NAME", NAME)
            tool.write_text(script, encoding="utf-8")
            tool.chmod(0o755)

    def answer(self, tool, text):
        (self.folder / f"{tool}.answer").write_text(text, encoding="utf-8")

    def refuse(self, tool, text):
        (self.folder / f"{tool}.error").write_text(text, encoding="utf-8")

    @property
    def called(self):
        return (self.folder / "called").read_text(encoding="utf-8")


@pytest.fixture
def tools(tmp_path):
    return Tools(tmp_path)


def test_the_command_lines_are_the_golden_ones(tools, tmp_path):
    tools.answer("sbatch", "12;loopback\n")
    job = Slurm(EVERYTHING, tools.environment).submit(REQUEST)
    step = in_allocation(tools, options=("--gres=gpu:8",))
    step_id = step.submit(replace(REQUEST, log=tmp_path / "agents.log"))
    step.cancel(step_id)

    # How often it is asked for a step depends on the time that srun takes.
    lines = dict.fromkeys(tools.called.splitlines(keepends=True))
    called = "".join(lines)
    accept = tmp_path / "slurm_commands.txt"
    accept.write_text(called, encoding="utf-8")
    assert (job, step_id) == ("12", "12.0")
    assert called == GOLDEN.read_text(encoding="utf-8"), f"accept by: cp {accept} {GOLDEN}"


def in_allocation(tools, **settings):
    """A scheduler of steps whose own job has variables that are options of srun."""
    variables = {"SLURM_JOB_ID": "12", "SLURM_NTASKS": "16", "SLURM_CPU_BIND": "cores"}
    return SlurmStep(Cluster(**settings), {**tools.environment, **variables})


@pytest.mark.parametrize("recorded", ANSWERS["state"], ids=lambda recorded: recorded["said"])
def test_every_state_of_a_job_is_understood(tools, recorded):
    tools.answer("squeue", recorded["said"] + "\n")
    tools.answer("scontrol", "n1\nn2\n")

    state = Slurm(Cluster(), tools.environment).state("12")

    match recorded:
        case {"waits": reason}:
            assert state == Waiting(reason)
        case {"runs_for_s": left_s}:
            assert state == Running(nodes=("n1", "n2"), ends_in_s=left_s)
        case {"gone": kind}:
            assert isinstance(state, Gone)
            assert state.kind == kind


def test_a_cancelled_job_whose_log_tells_of_a_dead_node_is_a_failed_node(tools, tmp_path):
    scheduler, log = Slurm(Cluster(), tools.environment), tmp_path / "agents.log"
    tools.answer("sbatch", "12\n")
    scheduler.submit(replace(REQUEST, log=log))
    tools.answer("squeue", "CANCELLED|None|n[1-2]|0:59|main\n")
    log.write_text(
        "srun: error: Node failure on n2\n"
        "slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-11-28T05:00:00 ***\n"
    )

    gone = scheduler.state("12")

    assert isinstance(gone, Gone)
    assert gone.kind == "node_failed"


@pytest.mark.parametrize("recorded", ANSWERS["forgotten"], ids=lambda recorded: recorded["gone"])
def test_a_forgotten_job_is_explained_by_its_accounts_or_its_log(tools, tmp_path, recorded):
    scheduler, log = Slurm(Cluster(), tools.environment), tmp_path / "agents.log"
    tools.answer("sbatch", "12\n")
    scheduler.submit(replace(REQUEST, log=log))
    log.write_text(recorded.get("log", ""), encoding="utf-8")
    tools.refuse("squeue", ANSWERS["invalid_job"])
    if "accounts" in recorded:
        tools.answer("sacct", recorded["accounts"])
    else:
        tools.refuse("sacct", ANSWERS["no_accounts"])

    gone = scheduler.state("12")

    assert isinstance(gone, Gone)
    assert gone.kind == recorded["gone"]
    assert recorded["words"] in gone.words


@pytest.mark.parametrize("words", ANSWERS["refusals"])
def test_a_refusal_has_the_words_of_slurm(tools, words):
    tools.refuse("sbatch", words)

    with pytest.raises(SchedulerError) as caught:
        Slurm(Cluster(), tools.environment).submit(REQUEST)

    assert not isinstance(caught.value, SchedulerBusy)
    assert words.splitlines()[0].split(": ", 2)[-1] in str(caught.value)


@pytest.mark.parametrize("words", ANSWERS["busy"])
def test_a_controller_that_does_not_answer_is_busy_and_nothing_is_gone(tools, words):
    tools.refuse("squeue", words)

    with pytest.raises(SchedulerBusy):
        Slurm(Cluster(), tools.environment).state("12")


def test_a_job_whose_answer_was_lost_is_not_submitted_twice(tools):
    tools.answer("squeue", "12\n")

    assert Slurm(Cluster(), tools.environment).submit(REQUEST) == "12"
    assert "sbatch" not in tools.called


def test_the_facts_are_those_of_the_cluster(tools):
    tools.answer("scontrol", ANSWERS["config"])
    tools.answer("sinfo", ANSWERS["partitions"])

    facts = Slurm(Cluster(), tools.environment).facts()

    assert facts == {
        "version": "22.05.8",
        "cluster": "loopback",
        "partitions": "main* (2 nodes, up, time limit infinite), single (2 nodes, up, time limit "
        "infinite)",
        "accounting": "slurmdbd",
    }


def test_steps_need_an_allocation(tools):
    missing = SlurmStep(Cluster(), tools.environment).missing()

    assert missing is not None
    assert "SLURM_JOB_ID is not set" in missing


@pytest.mark.parametrize(
    ("left", "expected_s"),
    [("59", None), ("0:59", 59), ("1:00:00", 3600), ("1-00:00:01", 86401), ("UNLIMITED", None)],
)
def test_the_time_left_is_read_in_all_its_forms(left, expected_s):
    assert seconds(left) == expected_s
