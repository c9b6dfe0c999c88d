"""Scripts whose loop is over `cclsearch.steps()`: what a trial takes from all of their ranks."""

import textwrap

import pytest

from records.study import Measure

UNPROFILED = Measure(timeout_s=30, warmup_steps=2, timed_steps=5, profiled_steps=0)

# Two ranks, as a launcher would start them.
RANKS = """
cat > train.py <<'PYTHON'
import os, time
import cclsearch
rank = int(os.environ["RANK"])
{body}
PYTHON
for rank in 0 1; do RANK=$rank python train.py & done
wait
"""


def two_ranks(body: str) -> str:
    return RANKS.format(body=textwrap.dedent(body).strip())


def test_the_steps_of_all_ranks_are_the_measurement(tried):
    script = two_ranks(
        """
        for step in cclsearch.steps():
            time.sleep(0.01)
            cclsearch.log(loss=rank + 4.0 - step, tokens=128)
        """
    )

    measurement = tried(script, measure=UNPROFILED).measurement

    assert [len(steps) for steps in measurement.step_times_s] == [5, 5]
    assert [len(steps) for steps in measurement.warmup_times_s] == [2, 2]
    assert min(min(steps) for steps in measurement.step_times_s) >= 0.01
    assert measurement.losses[:3] == (4.5, 3.5, 2.5)
    assert all(peak > 0 for peak in measurement.peak_memory_bytes)
    assert (measurement.profiled, measurement.tokens_verified) == (False, True)


def test_tokens_that_no_rank_logs_are_those_declared(tried):
    measurement = tried(
        two_ranks("for _ in cclsearch.steps(): pass"), measure=UNPROFILED
    ).measurement
    assert measurement.caveats == ("tokens per step declared, not verified",)


def test_torch_profiles_the_last_steps_and_its_version_is_recorded(tried):
    script = two_ranks(
        """
        import torch
        where = f"file://{os.getcwd()}/meet"
        torch.distributed.init_process_group("gloo", where, rank=rank, world_size=2)
        for _ in cclsearch.steps():
            torch.distributed.all_reduce(torch.ones(1000) @ torch.ones(1000))
        """
    )

    measured = tried(
        script, measure=Measure(timeout_s=100, timed_steps=5, profiled_steps=2)
    ).outcome

    assert measured.measurement.torch_version.startswith("2.")
    assert measured.breakdown is not None
    assert measured.metric("communication_fraction") > 0


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (
            "if rank == 0: list(cclsearch.steps())",
            "metric_error",
            "rank 1 reported no steps, although others did",
        ),
        (
            "for step in cclsearch.steps():\n    if step == 3: break",
            "metric_error",
            "rank 0: the loop over cclsearch.steps() ended after 3 of 7 steps",
        ),
        (
            "for step in cclsearch.steps(): cclsearch.log(tokens=100 + step)",
            "metric_error",
            "steps fed from 200 to 212 tokens",
        ),
        (
            "for step in cclsearch.steps(): cclsearch.log(tokens=100)",
            "invalid_config",
            "processed 200 tokens per step, the study asks for 256",
        ),
    ],
)
def test_steps_that_cannot_be_compared_fail(body, kind, message, tried):
    failure = tried(two_ranks(body), measure=UNPROFILED).failure
    assert (failure.kind, message in failure.message) == (kind, True), failure.message


@pytest.mark.parametrize(
    ("report", "message"),
    [
        ("echo '{}' > $TRACE_DIR/steps/rank0.json", "steps/rank0.json: Object missing"),
        ("ln -s /dev/zero $TRACE_DIR/steps/rank0.json", "steps/rank0.json: is a link"),
    ],
)
def test_a_report_of_a_rank_is_read_as_a_stranger_s_file(report, message, tried):
    failure = tried(f"mkdir $TRACE_DIR/steps; {report}", measure=UNPROFILED).failure
    assert message in failure.message
