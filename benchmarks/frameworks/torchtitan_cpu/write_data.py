"""Writes a tokenizer and documents of made-up words: write_data.py FOLDER."""

import json
import random
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

LETTERS = "abcdefghijklmnopqrstuvwxyz"
BEGIN, END = "<|begin_of_text|>", "<|end_of_text|>"

folder = Path(sys.argv[1])
draw = random.Random(0)
words = ["".join(draw.choices(LETTERS, k=draw.randint(2, 9))) for _ in range(1500)]
documents = [" ".join(draw.choices(words, k=80)) for _ in range(2000)]
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(vocab_size=2000, special_tokens=[BEGIN, END], show_progress=False)
tokenizer.train_from_iterator(documents, trainer)
for name in ("tokenizer", "documents"):
    (folder / name).mkdir(parents=True, exist_ok=True)
tokenizer.save(str(folder / "tokenizer/tokenizer.json"))
special = {"bos_token": BEGIN, "eos_token": END, "add_bos_token": True}
(folder / "tokenizer/tokenizer_config.json").write_text(json.dumps(special), encoding="utf-8")
lines = (json.dumps({"text": document}) for document in documents)
(folder / "documents/data.json").write_text("\n".join(lines) + "\n", encoding="utf-8")
