"""For tests and benchmarks: `cclsearch serve` as a process, and searches that take no torch."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Self

import httpx2

from records.errors import EnvironmentFault

CCLSEARCH = str(Path(sys.executable).with_name("cclsearch"))
LIMIT_S = 60
SEARCH_LIMIT_S = 240
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
run = ["bash", "run.sh"]
export = { dp = "DATA_PARALLEL" }
[space.dp]
choices = [1, 2]
[space.micro_batch]
choices = [1, 2, 4]
[measure]
self_test_rounds = 0
race_rounds = 0
confirm_top = 1
confirm_rounds = 1
max_confirm_rounds = 1
infrastructure_retries = 0
[budget]
trials = 3
patience = 9
"""
SCRIPT = r"""
while [ -e "$(dirname "$0")/hold" ]; do sleep 0.02; done
us=$(($(date +%s%N) / 1000))
for rank in $(seq 0 $((DATA_PARALLEL - 1))); do
  cat > "$TRACE_DIR/rank$rank.json" <<JSON
{"distributedInfo": {"rank": $rank, "world_size": $DATA_PARALLEL}, "traceEvents": [{
  "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1,
  "ts": $us, "dur": $((120000 / DATA_PARALLEL / MICRO_BATCH))
}]}
JSON
done
"""


def run_cclsearch(
    folder: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A command, ended, as somebody types it in a folder that is their home."""
    path = f"{Path(sys.executable).parent}:{os.defpath}"
    return subprocess.run(
        [CCLSEARCH, *arguments],
        cwd=folder,
        env={"PATH": path, "HOME": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=SEARCH_LIMIT_S,
        check=False,
    )


def configured(folder: Path, more: str = "") -> Path:
    """A configuration that offers a study whose launches wait while there is a file `hold`.

    `more` is what the environment says in addition to the study.
    """
    (folder / "run.sh").write_text(SCRIPT, encoding="utf-8")
    (folder / "study.toml").write_text(STUDY, encoding="utf-8")
    path = folder / "service.toml"
    path.write_text(f'[environment.mine]\nstudy = "study.toml"\n{more}', encoding="utf-8")
    return path


class Serving:
    """The service as a person starts it, and a client with the token of its link."""

    def __init__(self, folder: Path, port: int = 0, **environment: str) -> None:
        where = ["-c", str(folder / "service.toml"), "--store", str(folder / "store")]
        self._process = subprocess.Popen(
            [CCLSEARCH, "serve", "--port", str(port), *where],
            env={
                "PATH": os.defpath,
                "HOME": str(folder),
                "SERVICE_TOKEN": "not for searches",
                **environment,
            },
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # a killed service leaves its session at a lower priority
        )
        found = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=(\S+)", self._until_link())
        if found is None:
            raise EnvironmentFault("the service gave no link")
        self.link, self.port, self.token = found[0], int(found[1]), found[2]
        self.client = httpx2.Client(
            base_url=f"http://127.0.0.1:{self.port}/api/v1",
            headers={"authorization": f"Bearer {self.token}"},
            timeout=LIMIT_S,
            trust_env=False,
        )

    @property
    def process_id(self) -> int:
        """The number of its process."""
        return self._process.pid

    def _until_link(self) -> str:
        said = ""
        while "token=" not in said:
            line = self._said.readline()
            if not line:
                self._end()
                raise EnvironmentFault(f"the service ended: {said}")
            said += line
        return said

    @property
    def _said(self) -> IO[str]:
        if self._process.stdout is None:
            raise EnvironmentFault("the service has no output")
        return self._process.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End it as the kernel does when memory is short."""
        self.client.close()
        self._end()

    def _end(self) -> None:
        self.kill_only()
        self._process.wait(LIMIT_S)
        self._said.close()

    def kill_only(self) -> None:
        """Kill it from another thread, while somebody waits for an answer."""
        self._process.kill()

    def stop(self) -> tuple[int, str]:
        """End it as an operator does; gives the exit code and the last line that it says."""
        self._process.terminate()
        said = self._said.read()
        return self._process.wait(LIMIT_S), said.rstrip().rpartition("\n")[2]

    def submit(self, **asked: object) -> str:
        """Submit a study; gives its id."""
        asked = {"environment": "mine", "strategy": "random", **asked}
        answer = self.client.post("/studies", json=asked).raise_for_status()
        return str(answer.json()["id"])

    def events(self, study_id: str, after: str | None = None) -> Iterator[tuple[str, str]]:
        """The name and the id of each event, as they come."""
        headers = {} if after is None else {"last-event-id": after}
        with self.client.stream("GET", f"/studies/{study_id}/events", headers=headers) as answer:
            number = ""
            for line in answer.raise_for_status().iter_lines():
                name, _, value = line.partition(": ")
                if name == "id":
                    number = value
                elif name == "event":
                    yield value, number


def searching(store: Path) -> dict[str, list[int]]:
    """Processes that search a store, by study.

    What a search starts bears its command until it has one of its own: children do not count.
    """
    found: dict[str, list[int]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = _words(process)
            is_search = words[-3:-1] == ["search.cli.run", str(store)]
            if is_search and _words(_parent(process)) != words:
                found.setdefault(words[-1], []).append(int(process.name))
        except OSError:
            continue
    return found


def _words(process: Path) -> list[str]:
    return (process / "cmdline").read_text("utf-8", "replace").rstrip("\0").split("\0")


def _parent(process: Path) -> Path:
    """The process that started one; its own name is the only field that may hold spaces."""
    _, _, fields = (process / "stat").read_text("utf-8", "replace").rpartition(")")
    return process.with_name(fields.split()[1])
