"""Draws docs/tree.svg: a real rollout of K thoughts with M answers each, and the same rollout as K x M rows.

    python scripts/demo/draw_tree.py                        # rewrites docs/tree.svg byte for byte
    python scripts/demo/draw_tree.py --seed 3 --out other.svg

The tree is grown by the project's engine with the shipped tiny model on one demo record, at temperature 1. The width of
a box is proportional to its tokens; rewards are those of the record's task.
"""

import argparse
import os
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from xml.sax.saxutils import escape

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

ROOT = use_checkout()

MODEL = ROOT / "scripts" / "demo" / "tiny_model"
MANIFEST = ROOT / "metadata" / "demo" / "trajectory_train.yaml"

# Pixels
TOKEN = 4  # width of a token
LEFT, TOP = 20, 64  # where the tree begins
ANSWER, GAP, THOUGHT_GAP = 17, 3, 8  # height of an answer; space below an answer, and below a thought's last one
BRANCH, SCORE = 24, 30  # width of an edge, of a printed reward
ROW, ROW_GAP = 6, 2  # height of a row, and the space below it
CHARACTER, LINE = 6.05, 13  # width and height of a character in a box
STYLE = """
  .card { fill: #ffffff; stroke: #d0d7de }
  text { font: 10px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #1f2328 }
  .title { font: 600 14px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif }
  .note { font: 12px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #59636e }
  .prompt { fill: #d8dee4 } .thought { fill: #b6d5fb } .answer { fill: #b7e4c0 } .again { opacity: 0.4 }
  .edge { stroke: #8c959f; fill: none }
  @media (prefers-color-scheme: dark) {
    .card { fill: #161b22; stroke: #3d444d } text { fill: #e6edf3 } .note { fill: #9198a1 }
    .prompt { fill: #3d444d } .thought { fill: #1f4b85 } .answer { fill: #23613a } .edge { stroke: #656c76 }
  }
"""


@dataclass(frozen=True)
class Answer:
    """One answer: its text, tokens and reward."""

    text: str
    tokens: int
    reward: float


@dataclass(frozen=True)
class Thought:
    """One thought with the answers sampled after it."""

    text: str
    tokens: int
    answers: list[Answer]


@dataclass(frozen=True)
class Rollout:
    """The rollout of one prompt; `media_tokens` of its `prompt_tokens` belong to the picture."""

    question: str
    prompt_tokens: int
    media_tokens: int
    thoughts: list[Thought]

    def tree_tokens(self) -> int:
        """Tokens of prompt, thoughts and answers, each once."""
        return self.prompt_tokens + sum(t.tokens + sum(a.tokens for a in t.answers) for t in self.thoughts)

    def row_tokens(self) -> int:
        """Tokens of the same completions as rows, in which prompt and thought are repeated for every answer."""
        return sum(self.prompt_tokens + t.tokens + a.tokens for t in self.thoughts for a in t.answers)


def grow(think_num: int, answer_num: int, record: int, seed: int) -> Rollout:
    """A rollout of the shipped tiny model on the record of that index in the demo's training data."""
    import torch

    from dataset.dataset_grpo import build_dataset, read_row
    from model.loading import load_policy
    from task.rewards.router import reward_arguments
    from task.task_loader import load_tasks
    from trainer.engines.sampling import Sampling
    from trainer.engines.transformers_engine import TransformersEngine
    from trainer.policies.thought_answer import ThoughtAnswerPolicy
    from trainer.prompts import PromptEncoder

    torch.set_num_threads(1)
    tasks = load_tasks()
    row = build_dataset([str(MANIFEST)], tasks)[record]
    module, model, processor = load_policy(str(MODEL), dtype="float32")
    module.processor = processor
    prompt = PromptEncoder(module, 4096, "error", "error", None, 160).encode(row)
    ends, forbidden = module.eos_token_ids(processor), module.forbidden_token_ids(processor)
    engine = TransformersEngine(model.eval(), module, processor.tokenizer, Sampling(), ends, forbidden)
    policy = ThoughtAnswerPolicy(think_num, answer_num, 80, 80, thought_end="</think>")
    torch.manual_seed(seed)
    tree = engine.grow([prompt], policy, ["0"])[0]

    record = read_row(row)
    task = tasks[record["question_type"]]
    sol, keywords = reward_arguments(task, record, prompt.image_sizes[0], prompt.processed_sizes[0])

    def text(ids: list[int]) -> str:
        return processor.tokenizer.decode(ids, skip_special_tokens=True).strip()

    thoughts: dict[int, Thought] = {}
    for index, node in enumerate(tree.nodes):
        if node.kind == "thought":
            thoughts[index] = Thought(text(node.token_ids), len(node.token_ids), [])
        else:
            reward, _ = task.accuracy_reward(text(tree.tokens(index)), sol, **keywords)
            thoughts[node.parent].answers.append(Answer(text(node.token_ids), len(node.token_ids), reward))
    if not all(thought.answers for thought in thoughts.values()):
        raise SystemExit(
            f"draw_tree.py: with seed {seed} a thought never closed and has no answers: take another --seed."
        )
    media = sum(token == module.config.image_token_id for token in prompt.ids)
    return Rollout(record["question"], len(prompt.ids), media, list(thoughts.values()))


