"""A study in one file: what another machine gets of it, and what stops it from being written."""

import json
import re

from records.store.artifacts import Artifacts
from records.store.store import Store


def bundled(recorded, cclsearch, tmp_path, *options, name="a.cclsearch"):
    path = tmp_path / name
    ended = cclsearch(
        *("export", "--format", "bundle", "-o", path, "--store", recorded.root, *options)
    )
    assert (ended.code, ended.err) == (0, "")
    return path


def shown(cclsearch, root, *command):
    """What a command tells of a store, wherever its files lie and its study comes from."""
    text = cclsearch(*command, "--json", "--store", root).out
    text = re.sub(r'"origin": \{"kind": "bundle".*?\]\}', '"origin": null', text)
    return text.replace(str(root), "STORE").replace(".zst", "")


def digests(root, trial):
    """The digests of a trial's files, read through."""
    artifacts = Artifacts(root / "artifacts")
    for artifact in trial.outcome.artifacts:
        artifacts.read(artifact.digest)
    return [artifact.digest for artifact in trial.outcome.artifacts]


def test_another_store_gets_the_very_records(recorded_study, records_of, cclsearch, tmp_path):
    recorded = recorded_study()
    path, other = bundled(recorded, cclsearch, tmp_path), tmp_path / "other"
    assert cclsearch("import", path, "--store", other).code == 0
    assert records_of(other) == records_of(recorded.root)
    one = recorded.id
    trials = ("trial", "show", one, 0), ("trial", "show", one, 1)
    for command in (("show", one), *trials, ("replay", one), ("list",)):
        assert shown(cclsearch, other, *command) == shown(cclsearch, recorded.root, *command)
    for trial in recorded.trials:
        assert digests(other, trial) == digests(recorded.root, trial)
    assert cclsearch("trace", "breakdown", f"trial:{recorded.id}:0", "--store", other).code == 0


def test_a_conversation_comes_along(recorded_study, cclsearch, tmp_path):
    recorded = recorded_study()
    path, other = bundled(recorded, cclsearch, tmp_path), tmp_path / "other"
    cclsearch("import", path, "--store", other)
    told = json.loads(cclsearch("trial", "show", recorded.id, 1, "--json", "--store", other).out)
    assert told["exchange"]["reply"] == '["me"]'


def test_the_same_records_make_the_same_bytes(recorded_study, cclsearch, tmp_path):
    recorded = recorded_study()
    first = bundled(recorded, cclsearch, tmp_path)
    other = tmp_path / "other"
    cclsearch("import", first, "--store", other)
    second = tmp_path / "b.cclsearch"
    cclsearch("export", recorded.id, "--format", "bundle", "-o", second, "--store", other)
    assert first.read_bytes() == second.read_bytes()


def test_the_same_study_is_recorded_once(recorded_study, cclsearch, tmp_path):
    recorded = recorded_study()
    path = bundled(recorded, cclsearch, tmp_path)
    ended = cclsearch("import", path, "--store", recorded.root)
    assert (ended.code, "skipped" in ended.out) == (0, True)


def test_a_study_of_that_id_with_other_content_is_left_alone(
    recorded_study, records_of, cclsearch, tmp_path
):
    recorded = recorded_study()
    path = bundled(recorded, cclsearch, tmp_path)
    other = recorded_study("other", policy="# another\n")
    before = records_of(other.root)
    ended = cclsearch("import", path, "--store", other.root)
    assert ended.code == 2
    assert f"study {recorded.id} is recorded with other content" in ended.err
    assert records_of(other.root) == before


def test_a_missing_file_is_named_and_may_be_left_out(recorded_study, cclsearch, tmp_path):
    recorded = recorded_study()
    digest = recorded.trials[0].outcome.artifacts[0].digest
    Artifacts(recorded.root / "artifacts").path(digest).unlink()
    path = tmp_path / "a.cclsearch"
    command = ("export", "--format", "bundle", "-o", path, "--store", recorded.root)
    ended = cclsearch(*command)
    assert (ended.code, path.exists()) == (4, False)
    assert digest in ended.err and "--allow-missing" in ended.err
    ended = cclsearch(*command, "--allow-missing")
    assert (ended.code, "missing and left out: 1 files" in ended.out) == (0, True)
    assert cclsearch("import", path, "--store", tmp_path / "other").code == 0


def test_an_altered_file_is_never_exported(recorded_study, cclsearch, tmp_path):
    recorded = recorded_study()
    artifact = recorded.trials[0].outcome.artifacts[1]
    Artifacts(recorded.root / "artifacts").path(artifact.digest).write_bytes(b"{}")
    path = tmp_path / "a.cclsearch"
    command = ("export", "--format", "bundle", "-o", path, "--store", recorded.root)
    ended = cclsearch(*command, "--allow-missing")
    assert (ended.code, path.exists()) == (4, False)
    assert "changed since it was recorded" in ended.err
    assert len(ended.err.splitlines()) == 1


def test_without_traces_the_rest_is_there(recorded_study, cclsearch, tmp_path):
    recorded = recorded_study()
    path = bundled(recorded, cclsearch, tmp_path, "--no-traces")
    other = tmp_path / "other"
    cclsearch("import", path, "--store", other)
    store = Store(other)
    names = [artifact.name for artifact in store.history(recorded.id).trials[0].outcome.artifacts]
    store.close()
    assert names == ["rank0.log"]


def test_metrics_only_holds_no_file_and_no_policy(recorded_study, cclsearch, tmp_path):
    recorded = recorded_study()
    path = bundled(recorded, cclsearch, tmp_path, "--metrics-only")
    other = tmp_path / "other"
    cclsearch("import", path, "--store", other)
    store = Store(other)
    first, second = store.history(recorded.id).trials
    store.close()
    assert first.outcome.metric("step_time") == 0.25
    assert not list((other / "artifacts").glob("??/*"))
    assert "# tp=2" not in first.policy.source
    assert first.policy.digest != second.policy.digest


def test_a_bundle_of_one_trial_is_refused(recorded_study, cclsearch, tmp_path):
    root = recorded_study().root
    ended = cclsearch(
        *("export", "--format", "bundle", "--trial", 0, "-o", tmp_path / "x", "--store", root)
    )
    assert (ended.code, "leave --trial out" in ended.err) == (2, True)
