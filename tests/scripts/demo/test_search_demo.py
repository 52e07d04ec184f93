"""The search demo: facts and questions can be made again and not guessed; the model is small and knows the form."""

import importlib
import json
import random
import re

import pytest
import yaml
from paths import ROOT

from scripts.demo import make_facts, search_demonstrations
from scripts.demo.search_demonstrations import IGNORED, Faults, World

SEARCH = ROOT / "metadata" / "demo" / "search"
TEXT_MODEL = ROOT / "scripts" / "demo" / "tiny_text_model"


def lines(name):
    return [json.loads(line) for line in (SEARCH / name).read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def world():
    return make_facts.make_world(make_facts.SEED)


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TEXT_MODEL)


# ---- facts and questions


def test_shipped_files_are_what_the_generator_makes(world):
    assert lines("corpus.jsonl") == make_facts.documents(world, make_facts.SEED)
    for split, part in world.items():
        made = make_facts.make_records(part, split, make_facts.SEED, make_facts.QUESTIONS[split])
        assert lines(f"{split}.jsonl") == made


def test_two_thousand_facts_in_two_parts_that_share_no_name(world):
    train, test = world["train"], world["test"]
    assert (len(train.facts), len(test.facts)) == (1600, 400)
    assert not set(train.kinds) & set(test.kinds)
    for part in world.values():
        for fact in part.facts.values():
            assert part.kinds[fact.value] == make_facts.RELATIONS[part.kinds[fact.subject]][fact.relation]


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_question_is_answered_by_walking_its_supporting_facts_and_by_nothing_nearer(world, split):
    corpus = {document["text"] for document in lines("corpus.jsonl")}
    records = lines(f"{split}.jsonl")
    assert len({record["question"] for record in records}) == len(records) == 3 * make_facts.QUESTIONS[split]
    for record in records:
        facts = record["supporting_facts"]
        assert len(facts) == record["hops"] and set(facts) <= corpus
        at = re.search(r"(\w+)\?$", record["question"])[1]
        for fact in facts:
            assert record["answer"] != [at] and f" of {at} is " in fact
            at = fact.removesuffix(".").rpartition(" is ")[2]
        assert record["answer"] == [at] and at not in record["question"]


def test_no_held_out_answer_or_question_is_met_in_training(world):
    trained = {name for record in lines("train.jsonl") for name in record["answer"]}
    assert not trained & {name for record in lines("test.jsonl") for name in record["answer"]}
    worlds = [make_facts.make_world(seed)["train"] for seed in range(1000, 1003)]
    facts = {fact.text for part in world.values() for fact in part.facts.values()}
    lessons = [fact.text for part in worlds for fact in part.facts.values()]
    assert sum(text in facts for text in lessons) < 0.01 * len(lessons)


def test_a_right_query_finds_its_fact_and_a_name_alone_does_not_always(world, tmp_path):
    pytest.importorskip("bm25s")
    from task.retrieval.search import make_retriever

    (tmp_path / "corpus.jsonl").write_bytes((SEARCH / "corpus.jsonl").read_bytes())
    retriever = make_retriever(tmp_path / "corpus.jsonl")
    facts = random.Random(0).sample([fact for part in world.values() for fact in part.facts.values()], 200)

    def found(queries):
        shown = retriever.search(queries, 3)
        return [fact.text in [p.text for p in passages] for fact, passages in zip(facts, shown, strict=True)]

    assert all(found([f"{fact.relation} {fact.subject}" for fact in facts]))
    assert 0.7 < sum(found([fact.subject for fact in facts])) / len(facts) < 0.95


# ---- demonstrations


@pytest.fixture(scope="module")
def lesson_world(tmp_path_factory):
    pytest.importorskip("bm25s")
    return World(1000, tmp_path_factory.mktemp("lessons"))


def walks(world, count):
    rng = random.Random(3)
    return [make_facts.random_walk(world.part, 1 + i % 3, rng) for i in range(count)]


