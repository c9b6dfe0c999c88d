"""What a policy that gets round the import guard finds: a kernel that refuses.

Every attack starts from the real `os`, `ctypes` and interpreter internals, reached through a module
that a policy may import. So these tests hold without the guard: the boundary is the filter.
"""

import os
import select
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from policies.sandbox import Refusal, SandboxLimits, run_policy

SHORT = SandboxLimits(time_s=0.3)
AT_ONCE = SandboxLimits(time_s=0.1)
SMALL = SandboxLimits(time_s=5, memory_bytes=128 << 20)
REACH = textwrap.dedent(
    """\
    import random
    os = random._os
    sys = os.sys
    jail = sys.modules["__main__"]
    ctypes = jail.ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    builtin_importer = next(
        c for c in ().__class__.__base__.__subclasses__() if c.__name__ == "BuiltinImporter"
    )
    def generate_config(workload, environment):
        """
)


def outcome_of(body, limits=SHORT):
    source = f"{REACH}\n{textwrap.indent(textwrap.dedent(body), '    ')}\n"
    return run_policy(source, {"pid": os.getpid()}, {}, limits)


def refusal_of(body, limits=SHORT):
    outcome = outcome_of(body, limits)
    assert isinstance(outcome, Refusal), outcome
    return outcome.message


def test_the_attacks_do_reach_the_real_modules():
    body = "return {'os': os.__name__, 'ctypes': ctypes.__name__, 'libc': libc.abs(-3)}"
    assert outcome_of(body) == {"os": "os", "ctypes": "ctypes", "libc": 3}


ASKED_IN_PYTHON = (
    "os.open('/etc/passwd', os.O_RDONLY)",
    "os.open('/etc/passwd', os.O_PATH)",
    "os.open('/proc/self/environ', os.O_RDONLY)",
    "os.open(f'/proc/{workload[\"pid\"]}/mem', os.O_RDWR)",
    "os.open(f'/proc/{workload[\"pid\"]}/environ', os.O_RDONLY)",
    "os.open('/tmp/written', os.O_CREAT | os.O_WRONLY)",
    "os.listdir('/')",
    "os.stat('/etc/passwd')",
    "os.mkdir('/tmp/made')",
    "os.unlink('/tmp/removed')",
    "os.chdir('/tmp')",
    "os.read(0, 1)",
    "os.dup(1)",
    "os.close(1)",
    "os.pipe()",
    "os.memfd_create('code')",
    "os.fork()",
    "os.posix_spawn('/bin/true', ['true'], {})",
    "os.execv('/bin/true', ['true'])",
    "os.kill(workload['pid'], 0)",
    "os.kill(-1, 0)",
    "os.setuid(0)",
    "os.nice(-5)",
    "os.sched_setaffinity(0, {0})",
    "os.urandom(8)",
    "os.uname()",
    "jail.resource.getrlimit(jail.resource.RLIMIT_CPU)",
    "jail.signal.signal(jail.signal.SIGPROF, jail.signal.SIG_IGN)",
    "jail.builtins.open('/etc/passwd')",
)
ASKED_NATIVELY = (
    "socket(2, 1, 0)",
    "open(b'/etc/passwd', 0)",
    "creat(b'/tmp/written', 0o600)",
    "fork()",
    "execve(b'/bin/true', None, None)",
    "ptrace(16, workload['pid'], 0, 0)",
    "process_vm_writev(workload['pid'], None, 0, None, 0, 0)",
    "kill(workload['pid'], 0)",
    "unshare(0x10000000)",
    "mount(None, b'/tmp', None, 32, None)",
    "prctl(15, b'renamed', 0, 0, 0)",
    "personality(0)",
    "shmget(1, 4096, 0o1666)",
    "mprotect(ctypes.c_void_p(0), 4096, 5)",
    "mmap(None, 4096, 7, 0x22, -1, 0)",
    "dup2(1, 9)",
    "madvise(None, 4096, 100)",
    "eventfd(0, 0)",
    "inotify_init()",
    "pause()",
)


def test_the_kernel_refuses_what_python_can_ask():
    attempts = "".join(
        f"try:\n    {call}\nexcept Exception as error:\n"
        f"    found[{call!r}] = f'{{type(error).__name__}} {{error.errno}}'\n"
        for call in ASKED_IN_PYTHON
    )

    found = outcome_of(f"found = {{}}\n{attempts}return found")

    assert found == dict.fromkeys(ASKED_IN_PYTHON, "PermissionError 1")


