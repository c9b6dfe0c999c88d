"""What a process of the service runs: the search of one study, as `cclsearch resume --json` does.

python -P -m search.commands.searching STORE STUDY
"""

import os
import sys
from pathlib import Path

from records.errors import CclsearchError, StoreBusy
from search.commands.conduct import go_on
from search.errors import Interrupted
from search.service.runs.process import LOCK, REFUSAL, run_folder


def main(store: Path, study_id: str) -> None:
    """Search a study to its end, and leave the reason where it cannot be searched."""
    folder = run_folder(store, study_id)
    (folder / LOCK).write_text(str(os.getpid()), encoding="ascii")
    try:
        go_on(study_id, None, store, as_json=True)
    except (Interrupted, StoreBusy):
        pass  # what comes of it is told by the record, and by whoever searches it by hand
    except (CclsearchError, OSError) as error:
        words = str(error) or type(error).__name__
        (folder / REFUSAL).write_text(words.splitlines()[0], encoding="utf-8", errors="replace")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
