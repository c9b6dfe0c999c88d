"""`cclsearch doctor` on this machine, and on machines that lack something."""

import json

import pytest
from typer.testing import CliRunner

from evaluator.doctor import CheckResult, State
from records.store.locks import file_system
from search import doctor
from search.cli import store
from search.cli.main import app

MOUNTS = """\
/dev/vda1 / ext4 rw 0 0
tmpfs /{root}/ram tmpfs rw 0 0
server:/home /{root}/net nfs4 rw 0 0
"""


def fake(state, *, needed, subject="thing"):
    return CheckResult(subject=subject, state=state, detail="told", remedy="do this", needed=needed)


def run(*arguments):
    return CliRunner().invoke(app, ["doctor", *arguments])


def test_on_this_machine_a_search_can_run(tmp_path):
    ended = run("--json", "--store", str(tmp_path / "store"))
    told = json.loads(ended.stdout)
    states = {finding["subject"]: finding["state"] for finding in told["findings"]}
    assert ended.exit_code == 0
    assert told["can_run"] is True
    assert states["launch, gloo"] == states["sandbox"] == states["torch"] == "ok"
    assert "noise" in states
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("state", "needed", "code"),
    [
        (State.OK, True, 0),
        (State.WARN, True, 0),
        (State.MISSING, False, 0),
        (State.MISSING, True, 4),
    ],
)
def test_the_exit_code_says_whether_a_search_can_run(state, needed, code, monkeypatch):
    monkeypatch.setattr(doctor, "findings", lambda *_, **__: [fake(state, needed=needed)])
    ended = run()
    assert ended.exit_code == code
    assert "do this" in ended.stdout
    assert ("cannot run here: thing" in ended.stdout) == (code == 4)


@pytest.mark.parametrize(
    ("lacks_torch", "asked", "other", "command"),
    [
        (False, (), None, "run --objective step_time"),
        (
            False,
            ("--python", "/job/python"),
            None,
            "run --objective step_time --python /job/python",
        ),
        (True, (), "/usr/bin/python3", "run --objective step_time --python /usr/bin/python3"),
        (True, (), None, "init train.py"),
    ],
)
def test_the_next_command_is_one_that_can_run_here(lacks_torch, asked, other, command, monkeypatch):
    torch = fake(State.MISSING if lacks_torch else State.OK, needed=False, subject="torch")
    monkeypatch.setattr(doctor, "findings", lambda *_, **__: [torch])
    monkeypatch.setattr(store, "python_with_torch", lambda: other)

    ended = run(*asked)

    assert ended.exit_code == 0
    assert ended.stdout.splitlines()[-1] == f"next: cclsearch {command}"


@pytest.mark.parametrize(("key", "state"), [("sk-very-secret", State.OK), ("", State.WARN)])
def test_without_a_key_a_search_still_runs_and_the_key_is_never_shown(monkeypatch, key, state):
    monkeypatch.setenv("ANTHROPIC_API_KEY", key)
    found = doctor.api_key()
    assert (found.state, found.needed, "secret" in repr(found)) == (state, False, False)


def test_a_store_in_a_file_cannot_be_kept(tmp_path):
    (tmp_path / "file").write_text("")
    found = doctor.store_folder(tmp_path / "file" / "store")
    assert (found.state, found.needed) == (State.MISSING, True)


def test_the_file_system_is_that_of_the_nearest_mount(tmp_path):
    root = str(tmp_path).lstrip("/")
    (tmp_path / "mounts").write_text(MOUNTS.format(root=root))
    (tmp_path / "ram" / "deep").mkdir(parents=True)
    kinds = [
        file_system(tmp_path / name, tmp_path / "mounts")
        for name in ("", "ram/deep", "net/store", "network")
    ]
    assert kinds == ["ext4", "tmpfs", "nfs4", "ext4"]
