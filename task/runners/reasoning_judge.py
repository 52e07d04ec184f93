"""The score of an answer to a reasoning-gym puzzle, by the puzzle's own verifier. Runs in the worker of judge.py."""

import functools

import reasoning_gym

WARM_UP = [("chain_sum", {"question": "1 + 1", "answer": "2", "metadata": {}}, "2")]
verifier = functools.cache(reasoning_gym.get_score_answer_fn)


def judge(dataset: str, entry: dict, answer: str) -> float | str:
    """A score from 0 to 1; "no gold" if the verifier cannot read the entry."""
    score = verifier(dataset)
    try:
        return float(score(answer, entry))
    except (MemoryError, RecursionError):
        raise
    except Exception:
        # The answer's fault, unless the entry's own answer fails too.
        try:
            score(entry["answer"], entry)
        except Exception:
            return "no gold"
        return 0.0
