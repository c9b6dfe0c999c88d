"""The program of a Ray job: takes a node for each agent, starts them there, and reports in lines.

It travels to the cluster as this one file, so it imports the standard library and Ray only, and
Ray only where it runs.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PROGRAM, REQUEST = "ray_job.py", "request.json"
POLL_S = 5.0
WORDS_BYTES = 400
PR_SET_PDEATHSIG = 1


def main() -> None:
    """Hold the nodes until the agents have ended, one has failed, or the time is over."""
    import ray
    from ray.util.placement_group import placement_group, placement_group_table

    request = json.loads(Path(REQUEST).read_text(encoding="utf-8"))
    ray.init(log_to_driver=False)
    count, amounts = request["node_count"], request["resources"]
    excluded = [node["NodeID"] for node in ray.nodes() if _names(node) & set(request["exclude"])]
    selector = {"ray.io/node-id": f"!in({','.join(excluded)})"} if excluded else {}
    group = placement_group(
        [amounts] * count, strategy="STRICT_SPREAD", bundle_label_selector=[selector] * count
    )
    while not ray.wait([group.ready()], timeout=POLL_S)[0]:
        alive = sum(node["Alive"] for node in ray.nodes())
        report(waiting=f"{count} nodes with {amounts} each are not free; {alive} nodes are alive")
    bundles = placement_group_table(group)["bundles_to_node_id"]
    nodes = _named([bundles[index] for index in range(count)], ray.nodes())
    limit_s = request["time_limit_s"]
    ends_s = None if limit_s is None else time.time() + limit_s
    report(nodes=nodes, ends_s=ends_s)
    variables = [f"{name}={value}" for name, value in request["environment"].items()]
    agents = {}
    for index, node in enumerate(nodes):
        command = ("/usr/bin/env", f"CCLSEARCH_NODE={node}", *variables, *request["command"])
        agents[_start(group, index, amounts, command)] = node
    kind, words, where = _outcome(agents, ends_s)
    report(nodes=nodes, gone=kind, words=words, node=where)


def _start(group: Any, index: int, amounts: Mapping[str, float], command: Sequence[str]) -> Any:
    """Start an agent in a bundle, with all that the bundle holds."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    others = {name: amount for name, amount in amounts.items() if name not in ("CPU", "GPU")}
    task = ray.remote(
        max_retries=0,
        num_cpus=amounts.get("CPU", 0),
        num_gpus=amounts.get("GPU", 0),
        resources=others,
        scheduling_strategy=PlacementGroupSchedulingStrategy(
            placement_group=group, placement_group_bundle_index=index
        ),
    )(run_agent)
    return task.remote(command)


def _outcome(agents: Mapping[Any, str], ends_s: float | None) -> tuple[str, str, str | None]:
    """Wait until all agents have ended or one has failed; return how, in whose words, and where."""
    import ray

    running = list(agents)
    while running:
        left_s = None if ends_s is None else max(0.0, ends_s - time.time())
        ended, running = ray.wait(running, timeout=left_s)
        if not ended:
            return "time_limit", "the time limit of the request is over", None
        node = agents[ended[0]]
        try:
            status, words = ray.get(ended[0])
        except ray.exceptions.OutOfMemoryError as error:
            return "out_of_memory", f"{node}: {error}", node
        except ray.exceptions.RayError as error:
            return "node_failed", f"{node}: {error}", node
        if status:
            return "ended", f"agent on {node}: exit status {status}: {words}", node
    return "ended", "all agents have ended", None


def run_agent(command: Sequence[str]) -> tuple[int, str]:
    """Run the agent in a worker, and have it end with the worker; return its status and words."""
    for path in filter(Path.is_file, Path.cwd().iterdir()):
        path.chmod(0o600)

    def end_with_worker() -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    with tempfile.TemporaryFile() as words:
        agent = subprocess.Popen(command, stderr=words, preexec_fn=end_with_worker)
        status = agent.wait()
        words.seek(max(0, words.seek(0, os.SEEK_END) - WORDS_BYTES))
        return status, " ".join(words.read().decode(errors="replace").split())


def report(**state: object) -> None:
    """Print what is now true, for `last_report`."""
    sys.stdout.write(json.dumps({"cclsearch": state}) + "\n")
    sys.stdout.flush()


def last_report(printed: str) -> dict[str, Any]:
    """Return the last report in what a job printed; empty where there is none."""
    for line in reversed(printed.splitlines()):
        if line.startswith('{"cclsearch": '):
            return dict(json.loads(line)["cclsearch"])
    return {}


def _named(node_ids: Sequence[str], known: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the hosts' names, or the names that Ray gives nodes where one host has several."""
    nodes = {node["NodeID"]: node for node in known}
    hosts = [str(nodes[node_id]["NodeManagerHostname"]) for node_id in node_ids]
    every_host = [node["NodeManagerHostname"] for node in known if node["Alive"]]
    if len(set(every_host)) == len(every_host):
        return hosts
    return [str(nodes[node_id]["NodeName"]) for node_id in node_ids]


def _names(node: Mapping[str, Any]) -> set[str]:
    return {node["NodeName"], node["NodeManagerHostname"], node["NodeManagerAddress"]}


if __name__ == "__main__":
    main()
