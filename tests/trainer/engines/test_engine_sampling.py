"""The sampler: what is drawn, how often, and which distribution its log-probabilities belong to."""

import math

import pytest
import torch
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from trainer.engines.sampling import Sampler, Sampling, draw, read


@pytest.fixture(autouse=True)
def seeded(one_thread):
    torch.manual_seed(0)


def test_log_probs_and_entropies_are_those_of_the_distribution_drawn_from():
    logits = torch.randn(5, 40)
    tokens, logprobs, entropies = Sampler(Sampling(temperature=0.7), forbidden_ids=[3, 30])(logits)
    for row in range(5):
        kept = [i for i in range(40) if i not in (3, 30)]
        weights = {i: math.exp(logits[row, i].item() / 0.7) for i in kept}
        probs = {i: weight / sum(weights.values()) for i, weight in weights.items()}
        assert logprobs[row].item() == pytest.approx(math.log(probs[tokens[row].item()]), abs=1e-5)
        assert entropies[row].item() == pytest.approx(-sum(p * math.log(p) for p in probs.values()), abs=1e-5)


def test_low_precision_logits_are_normalised_in_float32():
    logits = torch.randn(3, 1000).bfloat16()
    tokens, logprobs, _ = Sampler(Sampling())(logits)
    wanted = logits.double().log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    assert logprobs.dtype == torch.float32
    torch.testing.assert_close(logprobs.double(), wanted, atol=1e-5, rtol=0)


def test_forbidden_ids_are_never_drawn_however_likely():
    logits = torch.zeros(2000, 8)
    logits[:, [2, 5]] = 50.0
    tokens, logprobs, entropies = Sampler(Sampling(), forbidden_ids=[2, 5])(logits)
    assert set(tokens.tolist()) == {0, 1, 3, 4, 6, 7}
    assert torch.allclose(logprobs, torch.tensor(-math.log(6)))
    assert torch.allclose(entropies, torch.tensor(math.log(6)))


def test_temperature_zero_takes_the_most_likely_allowed_token():
    logits = torch.tensor([[1.0, 3.0, 2.0, 9.0]]).repeat(50, 1)
    tokens, logprobs, _ = Sampler(Sampling(temperature=0), forbidden_ids=[3])(logits)
    assert set(tokens.tolist()) == {1}
    wanted = torch.tensor([1.0, 3.0, 2.0]).log_softmax(0)[1]
    assert torch.allclose(logprobs, wanted)


@pytest.mark.parametrize("size", [7, 256, 700])
def test_draw_hits_each_token_as_often_as_its_weight_says(size):
    weights = torch.rand(size)
    weights[::3] = 0
    drawn = draw(weights.expand(60_000, -1)).flatten()
    counts = torch.bincount(drawn, minlength=size).double()
    assert counts[::3].sum() == 0
    expected = (weights / weights.sum()).double()[weights > 0] * 60_000
    surprise = ((counts[weights > 0] - expected) ** 2 / expected).sum()
    free = len(expected) - 1
    assert surprise < free + 4 * math.sqrt(2 * free)


def test_equal_seeds_draw_equal_tokens():
    logits = torch.randn(64, 300)
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(Sampler(Sampling())(logits)[0].tolist())
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("sampling", "reference"),
    [
        (Sampling(top_k=5), [TopKLogitsWarper(5)]),
        (Sampling(top_p=0.6), [TopPLogitsWarper(0.6)]),
        (Sampling(min_p=0.2), [MinPLogitsWarper(0.2)]),
        (
            Sampling(temperature=1.7, top_k=20, top_p=0.8, min_p=0.05),
            [TemperatureLogitsWarper(1.7), TopKLogitsWarper(20), TopPLogitsWarper(0.8), MinPLogitsWarper(0.05)],
        ),
    ],
)
def test_narrowing_keeps_the_tokens_transformers_keeps(sampling, reference):
    logits = torch.randn(1, 50) * 2
    scores = logits.clone()
    for step in reference:
        scores = step(None, scores)
    tokens, logprobs, _ = Sampler(sampling)(logits.expand(3000, -1))
    assert set(tokens.tolist()) <= set((scores[0] > -math.inf).nonzero().flatten().tolist())
    torch.testing.assert_close(logprobs, scores.log_softmax(-1)[0, tokens])


