"""Nodes are asked for once, found again, checked, and given back."""

import time
from contextlib import closing
from threading import Event

import pytest

from evaluator.launchers.cluster.agents import next_message
from evaluator.launchers.cluster.allocation import Allocation, NodesUnavailable, _write
from evaluator.launchers.cluster.channel import Channel, ChannelLost, Meeting
from evaluator.launchers.cluster.nodes import Nodes
from evaluator.launchers.cluster.scheduler import (
    Gone,
    Running,
    SchedulerBusy,
    SchedulerError,
    Waiting,
)
from records.errors import EnvironmentFault
from records.study import Cluster
from tests.support.cluster import FakeAgent, FakeScheduler

STUDY = "20261124-142926-208b"


def agents_of(*nodes, **facts):
    """Starts an agent in a thread on each of these nodes."""
    return lambda request: [FakeAgent(request, node, **facts) for node in nodes]


@pytest.fixture
def allocation(tmp_path):
    """Makes the nodes of a study, which end with the test."""
    made = []

    def make(scheduler, *, count=2, needs_gpus=False, **cluster):
        nodes = Nodes(count=count, ranks_per_node=2, needs_gpus=needs_gpus)
        cluster = Cluster(**cluster)
        made.append(Allocation(scheduler, cluster, nodes, study_id=STUDY, root=tmp_path))
        return made[-1]

    yield make
    for each in made:
        each.close()


def until(fact):
    deadline_s = time.monotonic() + 20
    while not fact():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def wait(allocation, on_phase=print):
    return allocation.agents(Event(), on_phase)


def test_agents_are_returned_in_the_order_of_their_nodes(allocation):
    found = wait(allocation(FakeScheduler(agents_of("n10", "n9"))))

    assert [agent.node for agent in found] == ["n9", "n10"]


def test_nodes_are_asked_for_once_and_waited_for_twice(allocation):
    scheduler = FakeScheduler(agents_of("n1", "n2"))
    nodes = allocation(scheduler)
    nodes.begin()

    assert wait(nodes) is wait(nodes)
    assert [request.name for request in scheduler.requests] == [f"cclsearch-{STUDY}-1"]


def test_nodes_whose_agents_are_there_before_the_scheduler_is_asked_count_as_held(allocation):
    nodes = allocation(FakeScheduler(agents_of("n1", "n2")))
    nodes.begin()
    time.sleep(0.5)  # both have connected

    wait(nodes)

    assert nodes.held_s > 0


def test_a_request_is_on_record_before_the_scheduler_hears_of_it(allocation, tmp_path):
    recorded = []

    def look(request):
        recorded.extend(path.name for path in tmp_path.rglob(f"{request.name}.json"))

    allocation(FakeScheduler(look)).begin()

    assert recorded == [f"cclsearch-{STUDY}-1.json"]


def test_the_secret_is_in_a_file_for_the_user_alone_and_in_nothing_else(allocation, tmp_path):
    scheduler = FakeScheduler()
    allocation(scheduler).begin()

    (path,) = tmp_path.rglob("cclsearch-*.json")
    (request,) = scheduler.requests
    secret = Meeting.of(path.read_text()).secret
    assert path.stat().st_mode & 0o777 == 0o600
    assert secret not in " ".join([*request.command, *request.environment.values()])


def test_what_comes_without_the_secret_is_not_let_in(allocation, tmp_path):
    allocation(FakeScheduler()).begin()
    (path,) = tmp_path.rglob("cclsearch-*.json")
    meeting = Meeting.of(path.read_text())

    with pytest.raises(ChannelLost):
        Channel.to("127.0.0.1", meeting.port, "guessed", 10)


def test_a_refusal_has_the_words_of_the_scheduler_and_leaves_nothing_on_record(
    allocation, tmp_path
):
    def refuse(_request):
        raise SchedulerError("sbatch: error: invalid partition specified: gpuu")

    with pytest.raises(SchedulerError, match="invalid partition specified: gpuu"):
        allocation(FakeScheduler(refuse)).begin()
    assert [*tmp_path.rglob("cclsearch-*.json")] == []


def test_a_queue_that_is_too_long_is_no_fault_of_a_configuration(allocation):
    scheduler = FakeScheduler()
    scheduler.first_state = Waiting("Resources")
    phases = []

    with pytest.raises(NodesUnavailable, match=r"Resources.*queue_limit_s") as raised:
        wait(allocation(scheduler, queue_limit_s=0.3), phases.append)
    assert raised.value.reason == "not_scheduled"
    assert phases == ["queued"]
    assert scheduler.cancelled == [scheduler.requests[0].name]


