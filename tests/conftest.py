"""What tests of all parts share."""

import signal
from pathlib import Path

import pytest
from hypothesis import settings

# Tests interrupt processes of their own. Where this one was started in the background it ignores
# these signals, and they would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A deadline would time the machine, not the code. The rest stays as hypothesis chose it: where CI
# is set it draws the same examples every time.
settings.register_profile("untimed", parent=settings(), deadline=None)
settings.register_profile("thorough", parent=settings.get_profile("untimed"), max_examples=1000)
settings.load_profile("untimed")

RECORDED = Path(__file__).parents[1].parent / "shared" / "data"


@pytest.fixture(scope="session")
def recorded_data() -> Path:
    """Public traces and recorded searches, kept beside the checkout because they are not ours."""
    if not RECORDED.is_dir():
        pytest.skip(f"needs the recorded data in {RECORDED}, which is not part of the project")
    return RECORDED
