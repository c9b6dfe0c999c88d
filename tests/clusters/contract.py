"""What every scheduler has to keep, with small programs as agents."""

import time
from collections import Counter
from itertools import count

from evaluator.launchers.cluster.scheduler import AgentRequest, Gone, Running, SchedulerError

LIMIT_S = 120.0
_NAMES = count(1)


def asked(script, *, name=None, node_count=2, **settings):
    """A request for agents that run a line of shell, of a new name unless one is given."""
    name = name or f"cclsearch-{time.time_ns()}-{next(_NAMES)}"
    return AgentRequest(name=name, node_count=node_count, command=("sh", "-c", script), **settings)


def state_of_kind(scheduler, job, kind):
    """Wait for a state of a kind and return it."""
    deadline_s = time.monotonic() + LIMIT_S
    while not isinstance(state := scheduler.state(job), kind):
        assert time.monotonic() < deadline_s, state
        time.sleep(0.2)
    return state


def lines_of(path, count):
    """Wait until a file has lines, and return them."""
    deadline_s = time.monotonic() + LIMIT_S
    while not path.is_file() or len(lines := path.read_text().splitlines()) < count:
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
    return lines


class SchedulerContract:
    """A subclass has the fixtures `scheduler` and `shared_folder`."""

    finds_by_name = True

    def test_it_starts_one_process_on_each_node_and_ends_them_all(self, scheduler, shared_folder):
        started, ended = shared_folder / "started", shared_folder / "ended"
        script = f"trap 'echo $$ >> {ended}; exit' TERM; echo $$ >> {started}; sleep 1000 & wait"

        job = scheduler.submit(asked(script))
        state = state_of_kind(scheduler, job, Running)
        processes = lines_of(started, 2)
        scheduler.cancel(job)

        assert len(processes) == 2
        assert state.ends_in_s is None or state.ends_in_s > 0
        assert isinstance(scheduler.state(job), Gone)

    def test_a_job_is_found_by_its_name_until_it_is_gone(self, scheduler):
        request = asked("sleep 1000")

        job = scheduler.submit(request)
        found = scheduler.find(request.name)
        scheduler.cancel(job)

        assert found == (job if self.finds_by_name else None)
        assert scheduler.find(request.name) is None

    def test_a_job_whose_agents_have_ended_is_gone(self, scheduler):
        job = scheduler.submit(asked("true"))

        assert state_of_kind(scheduler, job, Gone).kind == "ended"

    def test_agents_see_what_the_request_says_and_no_secret(
        self, scheduler, shared_folder, monkeypatch
    ):
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret-of-ours")
        seen = shared_folder / "seen"
        environment = {"GREETING": "good day, 'you'"}

        job = scheduler.submit(asked(f"env >> {seen}; echo end >> {seen}", environment=environment))
        state_of_kind(scheduler, job, Gone)

        counts = Counter(seen.read_text().splitlines())
        assert counts["GREETING=good day, 'you'"] == counts["end"] == 2
        assert "sk-secret-of-ours" not in seen.read_text()

    def test_a_second_request_of_the_same_name_does_not_hide_the_first(self, scheduler):
        request = asked("sleep 1000")

        job = scheduler.submit(request)
        try:
            second = scheduler.submit(request)
        except SchedulerError as error:
            assert f"{request.name} already exists" in str(error)
        else:
            scheduler.cancel(second)
            assert scheduler.find(request.name) == (job if self.finds_by_name else None)
        scheduler.cancel(job)
