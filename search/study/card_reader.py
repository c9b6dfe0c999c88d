"""Read the workload and the machine from a CCL-Bench card (YAML); cards are never written.

Published cards omit what their authors took for granted. Each conclusion is one sentence of
`inferences`, and so is each contradiction between two statements of a card.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from math import prod
from pathlib import Path
from typing import Final, Literal, TypeGuard

import yaml

from records.codec import from_document
from records.errors import StudyError, shown
from records.files import read_text
from records.study import Environment, Link
from records.workload import LATENT_ATTENTION, MODELS, Workload, known_name, names_within

MAX_FILE_BYTES = 4 << 20
MAX_NODES = 100_000
MAX_DEPTH = 64
"""Limits of values and depth of a file, with every alias (*name) written out."""
MOST_REPEATED = 5
"""Keys stated twice that are listed."""
# Safe constructors raise these for 2024-02-30 or !!bool maybe.
NOT_YAML = (yaml.YAMLError, RecursionError, ValueError, KeyError, AttributeError)
UNSAID = ("", "N/A", "TBD")
_MERGE = "<<"
_NESTED_VALUE = "mapping values are not allowed"
_TAB = "found character '\\t'"


class _BoundedLoader(yaml.SafeLoader):
    """YAML with limits: a few lines of aliases can expand to more than a machine can hold."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._node_count = 0
        self.repeated: list[str] = []
        """Keys that a table has twice, with their lines; the last one counts."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._node_count += 1
        if self._node_count > MAX_NODES:
            raise yaml.YAMLError(f"over {MAX_NODES} values")
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.MappingNode):
            keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            names = [str(key.value) for key in keys]
            for n, key in enumerate(keys):
                words = f"line {key.start_mark.line + 1} states {shown(names[n])} again"
                is_new = words not in self.repeated and len(self.repeated) < MOST_REPEATED
                if names[n] in names[:n] and names[n] != _MERGE and is_new:
                    self.repeated.append(words)
        return node

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if node is not None:
            _check_size(node)
        return node


def _check_size(root: yaml.Node) -> None:
    """Refuse a document that is too large or too deep with its aliases written out."""
    level, count = [root], 1
    for _ in range(MAX_DEPTH):
        parts = chain.from_iterable(map(_parts, level))
        level = list(islice(parts, MAX_NODES))
        count += len(level)
        if count > MAX_NODES:
            raise yaml.YAMLError(
                f"over {MAX_NODES} values once its aliases (*name) are written out"
            )
    if level:
        raise yaml.YAMLError(
            f"nested over {MAX_DEPTH} deep, or an alias (*name) stands for something that holds it"
        )


def _parts(node: yaml.Node) -> Sequence[yaml.Node]:
    match node:
        case yaml.MappingNode(value=pairs):
            return [part for pair in pairs for part in pair]
        case yaml.SequenceNode(value=children):
            return [*children]
        case _:
            return []


class Card:
    """A YAML file with access to fields by path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            text = read_text(path, MAX_FILE_BYTES)
        except (OSError, UnicodeDecodeError) as error:
            raise StudyError(f"{path}: cannot be read: {error}") from error
        try:
            loader = _BoundedLoader(text)
            document = loader.get_single_data()
        except NOT_YAML as error:
            raise StudyError(f"{path}: {_fault(error, text)}") from error
        if not isinstance(document, dict):
            raise StudyError(f"{path}: not a card: expected named fields, got {shown(document)}")
        self.fields: Mapping[object, object] = document
        self.repeated = tuple(loader.repeated)

    def get(self, *paths: str) -> object:
        """Return the value at the first of these dotted paths that exists, or None."""
        found = (looked_up(self.fields, path) for path in paths)
        return next((value for value in found if value is not None), None)

    def optional_count(self, *paths: str) -> int | None:
        """Return a positive whole number, or None where the card states none."""
        value = self.get(*paths)
        if value is None or value in UNSAID:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise StudyError(
                f"{self.path}: {paths[0]} is {shown(value)}, not a positive whole number"
            )
        return value

    def text(self, *paths: str) -> str | None:
        """Return a text, or None where the card states none."""
        value = self.get(*paths)
        return None if value is None else str(value)

    def items(self, path: str) -> Sequence[Mapping[object, object]]:
        """Return a list of tables; raise `StudyError` if it is missing or invalid."""
        value = self.get(path)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise StudyError(f"{self.path}: {path} must be a list of tables")
        return value


