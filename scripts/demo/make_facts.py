"""Makes the search demo: 2,000 facts about invented people, companies, towns and so on, and questions on them.

    python scripts/demo/make_facts.py        # rewrites metadata/demo/search byte for byte

A fact is one document, `{"title": "Balvin", "text": "The founder of Balvin is Dordan."}`. A question chains one to
three facts ("What is the country of the birthplace of the founder of Balvin?"); its names are invented, so only the
documents can answer it. The world has two parts without common names or facts: training questions use the larger one
(1,600 facts), held-out questions the smaller one (400). The corpus has both. Everything is a function of the seed.
"""

import argparse
import json
import random
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "metadata" / "demo" / "search"
SEED = 1
RELATIONS = {  # of each kind of thing -> kind of the value
    "company": {"founder": "person", "owner": "person", "seat": "town"},
    "person": {"birthplace": "town", "home": "town", "employer": "company", "teacher": "person"},
    "town": {"country": "country", "river": "river", "mayor": "person"},
    "river": {"source": "town", "mouth": "town"},
    "country": {"capital": "town", "president": "person"},
}
PARTS = {  # things of each kind: 1,600 and 400 facts
    "train": {"company": 120, "person": 200, "town": 120, "river": 24, "country": 16},
    "test": {"company": 30, "person": 50, "town": 30, "river": 6, "country": 4},
}
QUESTIONS = {"train": 300, "test": 100}  # per number of hops
HOPS = (1, 2, 3)
# A name is two syllables, each a token of the demo model: only their combination is new in a new name.
FIRST = [onset + rhyme for onset in "BDFGHKLMNPRSTVZ" for rhyme in ("al", "ir", "ov")][:40]
SECOND = [onset + rhyme for onset in "bdgkmptv" for rhyme in ("ak", "em", "in", "on", "ut")]


@dataclass(frozen=True)
class Fact:
    """The `relation` of `subject` is `value`."""

    subject: str
    relation: str
    value: str

    @property
    def text(self) -> str:
        return f"The {self.relation} of {self.subject} is {self.value}."


@dataclass(frozen=True)
class Part:
    """One closed part of a world: the kind of each thing, and its facts by (subject, relation)."""

    kinds: dict[str, str]
    facts: dict[tuple[str, str], Fact]


def make_world(seed: int, parts: dict[str, dict[str, int]] = PARTS) -> dict[str, Part]:
    """The parts of the world of a seed; names are unique over all of them, and no fact links two of them."""
    rng = random.Random(f"world {seed}")
    names = [first + second for first in FIRST for second in SECOND]
    rng.shuffle(names)
    world = {}
    for part, counts in parts.items():
        kinds = {names.pop(): kind for kind, count in counts.items() for _ in range(count)}
        of_kind = {kind: [name for name in kinds if kinds[name] == kind] for kind in counts}
        facts = {}
        for subject, kind in kinds.items():
            for relation, value_kind in RELATIONS[kind].items():
                value = rng.choice([name for name in of_kind[value_kind] if name != subject])
                facts[subject, relation] = Fact(subject, relation, value)
        world[part] = Part(kinds, facts)
    return world


def walk(part: Part, start: str, relations: tuple[str, ...]) -> list[Fact]:
    """The facts along the path from `start`, one per relation."""
    facts = []
    for relation in relations:
        facts.append(part.facts[start, relation])
        start = facts[-1].value
    return facts


def random_walk(part: Part, hops: int, rng: random.Random) -> list[Fact]:
    """A chain of `hops` facts that repeats no relation and no thing: the answer does not occur earlier on the path."""
    while True:
        at = rng.choice(list(part.kinds))
        facts, seen = [], [at]
        for _ in range(hops):
            relation = rng.choice(list(RELATIONS[part.kinds[at]]))
            facts.append(part.facts[at, relation])
            at = facts[-1].value
            seen.append(at)
        relations = [fact.relation for fact in facts]
        if len(set(seen)) == len(seen) and len(set(relations)) == hops:
            return facts


def question_of(facts: list[Fact]) -> str:
    """The question whose answer is the last fact's value.

    >>> question_of([Fact("Balvin", "founder", "Dordan"), Fact("Dordan", "home", "Kirtut")])
    'What is the home of the founder of Balvin?'
    """
    who = facts[-1].relation in ("founder", "owner", "teacher", "mayor", "president")
    way = " of ".join(f"the {fact.relation}" for fact in reversed(facts))
    return f"{'Who' if who else 'What'} is {way} of {facts[0].subject}?"


def make_records(part: Part, split: str, seed: int, count: int) -> list[dict]:
    """`count` different questions per number of hops, shuffled."""
    rng = random.Random(f"questions {split} {seed}")
    records = {}
    for hops in HOPS:
        wanted = len(records) + count
        while len(records) < wanted:
            facts = random_walk(part, hops, rng)
            question = question_of(facts)
            records[question] = {
                "question_type": "search_qa",
                "question": question,
                "answer": [facts[-1].value],
                "hops": hops,
                "supporting_facts": [fact.text for fact in facts],
            }
    mixed = list(records.values())
    rng.shuffle(mixed)
    return [{"id": f"search-{split}-{index:04}", **record} for index, record in enumerate(mixed)]


def documents(world: dict[str, Part], seed: int) -> list[dict]:
    """The corpus: one document per fact, in random order."""
    facts = [fact for part in world.values() for fact in part.facts.values()]
    random.Random(f"corpus {seed}").shuffle(facts)
    return [{"id": str(index), "title": fact.subject, "text": fact.text} for index, fact in enumerate(facts)]


def write_lines(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder to write")
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args()
    world = make_world(args.seed)
    write_lines(args.out / "corpus.jsonl", documents(world, args.seed))
    for split, part in world.items():
        write_lines(args.out / f"{split}.jsonl", make_records(part, split, args.seed, QUESTIONS[split]))
        manifest = f"datasets:\n- json_path: {args.out.name}/{split}.jsonl\n  data_modality: text\n"
        (args.out.parent / f"{args.out.name}_{split}.yaml").write_text(manifest, encoding="utf-8")
    print(f"{sum(len(part.facts) for part in world.values()):,} facts written to {args.out}")


if __name__ == "__main__":
    main()