def test_nodes_whose_agents_do_not_come_are_named_and_given_back(allocation):
    scheduler = FakeScheduler(agents_of("n1"))

    with pytest.raises(NodesUnavailable, match="1 of 2 agents connected") as raised:
        wait(allocation(scheduler, start_limit_s=0.5))
    assert raised.value.reason == "node_failed"
    assert len(scheduler.cancelled) == 1


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("preempted", "preempted"),
        ("cancelled", "preempted"),
        ("time_limit", "preempted"),
        ("node_failed", "node_failed"),
    ],
)
def test_a_job_that_is_gone_is_infrastructure(allocation, kind, reason):
    scheduler = FakeScheduler()
    scheduler.first_state = Gone(kind, "as it says")

    with pytest.raises(NodesUnavailable, match="as it says") as raised:
        wait(allocation(scheduler))
    assert raised.value.reason == reason


def test_agents_that_end_before_they_connect_end_the_search_and_not_its_trials(allocation):
    scheduler = FakeScheduler()
    scheduler.first_state = Gone("ended", "n1: python: not found")

    with pytest.raises(EnvironmentFault, match=r"python: not found.*\[cluster\] python"):
        wait(allocation(scheduler))


def test_a_shared_folder_that_cannot_be_made_is_named(tmp_path):
    root = tmp_path / "file"
    root.touch()
    nodes = Nodes(count=1, ranks_per_node=1)
    broken = Allocation(FakeScheduler(), Cluster(), nodes, study_id=STUDY, root=root)

    with pytest.raises(EnvironmentFault, match=r"shared_dir .*file cannot be used here: Not a dir"):
        broken.begin()


def test_a_scheduler_that_does_not_answer_is_asked_again(allocation, monkeypatch):
    scheduler = FakeScheduler(agents_of("n1", "n2"))

    def busy(_job):
        raise SchedulerBusy("it restarts")

    monkeypatch.setattr(scheduler, "state", busy)

    assert len(wait(allocation(scheduler))) == 2


def test_a_request_that_a_busy_scheduler_did_not_answer_is_made_again_under_its_name(
    allocation, monkeypatch
):
    monkeypatch.setattr("evaluator.launchers.cluster.allocation.ASK_SCHEDULER_EVERY_S", 0.01)
    busy = [SchedulerBusy("its queue is full")] * 2

    def start(request):
        if busy:
            raise busy.pop()
        agents_of("n1", "n2")(request)

    scheduler = FakeScheduler(start)

    assert len(wait(allocation(scheduler))) == 2
    assert [request.name for request in scheduler.requests] == [f"cclsearch-{STUDY}-1"] * 3


def test_a_scheduler_that_is_busy_for_too_long_gives_no_nodes(allocation):
    def start(_request):
        raise SchedulerBusy("its queue is full")

    with pytest.raises(NodesUnavailable, match="its queue is full") as raised:
        wait(allocation(FakeScheduler(start), queue_limit_s=1e-9))
    assert raised.value.reason == "not_scheduled"


def test_waiting_for_nodes_can_be_stopped(allocation):
    stopped = Event()
    stopped.set()

    with pytest.raises(KeyboardInterrupt):
        allocation(FakeScheduler()).agents(stopped, print)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"version": "another"}, "another version"),
        ({"ahead_s": 30.0}, r"(29|30)\.\d s ahead"),
        ({"ahead_s": -5.0}, r"[45]\.\d s behind"),
        ({"shares": False}, "is not shared with n1, n2"),
    ],
)
def test_a_node_on_which_launches_would_mean_nothing_is_refused(
    allocation, monkeypatch, facts, words
):
    monkeypatch.setattr("evaluator.launchers.cluster.allocation.SHARED_LIMIT_S", 0.2)

    with pytest.raises(EnvironmentFault, match=words):
        wait(allocation(FakeScheduler(agents_of("n1", "n2", **facts))))


def test_a_node_with_too_few_gpus_is_refused(allocation):
    scheduler = FakeScheduler(agents_of("n1", "n2", gpus=["H100"]))

    with pytest.raises(EnvironmentFault, match=r"n1 shows 1 GPUs.*gres=gpu:2"):
        wait(allocation(scheduler, needs_gpus=True))


def test_two_agents_on_one_node_are_refused(allocation):
    with pytest.raises(EnvironmentFault, match="n1 has more than one agent"):
        wait(allocation(FakeScheduler(agents_of("n1", "n1"))))


def test_new_nodes_of_other_names_are_asked_for_where_one_was_lost(allocation):
    started, names = [], iter([("n1", "n2"), ("n1", "n7")])
    scheduler = FakeScheduler(lambda request: started.extend(agents_of(*next(names))(request)))
    nodes = allocation(scheduler)
    _, lost = wait(nodes)
    nodes.use_last(["n2"])
    scheduler.states[scheduler.requests[0].name] = Gone("preempted", "higher priority")
    started[1].vanish()
    next_message(lost.inbox, 20)

    found = wait(nodes)

    assert [agent.node for agent in found] == ["n1", "n7"]
    assert [request.name[-1] for request in scheduler.requests] == ["1", "2"]
    assert scheduler.cancelled == [scheduler.requests[0].name]