def draw(rollout: Rollout) -> str:
    """The SVG: the tree above, and its rows below at the same scale, with repeated parts faded."""
    leaves = sum(len(thought.answers) for thought in rollout.thoughts)
    ratio = rollout.row_tokens() / rollout.tree_tokens()
    tree, right, bottom = _tree(rollout)
    rows, end = _rows(rollout, bottom + 48)
    width, height = round(right + SCORE + LEFT), round(end + LEFT)
    title = f"One tree: {len(rollout.thoughts)} thoughts, {leaves} answers, {rollout.tree_tokens():,} tokens"
    note = "Boxes are as wide as their tokens. Numbers are rewards; after a thought, the mean reward of its answers."
    below = f"The same {leaves} completions as rows: {rollout.row_tokens():,} tokens, {ratio:.1f} times as many"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
            f"<title>{title}. {below}.</title>",
            f"<style>{STYLE}</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
            _text(LEFT, 28, title, "title"),
            _text(LEFT, 48, note, "note"),
            *tree,
            _text(LEFT, bottom + 34, f"{below} (faded: repeated)", "title"),
            *rows,
            "</svg>\n",
        ]
    )


def _tree(rollout: Rollout) -> tuple[list[str], float, float]:
    """The tree's boxes and edges, the right end of its widest path, and its bottom."""
    answers = sum(len(thought.answers) for thought in rollout.thoughts)
    height = answers * (ANSWER + GAP) - GAP + (len(rollout.thoughts) - 1) * THOUGHT_GAP
    width = rollout.prompt_tokens * TOKEN
    words = f"Prompt: {rollout.prompt_tokens} tokens, {rollout.media_tokens} of them the picture. {rollout.question}"
    shapes, fork, right, y = _box("prompt", LEFT, TOP, width, height, words), LEFT + width, 0, TOP
    for thought in rollout.thoughts:
        tall = len(thought.answers) * (ANSWER + GAP) - GAP
        start, end = fork + BRANCH, fork + BRANCH + thought.tokens * TOKEN
        shapes.append(_edge(fork, TOP + height / 2, start, y + tall / 2))
        shapes += _box("thought", start, y, end - start, tall, thought.text)
        mean = fmean(answer.reward for answer in thought.answers)
        shapes.append(_text(end + 4, y + tall / 2 + 4, f"{mean:.2f}"))
        middle, left = y + tall / 2, end + SCORE + BRANCH
        for answer in thought.answers:
            shapes.append(_edge(end + SCORE, middle, left, y + ANSWER / 2))
            shapes += _box("answer", left, y, answer.tokens * TOKEN, ANSWER, answer.text)
            right = max(right, left + answer.tokens * TOKEN)
            shapes.append(_text(left + answer.tokens * TOKEN + 4, y + 12, f"{answer.reward:.2f}"))
            y += ANSWER + GAP
        y += THOUGHT_GAP
    return shapes, right, TOP + height


def _rows(rollout: Rollout, y: float) -> tuple[list[str], float]:
    """(shapes, bottom) of one row per answer: prompt, thought, answer. Parts of an earlier row are faded."""
    shapes = []
    for k, thought in enumerate(rollout.thoughts):
        for m, answer in enumerate(thought.answers):
            x = LEFT
            parts = (
                ("prompt", rollout.prompt_tokens, k > 0 or m > 0),
                ("thought", thought.tokens, m > 0),
                ("answer", answer.tokens, False),
            )
            for kind, tokens, again in parts:
                shapes.append(_rect(f"{kind} again" if again else kind, x, y, tokens * TOKEN, ROW))
                x += tokens * TOKEN
            y += ROW + ROW_GAP
    return shapes, y


def _rect(name: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="{name}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="2"/>'


def _box(name: str, x: float, y: float, width: float, height: float, words: str) -> list[str]:
    """A box with as many of the words as fit."""
    wide, fitting = max(2, int((width - 8) / CHARACTER)), max(1, int((height - 4) // LINE))
    lines = textwrap.wrap(words, wide, max_lines=fitting, placeholder="…")
    if fitting == 1 and len(words) > wide:  # fill the single line, even if it cuts a word
        lines = [words[: wide - 1] + "…"]
    top = y + (height - len(lines) * LINE) / 2 + LINE - 3
    return [_rect(name, x, y, width, height)] + [_text(x + 5, top + i * LINE, line) for i, line in enumerate(lines)]


def _text(x: float, y: float, words: str, name: str = "") -> str:
    attribute = f' class="{name}"' if name else ""
    return f'<text x="{x:g}" y="{y:g}"{attribute}>{escape(words)}</text>'


def _edge(x: float, y: float, to_x: float, to_y: float) -> str:
    """A curve that starts and ends horizontally."""
    middle = (x + to_x) / 2
    return f'<path class="edge" d="M{x:g} {y:g}C{middle:g} {y:g} {middle:g} {to_y:g} {to_x:g} {to_y:g}"/>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--think_num", type=int, default=4, help="number of thoughts")
    parser.add_argument("--answer_num", type=int, default=4, help="answers per thought")
    parser.add_argument("--record", type=int, default=0, help="index of the record in the demo's training data")
    parser.add_argument("--seed", type=int, default=1, help="seed of the sampled tokens")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "tree.svg")
    args = parser.parse_args()
    args.out.write_text(draw(grow(args.think_num, args.answer_num, args.record, args.seed)), encoding="utf-8")


if __name__ == "__main__":
    main()