def test_a_demonstration_without_faults_is_in_form_and_right(lesson_world):
    from task.agents.text import tag_answer, tag_form

    for facts in walks(lesson_world, 60):
        pieces = search_demonstrations.demonstrate(lesson_world, facts, random.Random(0), Faults(careless=0.3))
        text = "".join(piece for piece, _ in pieces)
        assert tag_form(text, ["search"]) and tag_answer(text) == facts[-1].value
        assert [own for _, own in pieces] == [True, False] * len(facts) + [True]


@pytest.mark.parametrize(
    ("faults", "searches"), [(Faults(guess=1.0), [0, 0, 0]), (Faults(stop=1.0), [1, 1, 1]), (Faults(), [1, 2, 3])]
)
def test_each_fault_does_what_it_says(lesson_world, faults, searches):
    made = [
        search_demonstrations.demonstrate(lesson_world, f, random.Random(0), faults) for f in walks(lesson_world, 3)
    ]
    assert [sum(not own for _, own in pieces) for pieces in made] == searches


def test_haste_reads_the_first_document(lesson_world):
    wrong = 0
    for facts in walks(lesson_world, 30)[::3]:
        pieces = search_demonstrations.demonstrate(lesson_world, facts, random.Random(0), Faults(careless=1, hasty=1))
        first = re.search(r"Doc 1\(Title: \w+\) (.+)\n", pieces[1][0])[1]
        assert first in pieces[2][0] and f"<search> {facts[0].subject}</search>" in pieces[0][0]
        wrong += first != facts[0].text
    assert wrong >= 3


def test_only_what_the_teacher_writes_is_learnt(lesson_world, tokenizer):
    ids, labels = search_demonstrations.conversation(tokenizer, lesson_world, random.Random(5), Faults(), bare=False)
    learnt = tokenizer.decode([token for token in labels if token != IGNORED])
    assert len(ids) == len(labels) and "<think>" in learnt and "Doc 1" in tokenizer.decode(ids)
    assert "Doc" not in learnt and "information" not in learnt and "Question" not in learnt


# ---- the model


def test_a_name_is_two_tokens_and_a_tag_one(tokenizer):
    for first in make_facts.FIRST:
        for second in make_facts.SECOND:
            assert len(tokenizer(f" {first}{second}")["input_ids"]) == 2
    for tag in ("think", "search", "information", "answer"):
        assert len(tokenizer(f"<{tag}></{tag}>")["input_ids"]) == 2


def test_the_shipped_tokenizer_is_what_the_script_builds(tokenizer):
    from scripts.demo import make_tiny_text_model

    built = make_tiny_text_model.build_tokenizer()
    text = "What is the home of the mayor of Balbak?<|im_end|>\n<think> I need Zürich."
    assert built.get_vocab() == tokenizer.get_vocab() and built.chat_template == tokenizer.chat_template
    assert built(text)["input_ids"] == tokenizer(text)["input_ids"]


def test_the_shipped_model_is_a_small_qwen2(one_thread):
    from transformers import Qwen2ForCausalLM

    model = Qwen2ForCausalLM.from_pretrained(TEXT_MODEL)
    assert sum(p.numel() for p in model.parameters()) < 5_000_000
    assert model.config.hidden_size // model.config.num_attention_heads in (32, 64)
    assert sum(path.stat().st_size for path in TEXT_MODEL.iterdir()) < 4_000_000


def test_the_shipped_model_searches_and_leaves_room_to_learn(one_thread):
    pytest.importorskip("bm25s")
    from scripts.demo import learn_to_search

    metrics = learn_to_search.measure(TEXT_MODEL, 1.0, 60)
    assert metrics["answered_share"] > 0.9 and metrics["tool_calls"] > 1
    assert 0.2 < metrics["em"] < 0.7


# ---- the comparison of methods


def test_four_chains_are_compared_with_two_trees_of_three_leaves_on_as_many_prompts(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "lab"))
    module = importlib.import_module("comparison_lines")
    recipe = yaml.safe_load((ROOT / "config/recipes/tree_grpo_demo.yaml").read_text())
    chains = module.own_line(["chains", "tree_grpo", "tree_num=4", "expand_num=0", "advantage=inter"])
    found = [module.recipe_for(line, recipe, None)[1] for line in (chains, module.line_of("tree_grpo"))]
    assert [one["per_device_train_batch_size"] for one in found] == [16 * 4, 16 * 6]
