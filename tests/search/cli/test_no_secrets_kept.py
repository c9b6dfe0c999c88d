"""A whole search by somebody with secrets, over a script and a model that repeat them."""

import json
import os
import subprocess
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from records.store.store import Store
from records.trial import Failed
from tests.support.records import contents
from tests.support.search import ScriptedMessagesServer, submission
from tests.support.service import run_cclsearch

KEY = "sk-ant-0123456789-not-a-real-key"
PASSWORD = 'pa"ss\\word/4711'
CERTIFICATE = "line one of a secret\nline two of a secret"
STRANGER = f"hf_{'Ab3' * 12}"
"""A token that is in nobody's environment."""
STUDY = """
name = "mine"

[workload]
name = "mine"
global_batch = 8
sequence_length = 16

[environment]
device = "cpu"
world_size = 2
ranks_per_node = 2

[launch]
recipe = "command"

[command]
run = ["bash", "tools/run.sh"]
rank_count = "1"
environment = { DATA = "HOME/data:/usr/share" }

[space.size]
choices = [1, 2, 3]

[measure]
self_test_rounds = 0
race_rounds = 0
confirm_top = 0
confirm_rounds = 0
infrastructure_retries = 0
profiled_steps = 0

[budget]
trials = 2
"""
# It prints all that it can see, the environment of the search above it too, and then fails.
SCRIPT = r"""
set -e
env; cat "$HOME/password" "$HOME/certificate" "$HOME/token"; ls -d "$DATA" || true
process=$$
while [ "$process" -gt 1 ]; do
  tr '\0' '\n' < "/proc/$process/environ"
  if grep -qz ANTHROPIC_API_KEY "/proc/$process/environ"; then break; fi
  process=$(awk '$1 == "PPid:" { print $2 }' "/proc/$process/status")
done
cp "$HOME/as.json" "$TRACE_DIR/seen.jsonl"
test "$SIZE" = 1 || { echo "ValueError: no $(cat "$HOME/token") in $HOME/x"; exit 1; }
printf '{"step_times_s": [[0.1, 0.1, 0.1, 0.1, 0.1]], "losses": [1.0]}' > "$TRACE_DIR/steps.json"
"""
POLICY = (
    f"# {KEY} {PASSWORD}\ndef generate_config(workload, environment):\n    return {{'size': 2}}\n"
)


@dataclass(frozen=True)
class Home:
    """The home of somebody who searches there."""

    path: Path
    model_url: str

    def run(self, *arguments):
        return run_cclsearch(
            self.path,
            *arguments,
            ANTHROPIC_API_KEY=KEY,
            ANTHROPIC_BASE_URL=self.model_url,
            DB_PASSWORD=PASSWORD,
            MY_SECRET=CERTIFICATE,
        )

    def kept(self):
        """Every file of the store as its content, and the name of each."""
        for path, content in contents(self.path / ".cclsearch"):
            yield path.name, content.decode(errors="replace")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    path = tmp_path_factory.mktemp("people") / "alice"
    (path / "tools").mkdir(parents=True)
    for name, text in {
        "study.toml": STUDY.replace("HOME", str(path)),
        "tools/run.sh": SCRIPT,
        "password": f"{PASSWORD}\n",
        "certificate": f"{CERTIFICATE}\n",
        "token": STRANGER,
        "as.json": json.dumps({"password": PASSWORD, "path": f"{path}/x", "token": STRANGER}),
    }.items():
        (path / name).write_text(text, encoding="utf-8")
    with ScriptedMessagesServer(
        lambda _: submission(POLICY, rationale=f"the key is {KEY}")
    ) as model:
        place = Home(path, model.url)
        ended = place.run("run", "-c", "study.toml", "--strategy", "llm")
        assert (ended.returncode, ended.stderr) == (0, "")
        yield place


def test_no_secret_is_in_any_file_of_the_store(home):
    escaped = json.dumps(PASSWORD)[1:-1]
    twice = json.dumps(escaped)[1:-1]
    secrets = (KEY, PASSWORD, escaped, twice, *CERTIFICATE.splitlines(), STRANGER)
    kept = list(home.kept())

    assert [(name, each) for name, text in kept for each in secrets if each in text] == []
    seen = [text for _, text in kept if "ANTHROPIC_API_KEY=***" in text]
    assert seen
    assert all("DB_PASSWORD=***" in text and "DATA=~/data:/usr/share" in text for text in seen)


def test_no_path_of_the_home_is_in_any_file_of_the_store(home):
    assert [name for name, text in home.kept() if str(home.path) in text] == []


def test_the_study_still_runs_its_script_from_wherever_the_home_is(home):
    with closing(Store(home.path / ".cclsearch")) as store:
        row = store.studies()[0]
        first, second = store.history(row.id).trials

    assert row.study.command.run == ("bash", "~/tools/run.sh")
    assert list(row.study.command.file_digests) == ["~/tools/run.sh"]
    assert first.outcome.launched.argv == ("bash", "~/tools/run.sh")
    assert first.score.value == 0.1
    assert isinstance(second.outcome, Failed)
    assert second.outcome.message == "the command ended with status 1: ValueError: no *** in ~/x"
    assert second.outcome.launched.ranks[0].first_error == "ValueError: no *** in ~/x"


def test_what_the_model_said_is_kept_but_for_secrets(home):
    with closing(Store(home.path / ".cclsearch")) as store:
        row = store.studies()[0]
        second = store.history(row.id).trials[1]
        exchange = store.exchange(second.exchange)

    assert second.policy.source == POLICY.replace(KEY, "[key]").replace(PASSWORD, "***")
    assert "the key is [key]" in second.policy.rationale
    assert "# [key] ***" in exchange.reply


def test_a_search_with_secrets_is_replayed_exactly(home):
    ended = home.run("replay")

    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_script_of_a_trial_runs_it_again(home, tmp_path):
    written = home.run("trial", "script", "0", "-o", str(tmp_path / "again.sh"))
    assert (written.returncode, written.stderr) == (0, "")

    ended = subprocess.run(
        ["sh", "again.sh", "here"],
        cwd=tmp_path,
        env={"PATH": os.defpath, "HOME": str(home.path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0
    assert f"DATA={home.path}/data:/usr/share" in ended.stdout
    assert (tmp_path / "here" / "trace" / "steps.json").is_file()