def test_an_agent_that_is_replaced_before_all_are_there_joins_under_its_own_name(allocation):
    started = []
    scheduler = FakeScheduler(lambda request: started.append(FakeAgent(request, "n2")))
    nodes = allocation(scheduler)

    def replace_it(_phase):
        until(lambda: nodes._agents.joined)
        started[0].vanish()
        until(lambda: not nodes._agents.joined)
        agents_of("n1", "n7")(scheduler.requests[0])

    found = wait(nodes, replace_it)

    assert [agent.node for agent in found] == ["n1", "n7"]


def test_nodes_have_the_names_that_their_scheduler_knows(allocation):
    scheduler = FakeScheduler(agents_of("pod-1", "pod-0"))
    scheduler.first_state = Running(names={"pod-0": "gpu9", "pod-1": "gpu4"})

    found = wait(allocation(scheduler))

    assert [agent.node for agent in found] == ["gpu4", "gpu9"]


@pytest.mark.parametrize(
    ("node", "reason"),
    [("n1", "out_of_memory"), ("n2", "node_failed"), (None, "out_of_memory")],
    ids=["on_that_node", "on_another_node", "on_the_lost_node"],
)
def test_memory_that_ran_out_is_the_fault_of_a_launch_on_that_node(allocation, node, reason):
    started = []
    scheduler = FakeScheduler(lambda request: started.extend(agents_of("n1", "n2")(request)))
    nodes = allocation(scheduler)
    first, _ = wait(nodes)
    scheduler.states[scheduler.requests[0].name] = Gone("out_of_memory", "OOMKilled", node)
    started[0].vanish()
    next_message(first.inbox, 20)

    found = nodes.give_up(first, launch_nodes={"n1"})

    assert found.reason == reason
    assert "OOMKilled" in str(found)


def test_closing_ends_the_job_and_lets_the_agents_go(allocation, tmp_path):
    started = []
    scheduler = FakeScheduler(lambda request: started.extend(agents_of("n1", "n2")(request)))
    nodes = allocation(scheduler)
    wait(nodes)

    nodes.close()

    assert scheduler.states == {}
    for agent in started:
        agent.join(10)
    assert [*tmp_path.rglob("cclsearch-*.json")] == []


def killed(scheduler, allocation, **changes):
    """The nodes of a search that was killed: on record, and with their agents gone."""
    before = allocation(scheduler, **changes)
    before.begin()
    before._agents.close()
    before._agents = before.job = None
    return before


def test_the_job_of_a_killed_search_is_taken_over(allocation):
    scheduler = FakeScheduler()
    killed(scheduler, allocation)
    again = allocation(scheduler)
    again.begin()

    agents_of("n1", "n2")(scheduler.requests[0])

    assert len(wait(again)) == 2
    assert len(scheduler.requests) == 1
    assert scheduler.cancelled == []


def test_agents_that_connect_while_their_job_is_taken_over_are_let_in(allocation, monkeypatch):
    scheduler = FakeScheduler()
    killed(scheduler, allocation, start_limit_s=5)

    def write_slowly(path, content):
        _write(path, content)
        agents_of("n1", "n2")(scheduler.requests[0])
        time.sleep(0.5)

    monkeypatch.setattr("evaluator.launchers.cluster.allocation._write", write_slowly)

    assert len(wait(allocation(scheduler, start_limit_s=5))) == 2
    assert len(scheduler.requests) == 1


def test_the_job_of_a_killed_search_that_asked_for_something_else_is_ended(allocation):
    scheduler = FakeScheduler()
    killed(scheduler, allocation)

    allocation(scheduler, partition="other").begin()

    assert scheduler.cancelled == [f"cclsearch-{STUDY}-1"]
    assert [request.name[-1] for request in scheduler.requests] == ["1", "2"]


def test_a_job_that_is_gone_is_asked_for_again(allocation):
    scheduler = FakeScheduler()
    killed(scheduler, allocation)
    scheduler.states.clear()

    allocation(scheduler).begin()

    assert [request.name[-1] for request in scheduler.requests] == ["1", "2"]


def test_agents_of_an_earlier_request_are_sent_away(allocation):
    started = []
    scheduler = FakeScheduler(lambda request: started.extend(agents_of("n1", "n2")(request)))
    nodes = allocation(scheduler)
    wait(nodes)
    nodes.give_up(wait(nodes)[0])

    with closing(nodes):
        nodes.begin()
        found = wait(nodes)

    assert {agent.facts.name[-1] for agent in found} == {"2"}