def test_the_kernel_refuses_what_native_code_can_ask():
    answers = ", ".join(
        f"{call!r}: str((libc.{call}, ctypes.set_errno(0)))" for call in ASKED_NATIVELY
    )

    assert outcome_of(f"return {{{answers}}}") == dict.fromkeys(ASKED_NATIVELY, "(-1, 1)")


def test_a_shell_command_does_not_run(tmp_path):
    outcome_of(f"os.system('touch {tmp_path}/ran'); return {{}}")
    assert list(tmp_path.iterdir()) == []


def test_a_module_file_cannot_be_loaded():
    assert "No module named 'socket'" in refusal_of("jail.builtins.__import__('socket')")


def test_a_thread_cannot_be_started():
    body = "builtin_importer.load_module('_thread').start_new_thread(print, ())"
    assert "can't start new thread" in refusal_of(body)


@pytest.mark.parametrize("reading", ["time()", "monotonic()", "perf_counter()", "clock_gettime(5)"])
def test_the_clock_cannot_be_read(reading):
    outcome = outcome_of(f"return {{'now': builtin_importer.load_module('time').{reading}}}")
    assert isinstance(outcome, Refusal) or outcome == {"now": 0.0}


def test_a_timer_cannot_be_disarmed():
    body = "jail.signal.setitimer(jail.signal.ITIMER_PROF, 0)"
    assert "itimer_error: [Errno 1] Operation not permitted" in refusal_of(body)


def test_a_limit_cannot_be_raised():
    body = "jail.resource.setrlimit(jail.resource.RLIMIT_CPU, (9, 9))"
    assert "not allowed to raise maximum limit" in refusal_of(body)


def test_sleeping_is_refused():
    body = "builtin_importer.load_module('time').sleep(60)"
    assert "PermissionError" in refusal_of(body)


def test_no_variable_of_the_callers_environment_is_there(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-secret")
    assert outcome_of("return {'found': 'ANTHROPIC_API_KEY' in os.environ}") == {"found": False}
    assert outcome_of("return {name: '' for name in os.environ if name != 'LC_CTYPE'}") == {
        "PYTHONHASHSEED": "",
        "GLIBC_TUNABLES": "",
    }


def test_only_the_reply_and_the_null_device_are_open():
    body = """
    written = []
    for descriptor in range(256):
        try:
            os.write(descriptor, b"")
            written.append(descriptor)
        except OSError:
            pass
    return {"open": str(written)}
    """
    assert outcome_of(body) == {"open": "[1, 2]"}


@pytest.mark.parametrize(
    "forged",
    [
        "b'{'",
        "b'\\xff' * 1000",
        "b'ready\\n'",
        "b'[' * 60000",
        'b\'{"config": {"tp": 1}}\\n\'',
        'b\'{"config": {"tp": [1]}}\\n\'',
        "b'x' * 10_000_000",
    ],
)
def test_writing_over_the_reply_gives_no_configuration(forged):
    refusal_of(f"os.write(1, {forged}); return {{'tp': 2}}")


def test_a_forged_reply_is_worth_no_more_than_a_returned_dict():
    body = """os.write(1, b'{"config": {"tp": 1}}\\n'); os._exit(0)"""
    assert outcome_of(body) == {"tp": 1}


@pytest.mark.parametrize(
    "ending",
    ["os._exit(0)", "os._exit(3)", "raise SystemExit(0)", "os.abort()", "ctypes.string_at(0)"],
)
def test_a_policy_that_ends_its_process_is_refused(ending):
    refusal_of(ending)


def test_what_is_left_for_later_never_runs():
    body = """
    class Late:
        def __del__(self):
            os.write(1, b"late")
    builtin_importer.load_module("atexit").register(os.write, 1, b"late")
    sys.modules["late"] = Late()
    return {"tp": 1}
    """
    assert outcome_of(body) == {"tp": 1}


@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "while True: print('flood')",
        "class Mute(Exception):\n    def __str__(self):\n        while True: pass\nraise Mute",
        "class Endless(dict):\n    def items(self):\n        while True: pass\nreturn Endless(a=1)",
        "def stop(*_): pass\nsys.setprofile(stop)\nsys.settrace(stop)\nwhile True: pass",
    ],
)
def test_an_endless_policy_is_stopped_with_its_line(body):
    assert ": still running after 0.1 s of processor time; bound" in refusal_of(body, AT_ONCE)


