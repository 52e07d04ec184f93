"""The loss of a micro-batch: TRL's, on our rows, with shared tokens computed once."""

# B rows of a process, T completion tokens, S micro-batches of a generation

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager

import torch

from trainer.logprobs.micro_batches import take_rows, token_counts
from trainer.logs.metrics import sampler_gap

PARTS = ("thought", "answer")


class TreeObjective:
    """The part of GRPOMATrainer that trains on a batch; stands before `trl.GRPOTrainer` in the order of classes."""

    def _prepare_inputs(self, generation_batch):
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        generate_every = self.args.steps_per_generation * self.num_iterations
        if self._buffered_inputs is None:  # a run may go on from the last step of a shorter one, in mid-generation
            self._step = self.state.global_step * self.args.gradient_accumulation_steps % generate_every
        if self._step % generate_every == 0 or self._buffered_inputs is None:
            self._buffered_inputs = self._micro_batches(self._generate_and_score_completions(generation_batch))
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    def _micro_batches(self, output: dict) -> list[dict]:
        """S micro-batches of whole trees (`_partition`), each with the token counts of its own optimiser step."""
        steps, accumulation = self.args.steps_per_generation, self.args.gradient_accumulation_steps
        batches = [take_rows(output, rows) for rows in self._partition]
        for start in range(0, steps, accumulation):
            part = batches[start : start + accumulation]
            local = torch.stack([token_counts(batch) for batch in part]).sum(dim=0)
            # TRL divides by num_items_in_batch * accumulation / steps: it means a whole generation
            counts = self.accelerator.reduce(local, reduction="sum") * steps / accumulation
            for batch in part:
                batch["num_items_in_batch"], batch["thought_items"], batch["answer_items"] = counts
        return batches

    def _compute_loss(self, model, inputs):
        """TRL's loss, or the sum of TRL's losses of the two parts, on one forward."""
        self._active_rows = inputs["row_ids"].tolist()
        self._memo = ()
        try:
            if self._batch_split:
                loss = sum(self._part_loss(model, inputs, name) for name in PARTS)
            elif self.importance_sampling_level == "sequence" and self._by_token(inputs):
                loss = self._sequence_ratio_loss(model, inputs)
            else:
                loss = super()._compute_loss(model, inputs)
            first = self.args.gradient_accumulation_steps  # later passes are of a policy that has moved on
            if self._step % (self.args.steps_per_generation * self.num_iterations) < first:
                mask = inputs["completion_mask"] * inputs["tool_mask"]
                self._sampler_gap.append(sampler_gap(self._memo[0].detach(), inputs["sampling_per_token_logps"], mask))
        finally:
            self._memo = None
        return loss

    def _by_token(self, inputs) -> bool:
        """Whether the tokens of a row differ in advantage or weight."""
        return inputs["advantages"].dim() == 2 or self.args.shared_token_weight == "once"

    def _sequence_ratio_loss(self, model, inputs):
        """TRL's token-level loss in which every token of a row has the row's sequence ratio.

        TRL's sequence level has one term a row and would average the advantages of its tokens. GSPO-token
        (arXiv 2507.18071, Eq. 13): the ratio is sg[s_i] * pi / sg[pi], its value s_i, its gradient the token's own. Old
        log-probs of sg[log pi] - log s_i make TRL's token ratio just that.
        """
        logps = self._row_logps(model, inputs).detach()
        if (old := inputs.get("old_per_token_logps")) is not None:  # without, both are the same and s_i is 1
            mask = inputs["completion_mask"] * (inputs["tool_mask"] > 0)
            log_ratio = ((logps - old) * mask).sum(-1) / mask.sum(-1).clamp(min=1)
            inputs = {**inputs, "old_per_token_logps": logps - log_ratio[:, None]}
        self.importance_sampling_level = "token"
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self.importance_sampling_level = "sequence"

    def _row_logps(self, model, inputs) -> torch.Tensor:
        """(B, T) log-probs of the micro-batch by the one forward that its loss will use."""
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        width = inputs["completion_ids"].size(1)
        return self._get_per_token_logps_and_entropies(model, ids, mask, width, compute_entropy=True)[0]

    def _part_loss(self, model, inputs, name: str):
        """TRL's loss over the tokens of one part, with its advantages and its own token count."""
        mask = inputs["thought_mask"] if name == "thought" else 1 - inputs["thought_mask"]
        part = {
            "advantages": inputs[f"{name}_advantages"],
            "tool_mask": inputs["tool_mask"] * mask,
            "num_items_in_batch": inputs[f"{name}_items"],
        }
        with self._metrics_under(name):
            return super()._compute_loss(model, {**inputs, **part})

    @contextmanager
    def _metrics_under(self, prefix: str):
        """What TRL logs inside the block is filed under `prefix/`."""
        outer = self._metrics["train"]
        inner = self._metrics["train"] = defaultdict(list)
        try:
            yield
        finally:
            self._metrics["train"] = outer
            for name, values in inner.items():
                outer[f"{prefix}/{name}"].extend(values)

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        """TRL's log-prob pass on our rows: (B, T) log-probs, (B, T) entropies or None, and None (no router loss)."""
        if self._memo:
            return self._memo
        whole = self._active_rows is None  # the generation at once, for the old and the reference log-probs
        batches = self._partition if whole else [self._active_rows]
        back = torch.tensor([row for rows in batches for row in rows], device=input_ids.device).argsort()
        assert len(back) == input_ids.size(0), f"{len(back)} rows are active, {input_ids.size(0)} were asked for"
        bare = self.accelerator.unwrap_model(model)
        parts = []
        for rows in batches:
            here = rows if whole else slice(None)
            arguments = (rows, input_ids[here], attention_mask[here], logits_to_keep)
            with self.accelerator.autocast():
                self._check_sharing(bare, arguments)
                parts.append(self.forward(model, bare, *arguments))
        logps = torch.cat([logps for logps, _ in parts])[back]
        result = (logps, torch.cat([entropies for _, entropies in parts])[back] if compute_entropy else None, None)
        if self._memo is not None:
            self._memo = result
        return result

    def _check_sharing(self, bare, arguments) -> None:
        """Once, on the first rows: packed against dense."""
        if self._sharing_checked or not self.forward.sharing:
            return
        self._sharing_checked = True
        training = bare.training
        bare.eval()  # dropout would make the two differ, and draw random numbers that a resumed run draws once more
        gap = self.forward.check(bare, *arguments)
        bare.train(training)
        if self.accelerator.is_main_process:
            print(f"prefix sharing: packed and dense log-probs differ by at most {gap:.1e}", flush=True)
