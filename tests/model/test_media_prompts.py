"""Placeholder tokens and media features agree, for pictures and videos, in prompts and in completions."""

import pytest
import torch
from picture_cases import noise
from trainer_cases import thought_tree

from model.registry import module_for
from trainer.engines.sampling import Sampling
from trainer.engines.transformers_engine import TransformersEngine
from trainer.logprobs.forward import RowForward
from trainer.policies.thought_answer import ThoughtAnswerPolicy
from trainer.rollout import Rollout


class Clip(list):
    """Frames of a video with their rate."""

    fps = 2.0


@pytest.fixture(scope="module")
def module(tiny_model_dir):
    module = module_for(tiny_model_dir)
    module.load_processor(str(tiny_model_dir))
    return module


class TestPlaceholders:
    @pytest.fixture(scope="class")
    def prompt(self, module):
        turn = [{"role": "user", "content": [{"type": "image", "index": 0}, {"type": "text", "text": "Where?"}]}]
        return module.encode(turn, [noise(0, 640, 480)])

    @pytest.mark.parametrize("wrong", [-391, -1, 1, 2])
    def test_one_too_many_or_too_few_is_reported_by_row(self, module, prompt, wrong):
        pad = module.config.image_token_id
        ids = [*prompt.ids, *[pad] * max(wrong, 0)]
        for _ in range(max(-wrong, 0)):
            ids.remove(pad)
        with pytest.raises(ValueError, match=rf"record 'r7', row 3 has {391 + wrong} image placeholder tokens for 391"):
            module.check_media(ids, prompt.media, "record 'r7', row 3")

    @pytest.mark.parametrize("leaf", [[5, 6], [5, "pad"], ["pad"]])
    def test_a_sampled_one_stops_the_training_pass_by_record(self, module, prompt, leaf):
        """Behind the sampler's mask a second look, before any forward."""
        pad = module.config.image_token_id
        tree = thought_tree("r7", [[7], [8]], [[[5], [6]], [[5], [pad if t == "pad" else t for t in leaf]]])
        forward = RowForward(module, None, "off", None)
        if "pad" not in leaf:
            return forward.start(Rollout.from_trees([prompt], [tree], 4))
        sentence = "record 'r7' with its completions has 392 image placeholder tokens for 391 image features"
        with pytest.raises(ValueError, match=sentence):
            forward.start(Rollout.from_trees([prompt], [tree], 4))

    @pytest.mark.parametrize("kind", ["image", "video"])
    def test_a_placeholder_without_any_medium_is_reported(self, module, kind):
        token = module.config.image_token_id if kind == "image" else module.config.video_token_id
        with pytest.raises(ValueError, match=f"row 1 has 1 {kind} placeholder tokens for 0 {kind} features of 0"):
            module.check_media([5, token, 6], {}, "row 1")

    @pytest.mark.parametrize("token", ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"])
    @pytest.mark.parametrize("role", ["system", "user"])
    def test_no_text_may_write_one(self, module, token, role):
        turns = [{"role": role, "content": f"What is {token}?"}, {"role": "user", "content": "Well?"}]
        with pytest.raises(ValueError, match=rf"the {role} turn contains <\|{token[2:-2]}\|>"):
            module.encode(turns)

    def test_a_literal_tag_of_the_manifest_is_only_text(self, module):
        turn = [
            {"role": "user", "content": [{"type": "image", "index": 0}, {"type": "text", "text": "the tag <image>"}]}
        ]
        prompt = module.encode(turn, [noise(0, 56, 56)])
        assert prompt.ids.count(module.config.vision_start_token_id) == 1
        assert "the tag <image>" in module.tokenizer.decode(prompt.ids)


class TestVideo:
    @pytest.mark.parametrize("frames", [1, 2, 5, 6])
    def test_features_and_placeholders_agree_for_any_number_of_frames(self, module, frames):
        turn = [{"role": "user", "content": [{"type": "video", "index": 0}, {"type": "text", "text": "What moves?"}]}]
        prompt = module.encode(turn, videos=[Clip(noise(i, 84, 56) for i in range(frames))])
        pairs = (frames + 1) // 2
        assert prompt.media["video_grid_thw"].tolist() == [[pairs, 4, 6]]
        assert prompt.ids.count(module.config.video_token_id) == 6 * pairs
        assert prompt.media["pixel_values_videos"].shape[0] == 24 * pairs

    def test_every_leaf_of_a_tree_on_a_video_has_the_log_probs_of_a_dense_pass(self, tiny_vlm):
        """K x M leaves of a clip, beside a picture and a text: the video is encoded once and nobody takes another's."""
        module, model, processor = tiny_vlm
        kinds = {"video": [{"type": "video", "index": 0}], "image": [{"type": "image", "index": 0}], "text": []}
        media = {
            "video": {"videos": [Clip(noise(i, 84, 56) for i in range(6))]},
            "image": {"images": [noise(9, 84, 84)]},
        }
        prompts = [
            module.encode(
                [{"role": "user", "content": [*parts, {"type": "text", "text": "Go."}]}], **media.get(kind, {})
            )
            for kind, parts in kinds.items()
        ]
        forbidden = module.forbidden_token_ids(processor)
        engine = TransformersEngine(
            model, module, module.tokenizer, Sampling(), module.eos_token_ids(processor), forbidden
        )
        torch.manual_seed(0)
        trees = engine.grow(prompts, ThoughtAnswerPolicy(3, 2, 36, 8, "</think>"), list(kinds))
        assert len(trees[0].leaves()) > 3, "some thought of the video row closed"
        for prompt, tree in zip(prompts, trees, strict=True):
            for leaf in tree.leaves():
                tokens = tree.tokens(leaf)
                ids = torch.tensor([prompt.ids + tokens])
                after = (prompt.next_position + torch.arange(len(tokens))).expand(3, -1)
                positions = torch.cat([prompt.position_ids, after], dim=-1)[:, None]
                with torch.no_grad():
                    logits = model(input_ids=ids, position_ids=positions, **module.batch_media([prompt])).logits[0]
                logits[:, forbidden] = -torch.inf
                expected = logits[len(prompt.ids) - 1 : -1].log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])
                got = torch.tensor([value for i in tree.path(leaf) for value in tree.nodes[i].logprobs])
                torch.testing.assert_close(got, expected[:, 0], atol=1e-4, rtol=0)
