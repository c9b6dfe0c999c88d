"""Asks aiconfigurator how long requests take at each of several settings of a server.

Run by a Python that has it, or to find that it has not. A request comes on standard input, the
answer is the last line printed: `absent`, or the version and an answer for each point.
"""

import importlib.util
import json
import sys
from importlib.metadata import version


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    if importlib.util.find_spec("aiconfigurator") is None:
        answer = {"absent": True}
    else:
        points, backends = [], set()
        for point in request["points"]:
            points.append(answer_of(point, request["common"], backends))
            if points[-1].get("error"):
                break  # a fault of the model or the system, which the others have as well
        answer = {
            "version": version("aiconfigurator"),
            "backend_version": ", ".join(sorted(backends)),
            "points": points,
        }
    sys.stdout.write(f"\n{json.dumps(answer)}\n")


def answer_of(point, common, backends):
    """Return the milliseconds to a first token and to each further one, or why there are none."""
    from aiconfigurator.cli.api import cli_estimate

    try:
        found = cli_estimate(**common, **point)
    except Exception as error:  # noqa: BLE001 - it raises anything
        words = " ".join(str(error).split())
        if words.startswith("OOM"):
            return {"fits": False}
        return {"error": f"{type(error).__name__}: {words}"[:300]}
    backends.add(str(found.backend_version))
    return {"ttft_ms": float(found.ttft), "tpot_ms": float(found.tpot)}


if __name__ == "__main__":
    main()
