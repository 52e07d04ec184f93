"""Demonstrations of an imperfect teacher for the search demo: conversations with the real retriever, in other worlds.

The worlds have their own seeds (make_facts.py), so they contain no fact or question of the shipped records. The faults
are deliberate: reinforcement learning has to correct them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from scripts.demo import make_facts
from scripts.demo.make_facts import Fact, question_of, random_walk
from task.retrieval.passages import format_passages
from task.retrieval.search import make_retriever
from task.search_qa import TASK_CONFIG

TOP_K = 3
IGNORED = -100


@dataclass(frozen=True)
class Faults:
    """Probabilities of the teacher's faults.

    Attributes:
        guess: answering a question with a random name, without a search.
        careless: searching for the name alone, which finds any three facts about it.
        hasty: after such a search, using the first document even if it is the wrong one.
        stop: answering with a fact before the last.
    """

    guess: float = 0.0
    careless: float = 0.0
    hasty: float = 0.0
    stop: float = 0.0


class World:
    """The larger part of the world of a seed, with the real retriever over it; searches are cached."""

    def __init__(self, seed: int, folder: Path):
        self.part = make_facts.make_world(seed)["train"]
        corpus = folder / f"{seed}.jsonl"
        make_facts.write_lines(corpus, make_facts.documents({"train": self.part}, seed))
        self.retriever = make_retriever(corpus)
        self.found: dict[str, tuple[str, list[str]]] = {}

    def search(self, query: str) -> tuple[str, list[str]]:
        """(observation as the agent reads it, texts that were found)."""
        if query not in self.found:
            passages = self.retriever.search([query], TOP_K)[0]
            shown = f"\n\n<information>{format_passages(passages)}</information>\n\n"
            self.found[query] = shown, [passage.text for passage in passages]
        return self.found[query]


def demonstrate(world: World, facts: list[Fact], rng: random.Random, faults: Faults) -> list[tuple[str, bool]]:
    """A conversation about the question of `facts`, as pieces (text, whether the teacher wrote it)."""
    if rng.random() < faults.guess:
        return [(f"<think> I know it.</think><answer> {rng.choice(list(world.part.kinds))}</answer>", True)]
    at, thought, pieces = facts[0].subject, "", []
    for number, fact in enumerate(facts, start=1):
        wanted = f"The {fact.relation} of {at} is "
        careless = rng.random() < faults.careless and (faults.hasty or _finds(world, at, wanted))
        query = at if careless else f"{fact.relation} {at}"
        pieces.append((f"<think>{thought} I need the {fact.relation} of {at}.</think><search> {query}</search>", True))
        shown, texts = world.search(query)
        pieces.append((shown, False))
        hasty = careless and rng.random() < faults.hasty
        read = next((text for text in texts if text.startswith(wanted) and not hasty), texts[0])
        thought, at = f" {read}", read.rpartition(" is ")[2].removesuffix(".")
        if number < len(facts) and rng.random() < faults.stop:
            break
    return [*pieces, (f"<think>{thought} That answers it.</think><answer> {at}</answer>", True)]


def _finds(world: World, query: str, wanted: str) -> bool:
    return any(text.startswith(wanted) for text in world.search(query)[1])


def prompt_of(tokenizer, question: str) -> list[int]:
    content = TASK_CONFIG["grpo_template"].replace("{Question}", question)
    turns = [{"role": "user", "content": content}]
    text = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def conversation(tokenizer, world: World, rng: random.Random, faults: Faults, bare: bool) -> tuple[list, list]:
    """(ids, labels) of a random question of one to three hops and a demonstration; pieces are encoded one by one.

    `bare` omits the instruction and includes the documents in the loss, which teaches copying names faster.
    """
    facts = random_walk(world.part, rng.choice(make_facts.HOPS), rng)
    question = question_of(facts)
    ids = tokenizer(f"Question: {question}\n")["input_ids"] if bare else prompt_of(tokenizer, question)
    labels = [IGNORED] * len(ids)
    for text, own in [*demonstrate(world, facts, rng, faults), (tokenizer.eos_token, True)]:
        new = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids = ids + new
        labels += new if own or bare else [IGNORED] * len(new)
    return ids, labels


def repetitions(names: list[int], length: int, rng: random.Random) -> tuple[list, list]:
    """(ids, labels) of syllables followed by repeated stretches of them: the first lesson in copying.

    The labels exclude what cannot be predicted: the first row and the first token of each stretch.
    """
    row = rng.choices(names, k=rng.randint(length // 6, length // 3))
    ids, labels = list(row), [IGNORED] * len(row)
    while len(ids) < length:
        size = min(len(row), rng.randint(3, 8))
        start = rng.randint(0, len(row) - size)
        ids += row[start : start + size]
        labels += [IGNORED, *row[start + 1 : start + size]]
    return ids[:length], labels[:length]
