"""The frame in which a model writes coordinates: by family, or as given."""

import pytest
from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from model.coordinates import COORDINATE_FRAMES
from model.loading import coordinate_frame_of, load_policy
from model.registry import module_for
from task.errors import UserError
from task.task_loader import MODEL_FRAMES, load_tasks
from trainer.arguments import check_coordinates


def test_the_table_names_families_of_transformers_and_frames_of_tasks():
    assert set(COORDINATE_FRAMES) <= set(CONFIG_MAPPING_NAMES)
    assert set(COORDINATE_FRAMES.values()) <= set(MODEL_FRAMES)


def test_the_family_names_the_frame_and_the_flag_another(tiny_model_dir, tiny_text_dir):
    assert module_for(tiny_model_dir).coordinate_frame == "processed"
    assert coordinate_frame_of(str(tiny_model_dir)) == "processed"
    assert coordinate_frame_of(str(tiny_model_dir), given="norm1000") == "norm1000"
    assert module_for(tiny_text_dir).coordinate_frame == "processed", "no picture, and the default of the tasks"


def test_a_family_without_an_entry_has_no_frame(tiny_model_dir, monkeypatch):
    monkeypatch.delitem(COORDINATE_FRAMES, "qwen2_5_vl")
    assert module_for(AutoConfig.from_pretrained(tiny_model_dir)).coordinate_frame is None
    assert coordinate_frame_of(str(tiny_model_dir)) is None


def test_tasks_loaded_for_another_frame_than_the_models_are_refused(tiny_model_dir):
    module = load_policy(str(tiny_model_dir), dtype="float32", coordinate_frame="norm1000")[0]
    with pytest.raises(UserError, match=r"the frame processed, .* in norm1000: load them by load_tasks\(coordinate"):
        check_coordinates(load_tasks(), module)
    check_coordinates(load_tasks(coordinate_frame="norm1000"), module)
    check_coordinates({name: task for name, task in load_tasks().items() if task.config["frame"] == "none"}, module)