def test_repetition_penalty_is_the_usual_one():
    logits, history = torch.randn(4, 30), torch.randint(0, 30, (4, 6))
    scores = RepetitionPenaltyLogitsProcessor(1.3)(history, logits.clone())
    tokens, logprobs, _ = Sampler(Sampling(repetition_penalty=1.3))(logits, history)
    torch.testing.assert_close(logprobs, scores.log_softmax(-1).gather(1, tokens[:, None])[:, 0])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"temperature": -1.0}, "temperature is -1.0: it must be 0 or more"),
        ({"top_p": 0.0}, "top_p is 0.0: it must be above 0"),
        ({"top_k": -1}, "top_k is -1"),
        ({"min_p": 2.0}, "min_p is 2.0"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
        ({"temperature": float("inf")}, "temperature is inf: it must be 0 or more and finite"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty is inf: it must be above 0 and finite"),
    ],
)
def test_settings_out_of_range_are_named(settings, said):
    with pytest.raises(ValueError, match=said):
        Sampling(**settings)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_named(value, temperature):
    """An index drawn from them would lie outside the vocabulary, or always be the first."""
    logits = torch.zeros(3, 700)
    logits[1, 555] = value
    with pytest.raises(ValueError, match="the model's logits are NaN or infinite: its weights diverged or are damaged"):
        read(*Sampler(Sampling(temperature), forbidden_ids=[0])(logits))


def test_distinct_rows_draw_without_replacement_from_what_is_left():
    """P(first i, then j) = p_i * p_j / (1 - p_i), the log-probabilities are those of the full distribution."""
    probs = torch.tensor([0.5, 0.3, 0.15, 0.05])
    logits, sampler, pairs = probs.log().expand(20000, -1), Sampler(Sampling()), torch.zeros(4, 4)
    groups = [([i, i + 1], ()) for i in range(0, 20000, 2)]
    tokens, logprobs, _ = sampler(logits, distinct=groups)
    torch.testing.assert_close(logprobs, probs.log()[tokens])
    pairs.index_put_(tuple(tokens.view(-1, 2).T), torch.ones(10000), accumulate=True)
    wanted = probs[:, None] * probs / (1 - probs[:, None]) * (1 - torch.eye(4))
    assert (pairs.diagonal() == 0).all()
    assert ((pairs / 10000 - wanted).abs() < 4 * (wanted * (1 - wanted) / 10000).sqrt() + 1e-9).all()


def test_distinct_rows_leave_out_what_is_taken_and_fall_back_when_nothing_is_left():
    logits = torch.tensor([0.0, 1.0, 2.0, -torch.inf]).expand(5, -1)
    tokens, _, _ = Sampler(Sampling())(logits, distinct=[([0, 1, 4], [2])])
    assert set(tokens[[0, 1]].tolist()) == {0, 1}
    assert tokens[4].item() in (0, 1, 2)
    tokens, _, _ = Sampler(Sampling(temperature=0))(logits, distinct=[([0, 1], [2])])
    assert tokens.tolist() == [1, 0, 2, 2, 2]


def test_each_row_has_its_temperature():
    logits = torch.randn(3, 50)
    tokens, logprobs, entropies = Sampler(Sampling(top_k=7))(logits, temperature=[0.5, 0.0, 2.0])
    for row, temperature in enumerate((0.5, 0.0, 2.0)):
        alone = Sampler(Sampling(temperature=temperature, top_k=0 if temperature == 0 else 7))
        _, _, wanted = alone(logits[row : row + 1])
        torch.testing.assert_close(entropies[row : row + 1], wanted)
    assert tokens[1] == logits[1].argmax()
    torch.testing.assert_close(logprobs[1], logits[1].log_softmax(-1).max())


@pytest.mark.parametrize("heat", [None, [0.5, 0.0, 2.0, 1.0]])
def test_each_row_has_its_top_k(heat):
    logits, kept = torch.randn(4, 50), [7, 3, 0, 99]
    drawn = Sampler(Sampling(top_k=2))
    for _ in range(5):
        tokens, logprobs, entropies = drawn(logits, temperature=heat, top_k=kept)
        for row, k in enumerate(kept):
            temperature = 1.0 if heat is None else heat[row]
            sampling = Sampling(temperature=temperature, top_k=0 if temperature == 0 else k)
            _, _, wanted = Sampler(sampling)(logits[row : row + 1])
            torch.testing.assert_close(entropies[row : row + 1], wanted)
            assert (logits[row] > logits[row, tokens[row]]).sum() < (k or 50)
    assert logprobs.isfinite().all()


def test_the_host_reads_what_was_drawn_exactly():
    tokens, logprobs, entropies = Sampler(Sampling())(torch.randn(64, 200_000))
    ids, read_logprobs, read_entropies = read(tokens, logprobs, entropies)
    assert ids == tokens.tolist()
    assert read_logprobs.tolist() == logprobs.tolist()
    assert read_entropies.tolist() == entropies.tolist()
