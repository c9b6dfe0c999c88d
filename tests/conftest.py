"""What tests of all parts share."""

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Tests interrupt processes of their own. Where this one was started in the background it ignores
# these signals, and they would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Test workers share the cores: more library threads would only compete for them.
for library in ("OMP", "OPENBLAS"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")  # noqa: TID251 - before they are loaded

# A deadline, or a limit on drawing, would time the machine, not the code. Where CI is set,
# hypothesis draws the same examples every time. Half as many as usual keep the tests short;
# "thorough" draws 20 times more. All examples of a test share its fixtures.
settings.register_profile(
    "untimed",
    parent=settings(),
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("thorough", parent=settings.get_profile("untimed"), max_examples=1000)
settings.load_profile("untimed")

RAM_DISK = Path("/dev/shm")
RAM_DISK_BYTES = 4 << 30


def ram_disk_suits() -> bool:
    """Whether all temporary folders fit on the RAM disk, and programs may run from there."""
    return (
        os.access(RAM_DISK, os.W_OK | os.X_OK)
        and f" {RAM_DISK} tmpfs " in Path("/proc/mounts").read_text(encoding="utf-8")
        and not os.statvfs(RAM_DISK).f_flag & os.ST_NOEXEC
        and shutil.disk_usage(RAM_DISK).free >= RAM_DISK_BYTES
    )


# A store waits for its disk after every write, and a disk takes milliseconds. A folder that the
# caller chose, by TMPDIR or --basetemp, stays.
if tempfile.gettempdir() == "/tmp" and ram_disk_suits():
    tempfile.tempdir = str(RAM_DISK)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looking for garbage: nothing that is imported or collected is any."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


RECORDED = Path(__file__).parents[1].parent / "shared" / "data"


@pytest.fixture(scope="session")
def recorded_data() -> Path:
    """Public traces and recorded searches, kept beside the checkout because they are not ours."""
    if not RECORDED.is_dir():
        pytest.skip(f"needs the recorded data in {RECORDED}, which is not part of the project")
    return RECORDED