@pytest.mark.parametrize(
    "body",
    [
        "return {'x': 9 ** 9 ** 9}",
        "import re\nreturn {'x': bool(re.match('(a+)+$', 'a' * 60 + 'b'))}",
    ],
)
def test_one_endless_operation_is_stopped(body):
    assert "still running after 0.1 s of processor time" in refusal_of(body, AT_ONCE)


def test_one_endless_operation_that_hears_no_signal_is_stopped():
    # On a machine so busy that it gets no processor time, the clock on the wall ends it.
    refusal = refusal_of("return {'x': sum(iter(int, 1))}", AT_ONCE)
    assert refusal.startswith(("still running after 0.1 s", "no result in time"))


def test_a_policy_cannot_outlast_the_clock_on_the_wall():
    limits = SandboxLimits(time_s=60, wall_time_s=1)
    assert refusal_of("while True: pass", limits) == (
        "no result in time; a policy may take 60 s of processor time and 1 s in all, so bound "
        "every loop and score fewer candidates"
    )


@pytest.mark.parametrize(
    "body",
    [
        "x = []\nwhile True: x.append('a' * 10_000_000)",
        "return {'x': 'a' * 10**12}",
        "return {'x': len([0] * 10**10)}",
        "return {'x': 1 << 10**11}",
        "return {'x': len({n: str(n) * 9999 for n in range(10**6)})}",
        "import copy\nx = [0]\nwhile True: x += x",
    ],
)
def test_a_policy_that_wants_too_much_memory_is_told(body):
    assert "MemoryError: the policy needs more memory than it has" in refusal_of(body, SMALL)


def test_endless_recursion_is_told():
    assert "RecursionError" in refusal_of("return generate_config(workload, environment)")
    body = "class R:\n    def __repr__(self): return repr(self)\nreturn {repr(R()): 1}"
    assert "RecursionError" in refusal_of(body)


def test_recursion_past_the_interpreters_own_guard_is_refused():
    refusal_of("sys.setrecursionlimit(10**9)\nf = lambda: f()\nreturn f()", SMALL)


@pytest.mark.parametrize(
    "body",
    [
        "class Mute(Exception):\n    def __str__(self): raise ValueError\nraise Mute",
        "class Mute(Exception):\n    def __str__(self): return 5\nraise Mute",
        "raise Exception('x' * 10**7)",
        "raise BaseExceptionGroup('many', [KeyboardInterrupt(), GeneratorExit()])",
        "raise KeyboardInterrupt",
        "class Keyed(dict):\n    __iter__ = items = keys = None\nreturn Keyed()['x']",
        "class Faker:\n    __class__ = dict\nreturn Faker()",
        "class Bad(str):\n    __class__ = property(lambda s: 1 / 0)\nreturn {'a': Bad()}",
        "jail.json.dumps = jail.config_fault = None\nreturn {'a': 1}",
        "sys.modules.clear()\njail.__dict__.clear()\nreturn {'a': 1}",
    ],
)
def test_a_strange_ending_is_one_printable_line(body):
    message = refusal_of(body)
    assert message.isprintable()
    assert 0 < len(message) < 1200


CALLER = """
from policies.sandbox import SandboxLimits, run_policy
source = "def generate_config(workload, environment):\\n    while True: pass\\n"
run_policy(source, {}, {}, SandboxLimits(time_s=600, wall_time_s=600))
"""


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_its_caller(ending):
    repository = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", CALLER], cwd=repository, stderr=subprocess.DEVNULL
    ) as caller:
        children = Path(f"/proc/{caller.pid}/task/{caller.pid}/children")
        while len(pids := children.read_text(encoding="ascii").split()) < 2:
            assert caller.poll() is None
        descriptors = [os.pidfd_open(int(pid)) for pid in pids]
        caller.send_signal(ending)
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], 60)[0] == [descriptor]
        os.close(descriptor)


def test_the_random_bytes_of_a_process_are_no_source_of_chance():
    body = """
        libc.getauxval.restype = ctypes.c_void_p
        words = (ctypes.c_ulong * 2).from_address(libc.getauxval(ctypes.c_ulong(25)))
        return {"first": words[0] % 2**62, "second": words[1] % 2**62}
    """
    assert outcome_of(body) == {"first": 0, "second": 0}
