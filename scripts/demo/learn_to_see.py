"""First stage of the warm start: the vision tower learns to detect and locate things, before any language training.

A linear head on the tower's merged patches (28 x 28 pixels each) predicts the things whose centre lies in a patch, and
their positions; it is discarded afterwards. With the language loss alone, a tower with random weights had found nothing
after 650 steps of 32 scenes: the text model first learns to make positions up.
"""

import time

import numpy as np
import torch

from scripts.demo import make_scenes

PATCH, BIN, BINS = 28, 4, 36  # pixels per merged patch, pixels per position bin, bins per axis
KINDS = ("gripper", "block", *make_scenes.COLOURS)
SEE_SEED = 4


class Head(torch.nn.Module):
    """Logits per merged patch and kind: whether one is there (P x K), and its bins of x and y (P x K x 2 x BINS)."""

    def __init__(self, width):
        super().__init__()
        self.here = torch.nn.Linear(width, len(KINDS))
        self.place = torch.nn.Linear(width, len(KINDS) * 2 * BINS)

    def forward(self, features):
        return self.here(features), self.place(features).view(-1, len(KINDS), 2, BINS)


def things(scene):
    """[(kind index, x, y)] in original pixels."""
    found = [(0, scene.gripper.x, scene.gripper.y)] + [(1, block.x, block.y) for block in scene.blocks]
    return found + [(KINDS.index(colour), marker.x, marker.y) for marker, colour, _ in scene.objects]


def targets(scenes, grids):
    """(patch row, kind, x bin, y bin) of each thing, over the concatenated patches of all pictures."""
    rows, first = [], 0
    for scene, (_, high, wide) in zip(scenes, grids.tolist(), strict=True):
        columns = wide // 2
        for kind, x, y in things(scene):
            x, y = np.array([x, y]) * scene.scale
            patch = first + int(y // PATCH) * columns + int(x // PATCH)
            rows.append((patch, kind, int(x // BIN), int(y // BIN)))
        first += columns * (high // 2)
    return torch.tensor(rows), first


def train_tower(model, processor, steps, batch_size, lr, seed):
    """Trains the model's vision tower in place; prints how often a thing is found, and located to within a bin."""
    tower = model.model.visual
    head = Head(model.config.vision_config.out_hidden_size)
    optimizer = torch.optim.AdamW([*tower.parameters(), *head.parameters()], lr=lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, pct_start=0.1)
    began, record = time.time(), []
    for step in range(steps):
        scenes = [make_scenes.make_scene(SEE_SEED + 1000 * seed, step * batch_size + i) for i in range(batch_size)]
        pictures = processor.image_processor(images=[make_scenes.draw(s) for s in scenes], return_tensors="pt")
        features = tower(pictures["pixel_values"], grid_thw=pictures["image_grid_thw"]).pooler_output
        here, place = head(torch.cat(list(features)) if isinstance(features, (list, tuple)) else features)
        rows, patches = targets(scenes, pictures["image_grid_thw"])
        assert len(here) == patches
        truth = torch.zeros_like(here)
        truth[rows[:, 0], rows[:, 1]] = 1.0
        at = place[rows[:, 0], rows[:, 1]]  # things x 2 x BINS
        loss = 10 * torch.nn.functional.binary_cross_entropy_with_logits(here, truth)
        loss = loss + torch.nn.functional.cross_entropy(at.flatten(0, 1), rows[:, 2:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(tower.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        found = (here[rows[:, 0], rows[:, 1]] > 0).float().mean().item()
        near = ((at.argmax(-1) - rows[:, 2:]).abs() <= 1).float().mean().item()
        record.append((loss.item(), found, near))
        if (step + 1) % 50 == 0:
            loss_mean, found_mean, near_mean = np.mean(record[-50:], axis=0)
            print(f"see {step + 1}/{steps}  loss {loss_mean:.3f}  found {found_mean:.3f}  near {near_mean:.3f}  "
                  f"{time.time() - began:.0f} s", flush=True)  # fmt: skip
