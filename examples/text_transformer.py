"""A small BERT of Hugging Face learns three text tasks: inputs are dicts, as a tokenizer gives them.

Weights are random and the sentences are made here, so nothing is downloaded. With a model of your own, make the
backbone from `AutoModel.from_pretrained(...)` and the inputs with its tokenizer.

    python examples/text_transformer.py [FOLDER]        (pip install 'learn-prune-share[examples]')
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

import lps
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel

LENGTH = 12
WIDTH = 48
COLOURS, ANIMALS = ("red", "green", "blue"), ("cat", "dog", "owl")
MOODS = ("loves", "hates")
WORDS = ("[pad]", "[cls]", "the", "a", "and", "very", "old", "small", *COLOURS, *ANIMALS, *MOODS)

# Each task: the words of which every sentence has one; which it is is the class.
TASKS = {"colour": COLOURS, "animal": ANIMALS, "mood": MOODS}


def sentence(chance: random.Random) -> list[str]:
    """Words in an order of chance: one of each task, and some that mean nothing."""
    words = [chance.choice(kinds) for kinds in TASKS.values()]
    words += chance.choices(WORDS[2:8], k=chance.randint(0, LENGTH - 5))
    chance.shuffle(words)
    return words


def tokenized(sentences: list[list[str]]) -> dict[str, Tensor]:
    """Token ids, filled up to one length, and which of them are words."""
    ids = torch.zeros(len(sentences), LENGTH, dtype=torch.long)
    for row, words in zip(ids, sentences, strict=True):
        row[: len(words) + 1] = torch.tensor([1, *(WORDS.index(word) for word in words)])
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def labels(sentences: list[list[str]], kinds: tuple[str, ...]) -> Tensor:
    """The class of each sentence."""
    return torch.tensor([next(kinds.index(word) for word in words if word in kinds) for words in sentences])


class Features(nn.Module):
    """What a task's head reads of the model: the mean over the words."""

    def __init__(self) -> None:
        super().__init__()
        config = BertConfig(
            vocab_size=len(WORDS), hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96
        )
        self.bert = BertModel(config, add_pooling_layer=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Features [sentences, WIDTH]; the names of the arguments are the names of a task's inputs."""
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask.unsqueeze(2).to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1)


def main(folder: Path) -> None:
    """Learn the tasks, save, load, and answer for a sentence."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(0)
    train, test = [sentence(chance) for _ in range(400)], [sentence(chance) for _ in range(100)]
    torch.manual_seed(0)
    # Every task has its own biases and LayerNorms: with those of task 1, task 3 needs many more epochs.
    net = lps.Lifelong(Features(), features=WIDTH, norms="per-task")
    config = lps.LPSConfig(
        alpha=0.3, beta="auto", solver="straight-through", epochs=(6, 18, 6), schedule="cosine", batch_size=32, lr=3e-3
    )
    for name, kinds in TASKS.items():
        examples, judge = (tokenized(train), labels(train, kinds)), (tokenized(test), labels(test, kinds))
        net.learn(lps.Task(name, len(kinds), train=examples, test=judge, class_names=kinds), config)
        print(f"{name}: {100 * net.accuracy(name, judge):.1f} % of the test sentences")
    net.save(folder / "model.lps")

    again = lps.load(folder / "model.lps", Features()).eval()
    words = ["the", "small", "blue", "owl", "loves", "a", "and"]
    answers = [kinds[int(again(tokenized([words]), task=name).argmax())] for name, kinds in TASKS.items()]
    print(f"{' '.join(words)}: {', '.join(answers)}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
