"""A probe sampled from a policy: a few thoughts per prompt with a few answers each, scored by the tasks."""

from __future__ import annotations

import time
from functools import partial

import numpy as np
import torch

from dataset.dataset_grpo import build_dataset, read_row
from model.loading import coordinate_frame_of, load_policy
from task.errors import UserError
from task.own_tasks import use_task_dir
from task.task_loader import load_tasks
from trainer.budget.probe import Probe, rewards_by_thought, tokens_per_node, variances
from trainer.engines.sampling import Sampling
from trainer.engines.transformers_engine import TransformersEngine
from trainer.policies.thought_answer import ThoughtAnswerPolicy
from trainer.prompts import PromptEncoder

PROMPTS, THOUGHTS, ANSWERS = 16, 8, 8


def probe_policy(script, args, model_args, locate=str, unit: str = "tokens") -> Probe:
    """The probe of the policy that a run with these arguments would start from, on prompts of its data set.

    Args:
        script, args, model_args: as train.py parses them.
        locate: path as given -> path to open.
        unit: of the costs: tokens, or seconds of sampling. Seconds of an answer are those by which the trees with
            ANSWERS answers per thought take longer than the trees with one, divided by the number of further answers.
    """
    if not script.dataset_name:
        raise UserError("no training data to probe: give --dataset_name MANIFEST.yaml, or a record file")
    use_task_dir(script.task_dir)
    name = locate(model_args.model_name_or_path)
    source = {"revision": model_args.model_revision, "trust_remote_code": args.trust_remote_code}
    frame = coordinate_frame_of(name, given=model_args.coordinate_frame, **source)
    tasks = load_tasks(thought_end=args.thought_end, coordinate_frame=frame)
    manifests = [locate(path) for path in script.dataset_name]
    rows = build_dataset(manifests, tasks, image_root=script.image_root, on_bad_media=args.on_bad_media)
    chosen = np.random.default_rng(args.seed).permutation(len(rows))[:PROMPTS]
    rows = [rows[int(i)] for i in chosen]
    engine, module = _engine(args, model_args, frame, locate)
    encoder = PromptEncoder(module, args.max_prompt_length, args.on_long_prompt, args.on_bad_media)
    pairs = [(encoder.encode(row), read_row(row)) for row in rows]
    prompts, records = zip(*(pair for pair in pairs if pair[0] is not None), strict=True)

    def grow(answers: int):
        lengths = (args.max_thought_length, args.max_answer_length)
        policy = ThoughtAnswerPolicy(THOUGHTS, answers, *lengths, args.thought_end)
        torch.manual_seed(args.seed)
        begun = time.perf_counter()
        trees = engine.grow(list(prompts), policy, [record["id"] for record in records])
        return trees, time.perf_counter() - begun

    trees, seconds = grow(ANSWERS)
    decode = partial(module.completion_texts, eos_ids=engine.eos_ids)
    weights = args.reward_weights or [1.0, 1.0]
    scored = zip(trees, prompts, records, strict=True)
    found = variances([rewards_by_thought(*one, tasks, weights, decode) for one in scored])
    if found is None:
        raise UserError(
            f"the probe of {len(trees)} prompts found none with two closed thoughts and two scored answers after each: "
            "give think_num and answer_num as numbers, or warm-start the model"
        )
    costs = tokens_per_node(trees)
    if unit == "seconds":
        answers = sum(node.kind == "answer" for tree in trees for node in tree.nodes) * (1 - 1 / ANSWERS)
        _, alone = grow(1)
        answer = max(seconds - alone, 1e-9) / answers
        costs = max(alone / (len(trees) * THOUGHTS) - answer, 1e-9), answer
    return Probe(*found, *costs)


def _engine(args, model_args, frame: str | None, locate):
    dtype = model_args.resolve_dtype(args.bf16)
    quantised = model_args.quantization(dtype)
    module, model, processor = load_policy(
        locate(model_args.model_name_or_path),
        adapter_path=model_args.adapter_path and locate(model_args.adapter_path),
        dtype=dtype,
        quantization_config=quantised,
        **model_args.loading(frame, args.chat_template_kwargs, args.trust_remote_code),
    )
    module.processor = processor
    sampling = Sampling(args.temperature, args.top_k or 0, args.top_p, args.min_p or 0.0, args.repetition_penalty)
    ends, forbidden = module.eos_token_ids(processor), module.forbidden_token_ids(processor)
    tokenizer = getattr(processor, "tokenizer", processor)
    if quantised is None:  # bitsandbytes places its models itself
        model = model.to(args.device)
    return TransformersEngine(model.eval(), module, tokenizer, sampling, ends, forbidden, args.rollout_prompts), module
