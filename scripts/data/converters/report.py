"""What became of the records of a source, as numbers and reasons."""

from collections import Counter

from equal_problems import grouped

LISTED = 20  # kinds of refusals printed; the report file has every refusal


class Report:
    """Counts of kept, changed, refused and skipped records."""

    def __init__(self):
        self.kept, self.touched, self.skipped = 0, 0, 0
        self.changes: Counter[str] = Counter()
        self.carried: Counter[str] = Counter()
        self.refused: list[str] = []
        self.made_ids: Counter[str] = Counter()
        self.first_skipped: dict = {}

    def refuse(self, problem: str) -> None:
        self.refused.append(problem.encode("utf-8", "backslashreplace").decode())  # half a surrogate cannot be printed

    def as_dict(self) -> dict:
        numbers = {"records": self.kept + len(self.refused) + self.skipped, "kept": self.kept}
        numbers |= {"changed": self.touched, "refused": len(self.refused), "skipped": self.skipped}
        return numbers | {
            "changes": dict(self.changes),
            "carried_over": dict(self.carried),
            "ids_made": self.made_ids.total(),
            "refusals": self.refused,
        }

    def print(self, where: dict) -> None:
        print(f"kept {self.kept} records, {self.touched} of them changed; refused {len(self.refused)}")
        if self.skipped:
            print(f"left out by --where: {self.skipped}")
        if self.skipped and not self.kept and not self.refused:
            found = ", ".join(f"{key}={self.first_skipped.get(key)}" for key in where)
            print(f"  the first of them has {found}; its keys are {', '.join(map(str, self.first_skipped))}")
        for change, count in self.changes.most_common():
            print(f"  changed  {count:>7}  {change}")
        for key, count in self.carried.most_common():
            print(f"  carried  {count:>7}  key {key}, not part of the format")
        if self.made_ids:
            print(f"  made     {self.made_ids.total():>7}  ids, from the questions and their pictures")
        kinds = grouped(self.refused)
        for problem in kinds[:LISTED]:
            print(f"  refused  {problem}")
        if len(kinds) > LISTED:
            print(f"  refused  and {len(kinds) - LISTED} more kinds, see the report")
        if not self.kept:
            print("nothing was kept, so nothing is written")
