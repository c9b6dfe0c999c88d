"""A study in one file: what another machine gets of it, and what stops it from being written."""

import json
import re
from contextlib import closing

import pytest

from records.store.artifacts import Artifacts
from records.store.store import Store


@pytest.fixture
def carried(export, cclsearch, tmp_path):
    """Imports a bundle of the study, exported with these options; gives the other store."""

    def run(*options):
        ended, path = export("bundle", *options)
        assert (ended.code, ended.err) == (0, "")
        assert cclsearch("import", path, "--store", tmp_path / "other").code == 0
        return tmp_path / "other"

    return run


def shown(cclsearch, root, *command):
    """What a command tells of a store, wherever its files lie and its study comes from."""
    text = cclsearch(*command, "--json", "--store", root).out
    text = re.sub(r'"origin": \{"kind": "bundle".*?\]\}', '"origin": null', text)
    return text.replace(str(root), "STORE").replace(".zst", "")


def test_another_store_gets_the_very_records(recorded, carried, records_of, cclsearch):
    one, other = recorded.id, carried()
    assert records_of(other) == records_of(recorded.root)
    trials = ("trial", "show", one, 0), ("trial", "show", one, 1)
    for command in (("show", one), *trials, ("replay", one), ("list",)):
        assert shown(cclsearch, other, *command) == shown(cclsearch, recorded.root, *command)
    for artifact in (a for trial in recorded.trials for a in trial.outcome.artifacts):
        Artifacts(other / "artifacts").read(artifact.digest)
    assert cclsearch("trace", "breakdown", f"trial:{one}:0", "--store", other).code == 0
    told = json.loads(cclsearch("trial", "show", one, 1, "--json", "--store", other).out)
    assert told["exchange"]["reply"] == '["me"]'


def test_the_same_records_make_the_same_bytes_and_are_recorded_once(
    recorded, carried, cclsearch, tmp_path
):
    other, second = carried(), tmp_path / "b.cclsearch"
    cclsearch("export", recorded.id, "--format", "bundle", "-o", second, "--store", other)
    assert (tmp_path / "out").read_bytes() == second.read_bytes()
    ended = cclsearch("import", second, "--store", recorded.root)
    assert (ended.code, "skipped" in ended.out) == (0, True)


def test_a_study_of_that_id_with_other_content_is_left_alone(
    recorded, recorded_study, export, records_of, cclsearch
):
    _, path = export("bundle")
    other = recorded_study("other", policy="# another\n")
    before = records_of(other.root)
    ended = cclsearch("import", path, "--store", other.root)
    assert ended.code == 2
    assert f"study {recorded.id} is recorded with other content" in ended.err
    assert records_of(other.root) == before


def test_a_missing_file_is_named_and_may_be_left_out(recorded, export, carried):
    digest = recorded.trials[0].outcome.artifacts[0].digest
    Artifacts(recorded.root / "artifacts").path(digest).unlink()
    ended, path = export("bundle")
    assert (ended.code, path.exists()) == (4, False)
    assert digest in ended.err and "--allow-missing" in ended.err
    carried("--allow-missing")
    assert "missing and left out: 1 files" in export("bundle", "--allow-missing", "--force")[0].out


def test_an_altered_file_is_never_exported(recorded, export):
    artifact = recorded.trials[0].outcome.artifacts[1]
    Artifacts(recorded.root / "artifacts").path(artifact.digest).write_bytes(b"{}")
    ended, path = export("bundle", "--allow-missing")
    assert (ended.code, path.exists(), len(ended.err.splitlines())) == (4, False, 1)
    assert "changed since it was recorded" in ended.err


def test_without_traces_the_rest_is_there(recorded, carried):
    with closing(Store(carried("--no-traces"))) as store:
        files = store.history(recorded.id).trials[0].outcome.artifacts
    assert [artifact.name for artifact in files] == ["rank0.log"]


def test_metrics_only_holds_no_file_and_no_policy(recorded, carried):
    with closing(Store(carried("--metrics-only"))) as store:
        first, second = store.history(recorded.id).trials
        assert not list((store.root / "artifacts").glob("??/*"))
    assert first.outcome.metric("step_time") == 0.25
    assert "# tp=2" not in first.policy.source
    assert first.policy.digest != second.policy.digest


def test_a_bundle_of_one_trial_is_refused(export):
    ended, _ = export("bundle", "--trial", 0)
    assert (ended.code, "leave --trial out" in ended.err) == (2, True)
