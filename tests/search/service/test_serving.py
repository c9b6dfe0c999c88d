"""The service as a process: killed in mid-search, started again, stopped, refused."""

import os
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, closing
from pathlib import Path
from subprocess import PIPE

import pytest

from evaluator.launchers.limits import descendants
from records.store.store import Store
from search.cli.main import main
from search.service.app import lock_store
from search.service.runner import run_folder
from search.service.server import AUTOGROUP, NICENESS
from tests.search.loop.test_kill import survivors
from tests.support.search import deaf_port
from tests.support.service import CCLSEARCH, Serving, configured, searching


def test_a_search_outlives_a_killed_service_and_the_next_one_finds_it_again(tmp_path):
    configured(tmp_path)
    store, hold = tmp_path / "store", tmp_path / "hold"
    hold.touch()
    with Serving(tmp_path) as first:
        study_id = first.submit(trials=2)
        queued = first.submit(trials=1)
        seen = []
        for name, number in first.events(study_id):
            seen.append((name, number))
            if name == "config_decided":
                break
        priority = os.getpriority(os.PRIO_PROCESS, first.process_id)
        assert priority > os.getpriority(os.PRIO_PROCESS, 0)  # searches have the right of way
        first.kill()
    ((process,),) = searching(store).values()
    launched = descendants(process)
    environment = Path(f"/proc/{process}/environ").read_bytes()
    assert os.getpriority(os.PRIO_PROCESS, process) == os.getpriority(os.PRIO_PROCESS, 0)

    with deaf_port(first.port), Serving(tmp_path, first.port) as second:
        assert second.token == first.token  # who had the link comes back with it
        assert second.client.post(f"/studies/{queued}/cancel").json()["status"] == "cancelled"
        assert searching(store) == {study_id: [process]}
        hold.unlink()
        seen += second.events(study_id, after=seen[-1][1])
        assert second.client.get(f"/studies/{study_id}").json()["status"] == "finished"
        assert second.stop() == (0, "stopped; nothing was under way")

    assert b"not for searches" not in environment
    assert searching(store) == {}
    assert survivors(launched) == []
    lines = (run_folder(store, study_id) / "events.jsonl").read_text(encoding="utf-8").splitlines()
    told = [name for name, _ in seen if name != "progress"]
    assert told == [_name(line) for line in lines] + ["end"]
    with closing(Store(store)) as records:
        assert [trial.ordinal for trial in records.history(study_id)] == [0, 1]
        assert len(records.runs(study_id)) == 1
        assert records.find(queued).status == "interrupted"


@pytest.mark.slow
def test_a_search_on_a_cluster_whose_machine_and_nodes_were_lost_goes_on_with_others(tmp_path):
    cluster = '{hosts = ["local", "local"], nodes = 2, test_nodes = false}'
    configured(tmp_path, f'launcher = "ssh"\ncluster = {cluster}\n')
    store, hold = tmp_path / "store", tmp_path / "hold"
    hold.touch()
    with Serving(tmp_path) as first:
        study_id = first.submit(trials=2)
        next(name for name, _ in first.events(study_id) if name == "config_decided")
        first.kill()
    ((process,),) = searching(store).values()
    launched = descendants(process)
    os.kill(process, signal.SIGKILL)
    assert survivors(launched) == []
    hold.unlink()

    with Serving(tmp_path) as second:
        names = [name for name, _ in second.events(study_id)]
        assert second.client.get(f"/studies/{study_id}").json()["status"] == "finished"
        assert second.stop() == (0, "stopped; nothing was under way")

    assert names[-1] == "end"
    assert searching(store) == {}
    assert not (store / "clusters").exists()
    with closing(Store(store)) as records:
        history = records.history(study_id)
        assert [trial.ordinal for trial in history] == [0, 1]
        assert {trial.outcome.launched.hosts for trial in history} == {("local0",)}
        assert len(records.runs(study_id)) == 2


def _name(line: str) -> str:
    return line.removeprefix('{"event": "').partition('"')[0]


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="the kernel does not group sessions")
def test_the_session_has_its_priority_again_when_the_service_has_ended(tmp_path):
    script = f"'{CCLSEARCH}' serve --port 0 --store '{tmp_path}'; read answer"
    with subprocess.Popen(
        ["sh", "-c", script], stdin=PIPE, stdout=PIPE, text=True, start_new_session=True
    ) as shell:
        session = Path(f"/proc/{shell.pid}/autogroup")
        assert session.read_text(encoding="ascii").endswith(" nice 0\n")
        assert shell.stdout.readline().startswith("cclsearch serves")
        while not session.read_text(encoding="ascii").endswith(f" nice {NICENESS}\n"):
            time.sleep(0.01)
        (service, *_) = descendants(shell.pid)
        os.kill(service, signal.SIGTERM)
        assert shell.stdout.readline().startswith("open: ")
        assert shell.stdout.readline() == "stopped; nothing was under way\n"
        assert session.read_text(encoding="ascii").endswith(" nice 0\n")
        shell.stdin.close()


def test_a_second_service_and_a_port_in_use_are_refused_in_one_line(tmp_path, capsys, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken, ExitStack() as locked:
        port = str(taken.getsockname()[1])
        serve = ["cclsearch", "serve", "--store", str(tmp_path), "--port", port]
        monkeypatch.setattr("sys.argv", serve)
        for words in (f"port {port}: Address already in use; give another with --port", "another"):
            with pytest.raises(SystemExit) as left:
                main()
            said = capsys.readouterr().err
            assert (left.value.code, said.count("\n")) == (4, 1)
            assert words in said
            if words != "another":  # now the store is taken, too
                locked.enter_context(lock_store(tmp_path))
