import pytest

from records.study import Measure
from records.trial import FailureKind
from tests.support.evaluator import Fails, TabularEvaluator, Takes

HANG = Fails(kind=FailureKind.HANG, message="no sign of life for 5 s in timed: rank 1 in read")
RETRIED = Measure(infrastructure_retries=3, confirm_rounds=0, profiled_steps=0)
NO_CONFIRMATION = Measure(confirm_rounds=0, profiled_steps=0)


class LeavingEvaluator(TabularEvaluator):
    """Leaves what a real launch leaves when its ranks hang or fail."""

    def evaluate(self, study, config, workdir):
        (workdir / "rank1.stacks.txt").write_text("Current thread 0x1\n  in read\n")
        (workdir / "rank1.error.json").write_text("{}")
        return super().evaluate(study, config, workdir)


@pytest.fixture
def hung(tabular, cclsearch):
    """Runs a command on the store of a study whose second trial hung."""
    study = tabular({0: Takes(step_time_s=0.5), 1: HANG}, measure=NO_CONFIRMATION)
    study.evaluator = LeavingEvaluator(endings=study.evaluator.endings)
    study.run()
    return lambda *arguments: cclsearch(*arguments, "--store", study.root)


def test_a_failed_trial_is_shown_with_kind_stage_and_first_cause(hung):
    lines = hung("trial", "show", "1").out.splitlines()

    assert "  failed: hang at launch" in lines
    assert f"  first cause: {HANG.message}" in lines


def test_stacks_and_error_files_of_a_failed_trial_are_kept(hung, tmp_path):
    hung("trial", "files", "1", "--to", tmp_path / "copied")

    kept = {path.name for path in (tmp_path / "copied").iterdir()}
    assert {"rank0.log", "rank1.error.json", "rank1.stacks.txt"} <= kept


def test_the_stacks_of_a_rank_are_printed_with_its_log(hung):
    assert hung("trial", "logs", "1", "--rank", "1").out == (
        "== rank1.stacks.txt\nCurrent thread 0x1\n  in read\n"
    )
    assert "== rank0.log\n" in hung("trial", "logs", "1").out


def test_retries_after_an_infrastructure_failure_wait_longer_each_time(tabular):
    waited_s = []
    lost = Fails(kind=FailureKind.INFRASTRUCTURE, message="node lost")
    study = tabular({0: lost}, measure=RETRIED, sleep=waited_s.append)

    study.run()

    whole_seconds = [wait_s for wait_s in waited_s if wait_s >= 1]
    assert whole_seconds[:3] == [1.0, 2.0, 4.0]
    assert study.history.trials[0].attempts == 4
