"""What texts of failing jobs mean: one table from pattern to failure kind, and why.

Rules are tried from top to bottom and the first that matches a text decides. A text that none
matches means nothing here; an exception without a rule is a crash.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from records.trial import FailureKind


class Weight(StrEnum):
    """How much a text says about why a job failed."""

    CAUSE = "cause"  # what went wrong
    SYMPTOM = "symptom"  # another process was lost or waited for: its cause is elsewhere, if known
    END = "end"  # that a process ended, said by its launcher


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRule:
    """Texts that mean the same: the kind of the failure, and in a few words what happened."""

    kind: FailureKind
    why: str
    weight: Weight
    pattern: re.Pattern[str]


def _texts(kind: FailureKind, why: str, *patterns: str, weight: Weight = Weight.CAUSE) -> TextRule:
    pattern = re.compile("|".join(patterns), re.IGNORECASE | re.ASCII)
    return TextRule(kind=kind, why=why, weight=weight, pattern=pattern)


_POLICY = _texts(FailureKind.POLICY_ERROR, "the policy raised", r"\bgenerate_config raised\b")

_MEMORY = (
    _texts(
        FailureKind.OUT_OF_MEMORY,
        "device memory ran out",
        r"\b(CUDA|HIP|XPU|NPU|MPS)( backend)? (error: )?out of memory",
        r"cuda(GetLastError.*|Malloc.*|Error.*| failure.*)out of memory",
        r"cudaErrorMemoryAllocation|(CUBLAS|CUDNN|CUSOLVER)_STATUS_ALLOC_FAILED",
        r"tried to allocate [\d.]+ [KMGT]i?B",
        r"RESOURCE_EXHAUSTED: .*(memory|allocat|HBM)",
        r"torch\.OutOfMemoryError|torch\.cuda\.OutOfMemoryError",
        r"no available memory for the cache blocks",
        r"free memory on device .* is less than desired GPU memory utilization",
        r"larger than the (maximum number of tokens that can be stored in|available) KV cache",
        r"not enough memory\. Please try to increase --mem-fraction-static",
    ),
    _texts(
        FailureKind.OUT_OF_MEMORY,
        "host memory ran out",
        r"DefaultCPUAllocator: (can't allocate|not enough) memory",
        r"std::bad_alloc|cannot allocate memory|can't allocate memory|\bENOMEM\b",
        r"\b_?(Array)?MemoryError\b|unable to allocate [\d.]+ [KMGT]i?B",
        r"out of memory: killed process|invoked oom-killer|oom[-_ ]kill|OOMKilled",
        r"exceeded (job|step) memory limit|killed due to memory pressure|MemoryCgroup",
        r"ray\.exceptions\.OutOfMemoryError",
    ),
)
_OUT_OF_MEMORY_AT_ALL = _texts(
    FailureKind.OUT_OF_MEMORY, "memory ran out", r"\bout of memory\b", r"\bOutOfMemory"
)

_CONFIGURATION = (
    _texts(
        FailureKind.INVALID_CONFIG,
        "sizes do not fit together",
        r"\b(not|isn't|be|is) (evenly )?divisible\b|\bdivisible by\b.*\bgot\b",
        r"\b(must|should|has to) be (a |an )?(integer )?(multiple of|divisible)",
        r"\bnot (a|an) (integer )?multiple of\b|\bdoes not divide\b|\bmust divide\b",
        r"invalid parallel dims|parallel(ism)? (dims|degrees?|size).*!= ?world.?size",
    ),
    _texts(
        FailureKind.INVALID_CONFIG,
        "asks for more devices than there are",
        r"invalid device ordinal|duplicate GPU detected",
        r"mesh should not be bigger than default world size",
        r"world.?size \(?\d+\)? is (larger|greater) than the number of available",
        r"number of required \S+ exceeds the total number of available",
        r"requested node configuration is not available|more processors requested than permitted",
        r"invalid generic resource|requested nodes? .*exceeds",
    ),
    _texts(
        FailureKind.INVALID_CONFIG,
        "the framework refused the configuration",
        r"error: (unrecognized arguments|argument [^:]+: |the following arguments are required)",
        r"error: ambiguous option|\bno such option\b|got an unexpected config",
        r"\d+ validation errors? for \w|pydantic_core\S*ValidationError",
        r"\bJobError: (\S+: )*(job|config|workload|measure)\b",
        r"\b(incompatible|mutually exclusive|cannot be used (together|with))\b.*(--|\boption)",
        r"--\S+ (is incompatible|is not compatible|requires|must be|cannot be|should be)\b",
        r"(micro.?batch|n_microbatches)\S* .*(must|should|needs? to) be",
        r"(number of|num_?) ?stages.* (must|should) (be|match)",
    ),
)

KILLED = _texts(
    FailureKind.INFRASTRUCTURE,
    "killed from outside",
    r"signal 9 \(SIGKILL\)|exitcode *: *-9\b|: task \d+: Killed|^(\S+: line \d+: +\d+ )?Killed\b",
)

_OTHER_WORK = (
    _texts(FailureKind.INVALID_CONFIG, "steps did unequal work", r"\bUnequalStepsError\b"),
    _texts(
        FailureKind.INVALID_CONFIG,
        "a message came out wrong",
        r"\bmessage_step\.WrongResultError\b",
    ),
    _texts(
        *(FailureKind.INVALID_CONFIG, "the communication library cannot do it"),
        r"\boperations\.UnsupportedError\b",
    ),
)

_MACHINE = (
    _texts(
        *(FailureKind.INFRASTRUCTURE, "the communication library cannot be used"),
        r"\boperations\.UnavailableError\b",
    ),
    _texts(
        FailureKind.INFRASTRUCTURE,
        "no device can be used",
        r"no CUDA GPUs are available|no CUDA-capable device|found no NVIDIA driver",
        r"CUDA driver (version is insufficient|initialization failed)|CUDA unknown error",
        r"CUDA driver error|NVIDIA-SMI has failed|couldn't communicate with the NVIDIA driver",
        r"libcuda\.so\S* *: cannot open|all CUDA-capable devices are busy|device-side unavailable",
        r"torch not compiled with CUDA enabled|no HIP GPUs are available",
        r"system not yet initialized|Failed to initialize NVML",
    ),
    _texts(
        FailureKind.INFRASTRUCTURE,
        "a device is faulty",
        r"uncorrectable (ECC|NVLink|memory) error|\bECC error|fallen off the bus|fell off the bus",
        r"\bXid\b.*: (48|62|63|64|74|79|92|94|95|119|120)\b|GPU is lost|hardware error",
    ),
    _texts(
        FailureKind.INFRASTRUCTURE,
        "a port is in use",
        r"address already in use|\bEADDRINUSE\b|port \d+ is (already )?in use",
    ),
    _texts(
        FailureKind.INFRASTRUCTURE,
        "the disk is full or cannot be written",
        r"no space left on device|\bENOSPC\b|disk quota exceeded|\bEDQUOT\b",
        r"read-only file system|stale (NFS )?file handle|input/output error|out of shared memory",
        r"insufficient shared memory|creating shared memory segment",
    ),
    _texts(
        FailureKind.INFRASTRUCTURE,
        "a limit of the machine was reached",
        r"too many open files|\bEMFILE\b|\bENFILE\b|can't start new thread",
        r"resource temporarily unavailable|pthread_create failed|\bfork: retry\b",
    ),
    _texts(
        FailureKind.INFRASTRUCTURE,
        "the scheduler ended it or could not start it",
        r"due to (time limit|preemption|node failure|system failure)",
        r"already completing|unable to (create step|allocate resources|contact slurm)",
        r"job/step already|invalid job id|requested nodes are busy|node failure on|NODE_FAIL",
        r"job credential (expired|revoked)|zero bytes were transmitted|slurmd .*not respond",
        r"socket timed out on send/recv|\*\*\* (JOB|STEP) .* CANCELLED|preempted by",
        r"the node was low on resource|\bEvicted\b|ErrImagePull|ImagePullBackOff",
        r"FailedScheduling|spot instance interruption",
    ),
    _texts(
        FailureKind.INFRASTRUCTURE,
        "a host or service cannot be reached",
        r"network is unreachable|no route to host|cannot assign requested address",
        r"name or service not known|temporary failure in name resolution|nodename nor servname",
        r"connection timed out|software caused connection abort|no socket interface found",
        r"unable to find (address|interface)|network is down|ibv_\w+ failed|IB.*async event",
        r"RendezvousTimeoutError|RendezvousConnectionError|clients joined",
        r"max retries exceeded with url|couldn't connect to 'https?:|HfHubHTTPError",
        r"429 client error|50[234] (server error|bad gateway|service unavailable|gateway time)",
    ),
    _texts(
        FailureKind.INFRASTRUCTURE,
        "interrupted from outside",
        r"^KeyboardInterrupt\b|signal (1 \(SIGHUP\)|2 \(SIGINT\))|exitcode *: *-[12]\b",
    ),
    KILLED,
)

TOO_LARGE = _texts(
    FailureKind.CRASH, "wrote more than a job may", r"file too large|\bEFBIG\b|SIGXFSZ"
)

_PROGRAM = (
    _texts(
        FailureKind.CRASH,
        "died of a fault signal",
        r"signal \d+ \(SIG(SEGV|ABRT|BUS|FPE|ILL|TRAP|SYS)\)|\bsegmentation fault\b",
        r"exitcode *: *-(4|5|6|7|8|11|31)\b|\b(Aborted|Bus error|Illegal instruction)\b( \(core|$)",
        r"Fatal Python error|floating point exception \(core",
    ),
    TOO_LARGE,
    _texts(
        FailureKind.CRASH,
        "a device program failed",
        r"device-side assert|illegal memory access|misaligned address|unspecified launch failure",
        r"CUDA error: (the launch timed out|invalid configuration argument|invalid argument)",
        r"(CUBLAS|CUDNN|CUSPARSE)_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR|NOT_INITIALIZED)",
    ),
    _texts(
        FailureKind.CRASH,
        "ranks called different collectives",
        r"ncclInvalidUsage|ncclInvalidArgument|mismatch between collectives",
        r"data size doesn't match|op\.preamble\.length|received data size",
    ),
)

_PEERS = (
    _texts(
        FailureKind.HANG,
        "a collective never ended",
        r"watchdog caught collective operation timeout|collective operation timed out",
        r"timed out waiting \d+ ?ms for (recv|send)|failed to pass monitoredBarrier",
        r"heartbeat monitor timed out|watchdog (hang|got stuck)|monitoredBarrier.*timed? ?out",
        weight=Weight.SYMPTOM,
    ),
    _texts(
        FailureKind.INFRASTRUCTURE,
        "the connection to another rank was lost",
        r"connection (closed|reset|refused|aborted|was likely closed)|broken pipe",
        r"timed out waiting|wait timeout after|connectFullMesh|remote process exited",
        r"NCCL.*(unhandled system error|remote error)|ncclRemoteError|ncclSystemError",
        r"DistNetworkError|DistStoreError|DistBackendError|socket (timeout|error)",
        r"client socket has timed out|RendezvousClosedError|got completion .* with (error|status)",
        r"proxy call to rank|peer .*(gone|died)|EngineDeadError|engine core initialization failed",
        weight=Weight.SYMPTOM,
    ),
)

_UNCAUGHT = _texts(FailureKind.CRASH, "a C++ exception was not caught", r"^ *what\(\): ")

_ENDS = (
    _texts(
        FailureKind.CRASH,
        "ended by a signal after another process failed",
        r"SignalException: Process \S+ got signal: \d+|signal 15 \(SIGTERM\)|exitcode *: *-15\b",
        weight=Weight.END,
    ),
    _texts(
        FailureKind.CRASH,
        "ended with an error status and no reason",
        r"exitcode *: *\d+|ChildFailedError|\bexited with exit code \d+|: exited with status \d+",
        r"returned non-zero exit status \d+|command terminated with exit code|\bexit \d+: ",
        r"SystemExit\b",
        weight=Weight.END,
    ),
)

RULES = (
    _POLICY,
    *_MEMORY,
    *_CONFIGURATION,
    *_OTHER_WORK,
    *_MACHINE,
    _OUT_OF_MEMORY_AT_ALL,
    *_PROGRAM,
    *_PEERS,
    _UNCAUGHT,
    *_ENDS,
)

LIMITED_MEMORY = _texts(
    FailureKind.OUT_OF_MEMORY,
    "host memory ran out",
    # Under a limit on the data segment a thread's stack is the first thing that does not fit.
    r"resource temporarily unavailable|can't start new thread|pthread_create failed",
)

# A line without any of these matches no rule; most lines of a log are passed over this way.
_HINT_WORDS = (
    "error|fail|exception|fault|signal|kill|exit|abort|interrupt|memory|alloc|oom|exceeded|"
    "larger than|greater than|bigger than|divi|multiple|must|should|invalid|requires|option|"
    "compatible|stages|cannot|can't|unable|not be|too many|too large|unavailable|illegal|gpu|"
    "device|driver|cuda|xid|nccl|ibv_|ib |initialized|interface|in use|eaddr|no space|enospc|"
    "quota|read-only|stale|enfile|resource|due to|already|cancelled|preempt|evicted|busy|"
    "slurm|transmitted|respond|send/recv|imagepull|node|unreachable|route|not known|connect|"
    "timed out|timeout|joined|retries|http|peer|pipe|socket|collective|barrier|watchdog|"
    "completion|closed|match|preamble|data size|what()|raised|status|misaligned|sigxfsz|"
    "is down|dims|ranks|off the bus|gateway|async event|emfile|enomem|edquot|efbig|fork|"
    "permitted|exceeds|credential|parallel|proxy|unexpected|to be|mutually exclusive"
)
_HINTS = tuple(_HINT_WORDS.split("|"))
_ASKED = re.compile(
    r"tried to allocate (?P<size>[\d.]+ ?[KMGT]i?B)|allocate (?P<bytes>\d+) bytes|"
    r"unable to allocate (?P<array>[\d.]+ [KMGT]i?B)|allocating (?P<xla>\d+) bytes",
    re.IGNORECASE,
)


def meaning(text: str, *, memory_limited: bool = False) -> TextRule | None:
    """Give the first rule that the text matches; under a limit a thread may lack the memory."""
    if memory_limited and LIMITED_MEMORY.pattern.search(text):
        return LIMITED_MEMORY
    lowered = text.lower()
    if not any(hint in lowered for hint in _HINTS):
        return None
    return next((rule for rule in RULES if rule.pattern.search(text)), None)


def memory_asked(text: str) -> str | None:
    """How much memory was asked for when it ran out, as the text says it."""
    found = _ASKED.search(text)
    if found is None:
        return None
    count = found["bytes"] or found["xla"]
    return found["size"] or found["array"] or _binary(int(count))


def _binary(size_bytes: int) -> str:
    size, units = float(size_bytes), iter(("bytes", "KiB", "MiB", "GiB"))
    for unit in units:
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"