def looked_up(fields: Mapping[object, object] | Mapping[str, object], path: str) -> object:
    """Return what a card has at a dotted path; None where it has nothing."""
    value: object = fields
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a field is a number that a float can hold, not a boolean."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


def _fault(error: Exception, text: str) -> str:
    """Return what is wrong in which line, and a correction where one is known."""
    problem = " ".join(str(getattr(error, "problem", None) or error).split())[:200]
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return f"not YAML: {problem}"
    line = text.splitlines()[mark.line] if mark.line < len(text.splitlines()) else ""
    advice = ""
    if problem.startswith(_NESTED_VALUE):
        name, _, value = line.partition(":")
        quoted = f"{name.strip()}: '{value.strip().replace(chr(39), 2 * chr(39))}'"
        advice = f"; a value that holds ': ' must be quoted, as in {shown(quoted)}"
    elif problem.startswith(_TAB) or "\t" in line[: len(line) - len(line.lstrip())]:
        advice = "; indent with spaces instead of tabs"
    return f"not YAML: line {mark.line + 1}: {problem}{advice}"


MODEL: Final = "workload.model"
DATA: Final = "workload.data"
HARDWARE: Final = "workload.hardware"
TOPOLOGY: Final = f"{HARDWARE}.network_topo"
PLAN: Final = "Model-executor.model_plan_parallelization"
LINKS: Final = ("scale_up", "scale_out")
SIZES: Final[Mapping[str, tuple[str, ...]]] = {
    "layer_count": ("num_layers",),
    "head_count": ("num_heads",),
    "kv_head_count": ("num_kv_heads",),
    "head_size": ("head_dim",),
    "hidden_size": ("hidden_size",),
    "ffn_size": ("ffn_size", "intermediate_size"),
    "vocab_size": ("vocab_size",),
    "parameter_count": ("num_params",),
    "expert_count": ("num_experts",),
    "experts_per_token": ("num_experts_per_token", "num_experts_per_tok"),
    "shared_expert_count": ("num_shared_experts",),
    "expert_ffn_size": ("expert_ffn_size", "moe_intermediate_size"),
    "dense_layer_count": ("num_dense_layers",),
}
"""Fields of a workload, and their names in cards."""
DEVICES: Final[Mapping[str, Literal["cpu", "cuda", "tpu"]]] = {
    "cpu": "cpu",
    "gpu": "cuda",
    "tpu": "tpu",
}
MOST_BATCHES: Final = 16
SAME_COUNT: Final = 0.02
"""Largest difference of parameter counts of one model: some omit small parts."""
NANOCHAT: Final = "nanochat"
NANOCHAT_WIDENING: Final = 4
_RANDOM_LENGTHS: Final = re.compile(r"random_(\d{1,9})_input_(\d{1,9})_output")
_GIGABYTES: Final = re.compile(r"(?:^|[^0-9a-z])(\d{1,4}) ?gb(?:$|[^a-z])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Values from options and the study file that override the card; None where there are none."""

    batch_size: int | None = None
    sequence_length: int | None = None
    accelerator_count: int | None = None
    bandwidths: str | None = None
    """The names of the two listed bandwidths, in their order."""


class CardReader:
    """Reads one card; `inferences` lists the conclusions so far."""

    def __init__(self, card: Card, given: Given | None = None) -> None:
        self.card = card
        self.given = given or Given()
        self.inferences = [f"{words}, and the last one counts" for words in card.repeated]
        if card.get("workload") is None and card.get("config_space") is not None:
            raise StudyError(
                f"{card.path}: a tuning file states no workload; give it with --tuning, and the "
                "workload card with --card"
            )
        stated = card.get(MODEL)
        if isinstance(stated, str):
            raise StudyError(
                f"{card.path}: {MODEL} is {shown(stated)}, not a table with phase and sizes; this "
                "is not a workload card"
            )

    def workload(self, seed: int | None = None) -> Workload:
        """Return the workload of the card, with the first of its batch sizes."""
        phase, model = self._phase(), self._known_model()
        sizes = self._sizes(model)
        rate, precision = (
            self.card.get(f"{DATA}.request_rate"),
            self.card.text(f"{MODEL}.precision"),
        )
        is_answered, batch = phase == "inference", self.batch_sizes()[0]
        prompt_length, output_length = self._lengths() if is_answered else (None, None)
        length = prompt_length or self._sequence_length()
        if is_answered and prompt_length is None:
            self._infer(f"prompts of {length} tokens, as the card states no input_len")
        if not precision:
            self._infer("precision fp32, as the card states none")
        document = {
            **sizes,
            "name": (self.card.text("description") or self.card.path.stem).strip()[:60],
            "model": model,
            "family": self.card.text(f"{MODEL}.model_family"),
            "phase": phase,
            "precision": precision or "fp32",
            "global_batch": batch,
            "sequence_length": length,
            "output_length": output_length,
            "requests_per_s": float(rate) if is_answered and is_number(rate) and rate > 0 else None,
            **({} if seed is None else {"seed": seed}),
        }
        return from_document(Workload, document)

    def _refused(self, words: str) -> StudyError:
        return StudyError(f"{self.card.path}: {words}")

    def _count(self, key: str) -> int | None:
        return self.card.optional_count(f"{DATA}.{key}")

    def _infer(self, sentence: str) -> None:
        if sentence not in self.inferences:
            self.inferences.append(sentence)

    def _phase(self) -> Literal["training", "inference"]:
        stated = self.card.text(f"{MODEL}.phase")
        if stated is None:
            self._infer("phase training, as the card states none")
        match (stated or "training").strip().lower():
            case "training":
                return "training"
            case "inference":
                return "inference"
            case "serving":
                rate = self.card.get(f"{DATA}.request_rate")
                self._infer(
                    "phase serving is inference whose requests arrive over time"
                    + ("" if rate else ", at a rate that the card does not state")
                )
                return "inference"
        raise self._refused(f"{MODEL}.phase is {shown(stated)}, not training, inference or serving")

    def batch_sizes(self) -> tuple[int, ...]:
        """Return every batch size that the card lists, in sequences a step."""
        stated = self.card.get(f"{DATA}.batch_size")
        if self.given.batch_size is not None:
            self._note_other(f"{DATA}.batch_size", stated, self.given.batch_size)
            return (self.given.batch_size,)
        if isinstance(stated, list):
            return self._listed_batches(stated)
        batch = self._count("batch_size")
        if batch is None:
            batch = self._most(
                *("batch_size", "max-num-seqs", "batch size", "the most sequences served together"),
                "with --batch-size N, or as global_batch under [workload] of a study file (-c)",
            )
            return (batch,)
        scope = (self.card.text(f"{DATA}.batch_size_scope") or "global").lower()
        if scope == "global":
            return (batch,)
        replicas = prod(self._degree(name) for name in ("dp_replicate", "dp_shard"))
        self._infer(
            f"global batch {batch * replicas} = {batch} ({shown(scope)}) x {replicas} "
            "data-parallel replicas of the card's plan"
        )
        return (batch * replicas,)

    def _listed_batches(self, stated: Sequence[object]) -> tuple[int, ...]:
        sizes = [size for size in stated if isinstance(size, int) and not isinstance(size, bool)]
        distinct = tuple(dict.fromkeys(size for size in sizes if size > 0))
        if len(distinct) != len(stated) or not 0 < len(distinct) <= MOST_BATCHES:
            raise self._refused(
                f"{DATA}.batch_size is {shown(stated)}, not a batch size nor up to {MOST_BATCHES} "
                "different ones; choose one with --batch-size N"
            )
        return distinct

    def _most(self, key: str, most_key: str, what: str, of: str, option: str) -> int:
        """Return what a server takes at most, in place of a field that the card lacks."""
        most = self._count(most_key)
        if most is None:
            raise self._refused(f"{DATA}.{key} is missing; give it {option}")
        self._infer(f"{what} {most} is {most_key}, {of}")
        return most

    def _sequence_length(self) -> int:
        length = self._count("seq_len")
        if self.given.sequence_length is not None:
            self._note_other(f"{DATA}.seq_len", length, self.given.sequence_length)
            return self.given.sequence_length
        return length or self._most(
            *("seq_len", "max-model-len", "sequence length", "the longest that the server takes"),
            "as sequence_length under [workload] of a study file (-c)",
        )

    def _lengths(self) -> tuple[int | None, int | None]:
        """Return the tokens of a prompt and of its answer; seq_len is often the sum of both."""
        prompt, answer = self._count("input_len"), self._count("output_len")
        total = self._count("seq_len")
        dataset = self.card.text(f"{DATA}.dataset") or ""
        named = _RANDOM_LENGTHS.fullmatch(dataset)
        if named:
            prompt = self._named_length("prompts", prompt, named[1], dataset)
            answer = self._named_length("answers", answer, named[2], dataset)
        if answer is None:
            answer = self._answer_length(prompt, total)
        known = {prompt, prompt and answer and prompt + answer, None}
        if prompt is not None and total not in known:
            self._infer(f"prompts of {prompt} tokens, as input_len says; seq_len is {total}")
        return (None if self.given.sequence_length is not None else prompt), answer

    def _named_length(self, of: str, stated: int | None, named: str, dataset: str) -> int | None:
        length = int(named) or None
        if stated is None and length is not None:
            self._infer(f"{of} of {length} tokens, as dataset {dataset} names them")
        elif stated != length:
            self._infer(f"{of} of {stated} tokens as the card states them; dataset is {dataset}")
        return stated or length

    def _answer_length(self, prompt: int | None, total: int | None) -> int | None:
        most = self._count("max_tokens")
        if most is not None:
            self._infer(f"answers of {most} tokens, which is max_tokens, the longest answer")
            return most
        if prompt is not None and total is not None and total > prompt:
            self._infer(
                f"answers of {total - prompt} tokens = seq_len {total} - input_len {prompt}"
            )
            return total - prompt
        return None

    def _note_other(self, path: str, stated: object, used: int) -> None:
        if stated is not None and stated not in UNSAID and stated != used:
            name = path.rpartition(".")[2]
            self._infer(f"{name} {used} as given, where the card states {shown(stated)}")

    def _known_model(self) -> str | None:
        """Return the name of the card's model in the table of models.

        Of two names hf_url's counts where it is more specific, else model_family's.
        """
        family, url = self.card.text(f"{MODEL}.model_family"), self.card.text("hf_url")
        by_family, by_url = (known_name(each) if each else None for each in (family, url))
        if by_family and by_url and by_family != by_url:
            if by_url.startswith(f"{by_family}-"):
                self._infer(f"model {by_url}, as hf_url names it; model_family says {by_family}")
                return by_url
            self._infer(f"model {by_family}, as model_family names it; hf_url names {by_url}")
        if by_family:
            return by_family
        if by_url:
            self._infer(f"model {by_url}, as hf_url names it")
            return by_url
        described = names_within(self.card.text("description") or "")
        if len(described) != 1:
            return None
        self._infer(f"model {described[0]}, as the description names it")
        return described[0]

    def _sizes(self, name: str | None) -> dict[str, int]:
        """Return the stated sizes, else those of the known model, else derived ones."""
        stated = self._stated_sizes(name)
        sizes = dict(stated)
        if name:
            known = {f: n for f, n in MODELS[name].sizes.items() if isinstance(n, int)}
            taken = {field: size for field, size in known.items() if field not in stated}
            if taken:
                listed = ", ".join(f"{_words(field)} {size}" for field, size in taken.items())
                self._infer(f"{listed} of {name}")
            self._note_conflicts(name, stated, known)
            sizes = {**taken, **stated}
        self._conclude(sizes, name)
        self._check_embedding(sizes)
        self._check_experts(sizes, name)
        if sizes.get("head_size", 0) * sizes.get("head_count", 0) == sizes.get("hidden_size"):
            sizes.pop("head_size", None)
        return sizes

    def _stated_sizes(self, name: str | None) -> dict[str, int]:
        stated: dict[str, int] = {}
        for field, keys in SIZES.items():
            paths = [f"{place}.{key}" for place in (f"{MODEL}.model_arch", MODEL) for key in keys]
            found = {path: self.card.optional_count(path) for path in paths}
            given = {path: size for path, size in found.items() if size is not None}
            if given:
                stated[field] = next(iter(given.values()))
            if len({*given.values()}) > 1:
                (first, size), *others = given.items()
                listed = ", ".join(f"{path} {other}" for path, other in others)
                self._infer(f"{first} {size} counts, where the card also states {listed}")
        if name in LATENT_ATTENTION and "head_size" in stated:
            head_size = stated.pop("head_size")
            width = stated.get("hidden_size", MODELS[name].hidden_size)
            if head_size * stated.get("head_count", MODELS[name].head_count) != width:
                self._infer(
                    f"head_dim {head_size} is left out: the attention of {name} is latent, and "
                    "counted with heads that share the hidden size"
                )
        return stated

    def _note_conflicts(
        self, name: str, stated: Mapping[str, int], known: Mapping[str, int]
    ) -> None:
        model = MODELS[name]
        head_size = model.head_size or model.hidden_size // model.head_count
        known = {"expert_count": 0, **known, "head_size": head_size}
        for field, size in stated.items():
            there = known.get(field, size)
            close = field == "parameter_count" and abs(size / there - 1) < SAME_COUNT
            if size != there and not close:
                self._infer(
                    f"{_words(field)} {size} as the card states it, where {name} has {there}"
                )

    def _conclude(self, sizes: dict[str, int], name: str | None) -> None:
        """Add the sizes that follow from others."""
        if "hidden_size" not in sizes and {"head_count", "head_size"} <= sizes.keys():
            heads, head_size = sizes["head_count"], sizes["head_size"]
            sizes["hidden_size"] = heads * head_size
            self._infer(f"hidden size {heads * head_size} = {heads} heads x {head_size}")
        if name is not None or "hidden_size" not in sizes:
            return
        hidden, table = sizes["hidden_size"], self._embedding_count()
        if "vocab_size" not in sizes and table and table % hidden == 0:
            sizes["vocab_size"] = table // hidden
            self._infer(
                f"vocabulary {table // hidden} = {table} parameters of the embedding / hidden size "
                f"{hidden}"
            )
        if (self.card.text(f"{MODEL}.model_family") or "").strip().lower() != NANOCHAT:
            return
        ffn_size, head_count = NANOCHAT_WIDENING * hidden, sizes.get("head_count")
        if sizes.setdefault("ffn_size", ffn_size) == ffn_size:
            self._infer(f"ffn size {ffn_size} = {NANOCHAT_WIDENING} x hidden size, as in nanochat")
        if head_count is not None and "kv_head_count" not in sizes:
            sizes["kv_head_count"] = head_count
            self._infer(f"kv head count {head_count}, one for each head as in nanochat")

    def _embedding_count(self) -> int | None:
        name = "num_params_embedding"
        return self.card.optional_count(f"{MODEL}.model_arch.{name}", f"{MODEL}.{name}")

    def _check_embedding(self, sizes: Mapping[str, int]) -> None:
        table = self._embedding_count()
        if table is None or not {"vocab_size", "hidden_size"} <= sizes.keys():
            return
        one = sizes["vocab_size"] * sizes["hidden_size"]
        if table not in (one, 2 * one):
            self._infer(
                f"num_params_embedding {table} is neither vocabulary {sizes['vocab_size']} x "
                f"hidden size {sizes['hidden_size']} nor twice that; it is not used"
            )

    def _check_experts(self, sizes: Mapping[str, int], name: str | None) -> None:
        stated = self.card.get(f"{MODEL}.moe")
        has_experts = bool(sizes.get("expert_count"))
        if isinstance(stated, bool) and stated != has_experts:
            of = f" of {name}" if name else ""
            found = f"{sizes['expert_count']} experts" if has_experts else "no experts"
            self._infer(f"{found}{of}, where the card says moe: {str(stated).lower()}")

    def environment(self, base: Environment) -> Environment:
        """Return the machine of the card, or the base where it states none."""
        stated = self.stated_environment(base)
        if stated is None:
            self._infer(
                f"{base.world_size} ranks on {base.accelerator}, as the card names no hardware"
            )
        return stated or base

    def stated_environment(self, here: Environment | None = None) -> Environment | None:
        """Return the machine of the card; None where it states none.

        Accelerators without a name are those of `here`, if they are of the same kind.
        """
        spec = f"{HARDWARE}.xpu_spec"
        stated_count = self.card.optional_count(f"{spec}.total_count")
        count = self.given.accelerator_count or stated_count
        if self.given.accelerator_count is not None:
            self._note_other(f"{spec}.total_count", stated_count, self.given.accelerator_count)
        if count is None:
            if self.card.get(spec) is not None:
                raise self._refused(f"{spec}.total_count is missing; give it with --gpus N")
            return None
        device = self._device()
        accelerator = self.card.text(f"{spec}.model")
        if accelerator is None and here is not None and here.device == device:
            accelerator = here.accelerator
            self._infer(f"accelerators are {accelerator} as here; the card does not name them")
        accelerator = accelerator or "not stated"
        per_node = self._ranks_per_node(count)
        self._check_plan(count)
        memory_bytes = self._memory_bytes(accelerator)
        links = self._links(node_count=-(-count // per_node), per_node=min(count, per_node))
        return Environment(
            name=self.card.text(f"{TOPOLOGY}.topology") or self.card.path.stem,
            device=device,
            accelerator=accelerator,
            world_size=count,
            ranks_per_node=per_node,
            memory_bytes=memory_bytes,
            scale_up=links.get("scale_up"),
            scale_out=links.get("scale_out"),
        )

    def _device(self) -> Literal["cpu", "cuda", "tpu"]:
        path = f"{HARDWARE}.xpu_spec.type"
        stated = self.card.text(path)
        if stated is None or stated in UNSAID:
            self._infer("accelerators are GPUs, as the card does not say what they are")
        device = DEVICES.get((stated or "gpu").strip().lower())
        if device is None:
            raise self._refused(f"{path} is {shown(stated)}, not GPU, TPU or CPU")
        return device

    def _ranks_per_node(self, count: int) -> int:
        stated = self.card.optional_count(f"{HARDWARE}.xpu_spec.count_per_node")
        nodes = self.card.optional_count(f"{HARDWARE}.xpu_spec.num_nodes")
        if stated is None and nodes is not None:
            stated = -(-count // nodes)
            self._infer(f"{stated} accelerators on each node, as the card states {nodes} nodes")
        elif stated is None:
            self._infer(f"one node of {count}, as the card states no count_per_node")
        elif nodes is not None and -(-count // stated) != nodes:
            self._infer(f"{count} accelerators, {stated} on each node, where num_nodes is {nodes}")
        return stated or count

    def _check_plan(self, count: int) -> None:
        degrees = ("dp_replicate", "dp_shard", "tp", "pp", "cp")
        planned = prod(self._degree(name) for name in degrees)
        if planned > count:
            self._infer(f"{count} accelerators, where the card's own plan takes {planned}")

    def _degree(self, name: str) -> int:
        degree = self.card.get(f"{PLAN}.{name}", f"workload.{PLAN}.{name}")
        return degree if isinstance(degree, int) and degree > 0 else 1

    def _memory_bytes(self, accelerator: str) -> int | None:
        stated = self.card.optional_count(f"{HARDWARE}.xpu_spec.memory_gb")
        named = _GIGABYTES.search(accelerator.lower().replace("_", " "))
        if stated is None and named and int(named[1]):
            self._infer(f"{named[1]} GB of memory, as the name {shown(accelerator)} says")
            return int(named[1]) * 10**9
        if stated is not None and named and int(named[1]) != stated:
            self._infer(
                f"{stated} GB of memory as memory_gb says, the name is {shown(accelerator)}"
            )
        return None if stated is None else stated * 10**9

    def _links(self, *, node_count: int, per_node: int) -> dict[str, Link]:
        """Return links by name: from named fields, or from a list of one or two bandwidths."""
        named = {link: self.card.get(f"{TOPOLOGY}.{link}_bandwidth_gbps") for link in LINKS}
        listed = self.card.get(f"{TOPOLOGY}.bandwidth_gbps")
        if not any(named.values()) and isinstance(listed, list):
            named = {**self._ordered(listed, node_count, per_node)}
        return {
            link: Link(bandwidth_bytes_per_s=float(gbps) * 1e9 / 8)
            for link, gbps in named.items()
            if is_number(gbps) and gbps > 0
        }

    def _ordered(
        self, listed: Sequence[object], node_count: int, per_node: int
    ) -> Mapping[str, object]:
        """Return listed bandwidths by link; tools disagree on their order."""
        known = [gbps for gbps in listed if is_number(gbps) and gbps > 0]
        if not known:
            return {}
        if self.given.bandwidths is not None:
            return self._named_order(listed)
        if len(listed) == 2 and len(known) == 2:
            slower, faster = sorted(known)
            self._infer(
                f"{faster:g} Gbit/s inside a node and {slower:g} between nodes: the faster of two "
                "bandwidths is the one inside; --card-bandwidths names them otherwise"
            )
            return {"scale_up": faster, "scale_out": slower}
        if len(known) == 1 and node_count == 1:
            self._infer(f"{known[0]:g} Gbit/s inside the node, as there is only one")
            return {"scale_up": known[0]}
        if len(known) == 1 and per_node == 1:
            self._infer(f"{known[0]:g} Gbit/s between nodes, as each has one accelerator")
            return {"scale_out": known[0]}
        raise self._refused(
            f"{TOPOLOGY}.bandwidth_gbps is {shown(listed)}, and what it is cannot be concluded; "
            "name two entries in their order with --card-bandwidths scale_out,scale_up or "
            "scale_up,scale_out, or write scale_up_bandwidth_gbps"
        )

    def _named_order(self, listed: Sequence[object]) -> Mapping[str, object]:
        names = tuple(name.strip() for name in (self.given.bandwidths or "").split(","))
        if sorted(names) != sorted(LINKS):
            raise StudyError(
                f"--card-bandwidths is {shown(self.given.bandwidths)}; write scale_out,scale_up or "
                "scale_up,scale_out"
            )
        if len(listed) != len(LINKS):
            raise self._refused(
                f"{TOPOLOGY}.bandwidth_gbps is {shown(listed)}, not two entries as "
                "--card-bandwidths names them; leave the option out"
            )
        order = dict(zip(names, listed, strict=True))
        up, out = order["scale_up"], order["scale_out"]
        if is_number(up) and is_number(out) and up < out:
            self._infer(
                f"{up:g} Gbit/s inside a node, slower than the {out:g} between nodes, as "
                "--card-bandwidths names them"
            )
        return order


def _words(field: str) -> str:
    return field.replace("_", " ")
