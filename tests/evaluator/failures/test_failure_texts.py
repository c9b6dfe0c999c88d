import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.failures.logs import RULES, meaning, memory_asked, read_log
from records.trial import FailureKind

DEVICE, HOST = "device memory ran out", "host memory ran out"
MEMORY = [
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total "
        "capacity of 79.11 GiB of which 1.12 GiB is free.",
        DEVICE,
        "2.50 GiB",
    ),
    ("RuntimeError: HIP out of memory. Tried to allocate 96.00 MiB", DEVICE, "96.00 MiB"),
    ("RuntimeError: CUDA error: out of memory", DEVICE, None),
    (
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`",
        DEVICE,
        None,
    ),
    ("nid1:42:99 [1] transport/p2p.cc:262 NCCL WARN Cuda failure 2 'out of memory'", DEVICE, None),
    (
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to "
        "allocate 8589934592 bytes.",
        DEVICE,
        "8 GiB",
    ),
    (
        "ValueError: No available memory for the cache blocks. Try to increase the share",
        DEVICE,
        None,
    ),
    (
        "ValueError: Free memory on device (3.2/39.5 GiB) on startup is less than desired GPU "
        "memory utilization (0.9, 35.6 GiB).",
        DEVICE,
        None,
    ),
    (
        "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens "
        "that can be stored in KV cache (9216).",
        DEVICE,
        None,
    ),
    (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't "
        "allocate memory: you tried to allocate 1073741824 bytes. Error code 12",
        HOST,
        "1 GiB",
    ),
    ("terminate called after throwing an instance of 'std::bad_alloc'", HOST, None),
    ("MemoryError", HOST, None),
    (
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 12.0 GiB for an array with "
        "shape (3, 536870912)",
        HOST,
        "12.0 GiB",
    ),
    ("OSError: [Errno 12] Cannot allocate memory", HOST, None),
    ("Out of memory: Killed process 4242 (python) total-vm:91234kB, anon-rss:8123kB", HOST, None),
    (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=17.0. Some of it was killed",
        HOST,
        None,
    ),
    ("srun: error: nid001: task 2: Out Of Memory", "memory ran out", None),
    ("State: Terminated, Reason: OOMKilled, Exit Code: 137", HOST, None),
    ("slurmstepd: error: Exceeded job memory limit at some point.", HOST, None),
]
OTHERS = {
    "invalid_config": [
        "AssertionError: num_attention_heads (30) must be divisible by 4",
        "AssertionError: global batch size 24 is not divisible by 16",
        "AssertionError: world size (6) is not divisible by 4",
        "ValueError: Total number of attention heads (28) must be divisible by tensor parallel "
        "size (8).",
        "AssertionError: Invalid parallel dims: dp_replicate(1) * tp(3) != WORLD_SIZE(4)",
        "pretrain_gpt.py: error: unrecognized arguments: --moe-layer 3",
        "train.py: error: argument --tp: invalid choice: 3 (choose from 1, 2)",
        "train.py: error: the following arguments are required: --seq-length",
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for EngineArgs",
        "RuntimeError: CUDA error: invalid device ordinal",
        "NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000",
        "RuntimeError: Mesh should not be bigger than default world size 4, but found 8",
        "ValueError: World size (8) is larger than the number of available GPUs (4)",
        "srun: error: Unable to allocate resources: Requested node configuration is not available",
        "JobError: job.json: job: config must be an object, got 3",
    ],
    "infrastructure": [
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: Found no NVIDIA driver on your system.",
        "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.",
        "OSError: [Errno 98] Address already in use",
        "torch.distributed.DistNetworkError: port: 29500, EADDRINUSE",
        "OSError: [Errno 28] No space left on device: 'checkpoint.pt'",
        "OSError: [Errno 122] Disk quota exceeded",
        "RuntimeError: unable to open shared memory object: Too many open files (24)",
        "RuntimeError: can't start new thread",
        "slurmstepd: error: *** STEP 9.0 ON nid1 CANCELLED AT 2026-01-01 DUE TO TIME LIMIT ***",
        "slurmstepd: error: *** JOB 9 ON nid1 CANCELLED AT 2026-01-01 DUE TO PREEMPTION ***",
        "srun: error: Unable to create step for job 9: Job/step already completing",
        "srun: error: Node failure on nid004",
        "srun: error: Unable to contact slurm controller (connect failure)",
        "The node was low on resource: ephemeral-storage.",
        "socket.gaierror: [Errno -3] Temporary failure in name resolution",
        "OSError: [Errno 101] Network is unreachable",
        "nid1:7:7 [0] misc/socket.cc:484 NCCL WARN Bootstrap : no socket interface found",
        "RuntimeError: Unable to find address for: eth7",
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
        "OSError: We couldn't connect to 'https://huggingface.co' to load this file",
        "KeyboardInterrupt",
        "bash: line 1: 4711 Killed                  python train.py",
        "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:4",
        "torch.distributed.DistBackendError: NCCL error in: NCCL.cpp:3356, remote process "
        "exited or there was a network error, NCCL version 2.21.5",
        "BrokenPipeError: [Errno 32] Broken pipe",
    ],
    "hang": [
        "[E1] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, "
        "OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600021 milliseconds before timing out.",
        "RuntimeError: [gloo/unbound_buffer.cc:81] Timed out waiting 30000ms for recv operation",
        "RuntimeError: Rank 2 failed to pass monitoredBarrier in 30000 ms",
    ],
    "crash": [
        "Fatal Python error: Segmentation fault",
        "srun: error: nid001: task 3: Segmentation fault (core dumped)",
        "RuntimeError: CUDA error: device-side assert triggered",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "torch.distributed.DistBackendError: NCCL error: ncclInvalidUsage: This usually reflects",
        "  what():  op.preamble.length <= op.nbytes. 8 vs 4",
        "OSError: [Errno 27] File too large",
        "ModuleNotFoundError: No module named 'flash_attn'",
        "KeyError: 'model.layers.0.weight'",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "subprocess.CalledProcessError: Command '['torchrun']' returned non-zero exit status 1.",
        "srun: error: nid001: task 0: Exited with exit code 1",
    ],
    "policy_error": ["generate_config raised: KeyError 'world_size'"],
}
HARMLESS = [
    "step 3: loss 4.25, 12.5 GiB of memory in use",
    "W1026 12:00:00.1 1 torch/distributed/run.py:774] Address already in use, trying the next port",
    "[W1026 socket.cpp:426] [c10d] The server socket cannot be initialized on [::]:29500",
    "INFO 01-01 10:00:00 worker.py: retrying after Connection reset by peer",
    "/lib/x.py:3: UserWarning: the batch is not divisible by 4, padding",
    "nid1:7:7 [0] NCCL INFO Connected all rings",
    "",
]


@pytest.mark.parametrize(("text", "why", "asked"), MEMORY)
def test_memory_that_ran_out_is_known_by_its_text_and_how_much_was_asked_for(text, why, asked):
    found = read_log(text)

    assert found.kind is FailureKind.OUT_OF_MEMORY
    assert found.why == (f"{why}, {asked} asked for" if asked else why)


@pytest.mark.parametrize(
    ("kind", "text"), [(kind, x) for kind, texts in OTHERS.items() for x in texts]
)
def test_a_message_from_the_world_outside_has_its_kind(kind, text):
    assert read_log(text).kind == kind


@pytest.mark.parametrize("text", HARMLESS)
def test_a_line_of_a_job_that_runs_tells_of_no_failure(text):
    assert read_log(text) is None


@pytest.mark.parametrize(
    "text", ["Resource temporarily unavailable", "RuntimeError: can't start new thread"]
)
def test_a_thread_that_cannot_start_lacks_memory_only_under_a_limit_on_it(text):
    assert meaning(text, memory_limited=True).kind is FailureKind.OUT_OF_MEMORY
    assert meaning(text).kind is FailureKind.INFRASTRUCTURE


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("you tried to allocate 512 bytes", "512 B"),
        ("you tried to allocate 1536 bytes", "1.5 KiB"),
        ("you tried to allocate 4398046511104 bytes", "4 TiB"),
        ("CUDA out of memory", None),
    ],
)
def test_an_amount_of_memory_is_told_in_the_unit_it_is_read_in(text, asked):
    assert memory_asked(text) == asked


@given(text=st.sampled_from(RULES).flatmap(lambda rule: st.from_regex(rule.pattern)))
def test_no_text_that_a_rule_matches_is_passed_over(text):
    assert meaning(text) is not None


def test_every_rule_says_why():
    assert all(rule.why for rule in RULES)
