"""Prompts, pictures and branching of fixed lengths for the benchmarks of sampling and of whole steps."""

from pathlib import Path

import numpy as np
from PIL import Image

from trainer.policies.policy import Policy
from trainer.policies.segment import Segment

PATCH = 14


class FixedLengths(Policy):
    """K thoughts of `thought` tokens with M answers of `answer` tokens each; forks at the limit, closed or not.

    Random weights never close a thought, so the benchmarks fork by length; the engine's work is the same.
    """

    def __init__(self, think_num: int, answer_num: int, thought: int, answer: int):
        self.leaves = think_num * answer_num
        self.thought, self.answer = Segment("thought", think_num, thought), Segment("answer", answer_num, answer)

    def start(self) -> Segment:
        return self.thought

    def next(self, tree, node_index: int, ended: str) -> Segment | None:
        if tree.nodes[node_index].kind == "answer":
            return None
        tree.nodes[node_index].status = "ok"
        return self.answer


def write_pictures(folder: Path, grid: int, count: int) -> list[str]:
    """`count` random pictures of `grid` x `grid` patches each, which the processor does not resize."""
    generator = np.random.default_rng(0)
    paths = []
    for i in range(count):
        pixels = generator.integers(0, 256, (grid * PATCH, grid * PATCH, 3), dtype=np.uint8)
        paths.append(str(folder / f"{i}.png"))
        Image.fromarray(pixels).save(paths[-1])
    return paths


def question_of_length(module, image: str, tokens: int) -> str:
    """A question with which the whole prompt, chat template included, has `tokens` tokens without the picture's."""
    picture = Image.open(image)
    question = "what"
    while True:
        content = [{"type": "image", "index": 0}, {"type": "text", "text": question}]
        prompt = module.encode([{"role": "user", "content": content}], [picture], [])
        text = sum(token != module.config.image_token_id for token in prompt.ids)
        if text >= tokens:
            return question
        question += " a"


def messages_of(question: str) -> list[dict]:
    """A user turn with one picture and the question."""
    return [{"role": "user", "content": [{"type": "image", "index": 0}, {"type": "text", "text": question}]}]
