"""Second stage of the warm start: the text model learns to read positions from the picture.

The prompt is the picture alone; the answer lists everything on the table, in random order and without noise: "The red
cube at [31, 70]. Gripper at [12, 8]." Only the digits count in the loss. In the full task each position occurs once,
with noise and after a long prompt; with that loss alone the text model ignored the picture for 600 steps.
"""

import time

import numpy as np
import torch

from scripts.demo import make_scenes

NAME_SEED = 5
TURN = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|><|im_end|>\n<|im_start|>assistant\n"


def sentences(scene):
    """Names and positions of all things, in pixels of the processed picture."""
    named = [("Gripper", scene.gripper)] + [("Block", block) for block in scene.blocks]
    named += [(f"The {colour} {shape}", marker) for marker, colour, shape in scene.objects]
    return [f" {name} at [{round(m.x * scene.scale[0])}, {round(m.y * scene.scale[1])}]." for name, m in named]


def optimizer_and_schedule(model, lr, steps):
    """AdamW with a fifth of lr for the vision tower, a short warm-up and cosine decay to 0."""
    vision = [weight for name, weight in model.named_parameters() if ".visual." in name]
    language = [weight for name, weight in model.named_parameters() if ".visual." not in name]
    optimizer = torch.optim.AdamW([{"params": vision}, {"params": language}], betas=(0.9, 0.98), weight_decay=0.01)
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, [lr / 5, lr], total_steps=steps, pct_start=0.05)


def train_reader(model, processor, steps, batch_size, lr, seed):
    """Trains the whole model in place; prints the share of correct digits under teacher forcing."""
    optimizer, schedule = optimizer_and_schedule(model, lr, steps)
    digits = torch.tensor(processor.tokenizer.convert_tokens_to_ids(list("0123456789")))
    rng, began, record = np.random.default_rng([NAME_SEED, seed]), time.time(), []
    for step in range(steps):
        scenes = [make_scenes.make_scene(NAME_SEED + 1000 * seed, step * batch_size + i) for i in range(batch_size)]
        texts = [TURN + "".join(rng.permutation(sentences(scene))) for scene in scenes]
        pictures = [make_scenes.draw(scene) for scene in scenes]
        batch = processor(text=texts, images=pictures, padding=True, padding_side="right", return_tensors="pt")
        labels = batch["input_ids"].masked_fill(~torch.isin(batch["input_ids"], digits), -100)
        output = model(**batch, labels=labels)
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        counted = labels[:, 1:] != -100
        right = (output.logits.detach()[:, :-1].argmax(-1) == labels[:, 1:])[counted].float().mean().item()
        record.append((output.loss.item(), right))
        if (step + 1) % 50 == 0:
            loss, right = np.mean(record[-50:], axis=0)
            spent = time.time() - began
            print(f"name {step + 1}/{steps}  loss {loss:.3f}  digits right {right:.3f}  {spent:.0f} s", flush=True)
