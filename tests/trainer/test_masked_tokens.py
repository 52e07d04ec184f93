"""Tokens that are not trained on: observations never reach an exp, and an answer that was cut keeps its thought."""

import pytest
import torch
from trainer_cases import script, text_trainer, thought_tree

from trainer.tree import PROMPT, Node, Tree


class Shifted:
    """A log-prob pass whose policy has moved far away from its reference on observations, and nowhere else."""

    def __init__(self, forward, rollout_of, by: float):
        self.forward, self.rollout_of, self.by = forward, rollout_of, by

    def __getattr__(self, name):
        return getattr(self.forward, name)

    def __call__(self, model, bare, rows, ids, mask, width):
        logps, entropies = self.forward(model, bare, rows, ids, mask, width)
        if torch.is_grad_enabled():
            observed = [self.rollout_of().per_token(row, lambda node: float(not node.sampled)) for row in rows]
            padded = torch.tensor([values + [0.0] * (width - len(values)) for values in observed])
            logps = logps - self.by * padded
        return logps, entropies


def turns(prompt_id, policy) -> Tree:
    """Four chains of a turn, an observation and a turn."""
    tree = Tree(prompt_id)
    for i in range(4):
        turn = tree.add(Node(PROMPT, "step", [301 + i, 302], logprobs=[-1.0] * 2))
        seen = tree.add(Node(turn, "observation", [310, 311, 312], sampled=False))
        tree.add(Node(seen, "step", [320 + i], logprobs=[-1.0]))
    return tree


@pytest.mark.parametrize("sharing", ["on", "off"])
def test_an_observation_far_from_the_reference_changes_no_loss(tiny_text, tmp_path, monkeypatch, sharing):
    script(monkeypatch, turns)
    gradients = []
    for by in (0.0, 200.0):
        changes = {"method": "grpo", "num_generations": 4, "max_completion_length": 8, "prefix_sharing": sharing}
        trainer = text_trainer(tiny_text, tmp_path / str(by), beta=0.02, perturb=0.01, max_grad_norm=1.0, **changes)
        trainer.forward = Shifted(trainer.forward, lambda trainer=trainer: trainer.generation.rollout, by)
        trainer.train()
        gradients.append(trainer.state.log_history[0]["grad_norm"])
        assert trainer.state.log_history[0]["faults/non_finite"] == 0
    assert gradients[0] > 0
    assert gradients[1] == pytest.approx(gradients[0], rel=1e-5)


class TestTruncatedAnswers:
    """Two thoughts that closed; of the first one's answers one was cut, of the second's both; an unclosed third."""

    def masks(self, tiny_text, folder, monkeypatch, **changes):
        end = tiny_text[2].eos_token_id
        answers = [[[304, end], [305, 306]], [[307], [308]], []]
        script(monkeypatch, lambda prompt_id, policy: thought_tree(prompt_id, [[301, 302], [303], [309, 310]], answers))
        trainer = text_trainer(tiny_text, folder, rows=1, think_num=3, mask_truncated_completions=True, **changes)
        trainer.train()
        (batch,) = trainer._buffered_inputs
        trained = batch["completion_mask"] * batch["tool_mask"]
        return trained * batch["thought_mask"], trained * (1 - batch["thought_mask"]), batch

    def test_a_closed_thought_counts_once_whatever_becomes_of_its_answers(self, tiny_text, tmp_path, monkeypatch):
        thoughts, answers, batch = self.masks(tiny_text, tmp_path, monkeypatch)
        assert thoughts.sum(dim=1).tolist() == [2, 2, 1, 1, 0, 0]
        assert answers.sum(dim=1).tolist() == [2, 0, 0, 0, 0, 0]
        assert (batch["thought_items"], batch["answer_items"]) == (6, 2)

    def test_its_gradient_is_that_of_a_run_in_which_nothing_is_masked(self, tiny_text, tmp_path, monkeypatch):
        """With answers that all have the advantage 0, the thoughts' term is all there is."""
        end, gradients = tiny_text[2].eos_token_id, []
        answers = [[[304, end], [305, 306]], [[307, end], [308]]]
        script(monkeypatch, lambda prompt_id, policy: thought_tree(prompt_id, [[301, 302], [303]], answers))
        for masked in (False, True):
            changes = {"rows": 1, "mask_truncated_completions": masked, "loss_type": "dapo", "max_grad_norm": 1.0}
            trainer = text_trainer(tiny_text, tmp_path / str(masked), **changes)
            original = trainer._micro_batches

            def without_answers(output, original=original):
                output["answer_advantages"] = torch.zeros_like(output["answer_advantages"])
                return original(output)

            trainer._micro_batches = without_answers
            trainer.train()
            gradients.append(trainer.state.log_history[0]["grad_norm"])
        assert gradients[0] > 0
        assert gradients[1] == pytest.approx(gradients[0], rel=1e-5)

    def test_with_one_answer_per_thought_a_cut_row_is_left_out_as_in_grpo(self, tiny_text, tmp_path, monkeypatch):
        end = tiny_text[2].eos_token_id
        answers = [[[304, end]], [[305, 306]]]
        script(monkeypatch, lambda prompt_id, policy: thought_tree(prompt_id, [[301, 302], [303]], answers))
        trainer = text_trainer(tiny_text, tmp_path, rows=1, answer_num=1, mask_truncated_completions=True)
        trainer.train()
        (batch,) = trainer._buffered_inputs
        assert (batch["completion_mask"] * batch["tool_mask"]).sum(dim=1).tolist() == [4, 0]
