"""The client of `vllm serve` against a small stand-in: tokens in lockstep, pictures sent once, and every fault."""

import time
from pathlib import Path

import pytest
from fake_vllm import EOS, MODEL, VOCAB, fake_vllm, token_at

from trainer.engines.requests import Draw, Request
from trainer.engines.vllm.server import VLLMServer
from trainer.engines.vllm.server_http import ServerError, ServerHTTP
from trainer.engines.vllm.server_requests import Medium, ServerRequests

TIMEOUT = 5.0


@pytest.fixture
def fake():
    with fake_vllm() as (fake, url):
        fake.url = url
        yield fake


def requests_of(fake, media=None, timeout=TIMEOUT, version=None):
    fake.version = fake.version if version is None else version
    return ServerRequests(
        ServerHTTP(fake.url, timeout),
        fake.version,
        eos_ids=[EOS],
        block_size=16,
        vocab_size=VOCAB,
        media_of=lambda request: (media or {}).get(request.name, []),
        arguments_of=lambda request: {"seed": request.draw.seed},
    )


def request(name, seed, max_tokens=6):
    return Request(str(name), [5, 6, 7], [], max_tokens, Draw(seed, 1.0, 0, 1.0, 0.0, 1.0))


def expected(seed, max_tokens=6):
    tokens = []
    for index in range(max_tokens):
        tokens.append(token_at(seed, index))
        if tokens[-1][0] == EOS:
            break
    return tokens


def grow(requests, seeds):
    """The tokens of requests with these seeds, and how many came in each step."""
    for name, seed in enumerate(seeds):
        requests.add(request(name, seed))
    found, sizes = {str(name): [] for name in range(len(seeds))}, []
    while any(len(found[str(name)]) < len(expected(seed)) for name, seed in enumerate(seeds)):
        sampled = requests.step()
        sizes.append(len(sampled))
        for one in sampled:
            found[one.name].append((one.token_id, one.logprob, one.entropy))
    return found, sizes


def test_tokens_come_in_lockstep_whatever_the_speed_of_a_request(fake):
    seeds = [3, 4, 5, 6, 7]
    wanted = {str(name): expected(seed) for name, seed in enumerate(seeds)}
    fake.slow = 0.02
    found, sizes = grow(requests_of(fake), seeds)
    assert found == wanted
    assert sizes == [sum(len(tokens) > step for tokens in wanted.values()) for step in range(len(sizes))]


def test_an_aborted_request_gives_no_tokens_and_holds_up_nothing(fake):
    fake.slow = 0.05
    requests = requests_of(fake)
    for name in range(3):
        requests.add(request(name, seed=3 + name, max_tokens=50))
    assert {one.name for one in requests.step()} == {"0", "1", "2"}
    requests.abort(["1", "unknown"])
    assert {one.name for one in requests.step()} == {"0", "2"}
    requests.abort(["0", "2"])
    assert requests.step() == []


def picture(name, sent):
    return Medium("image", name, offset=0, length=2, data=lambda: sent.append(name) or "tensors")


def test_a_picture_is_sent_once_and_then_by_its_name(fake):
    sent = []
    media = {str(name): [picture("a" if name < 4 else "b", sent)] for name in range(6)}
    media["5"] = [picture("b", sent), picture("a", sent)]
    found, _ = grow(requests_of(fake, media), [3, 4, 5, 6, 7, 8])
    assert found["3"] == expected(6)
    assert sorted(fake.sent) == sorted(sent) == ["a", "b"]
    both = next(body["features"] for body in fake.requests if len(body["features"]["mm_hashes"]["image"]) == 2)
    assert both["mm_hashes"] == {"image": ["b", "a"]} and both["kwargs_data"] == {"image": [None, None]}
    assert both["mm_placeholders"] == {"image": [{"offset": 0, "length": 2}] * 2}


def test_a_picture_that_the_server_has_forgotten_is_sent_again(fake):
    fake.forgets, sent = True, []
    media = {str(name): [picture("a", sent)] for name in range(3)}
    found, _ = grow(requests_of(fake, media), [3, 4, 5])
    assert found == {str(name): expected(3 + name) for name in range(3)}
    assert fake.sent == ["a"] * 3


FAULTS = {
    "dies": "does not answer .*continue with --resume auto",
    "error": "refuses /inference/v1/generate .500.: the engine died",
    "ends": "ended a request before its last token",
    "aborted": "ended a request by itself .abort.",
    "weights": "sampled with the weights another:4 and not with default",
    "silent": "sent no token for 0.5 s .vllm_server_timeout.",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_fails_in_mid_generation_ends_the_step_with_one_sentence(fake, fault):
    requests = requests_of(fake, timeout=0.5)
    fake.fault = fault
    for name in range(3):
        requests.add(request(name, seed=9 + name, max_tokens=40))
    assert all(len(expected(9 + name, 40)) > 3 for name in range(3))
    with pytest.raises(ServerError, match=FAULTS[fault]) as error:
        _ = [requests.step() for _ in range(40)]
    assert "\n" not in str(error.value) and fake.url in str(error.value)
    requests.abort(["0", "1", "2"])


def test_an_error_in_a_thread_is_raised_where_the_tokens_are_taken(fake):
    requests = requests_of(fake, {"0": [Medium("image", "a", 0, 2, data=lambda: 1 / 0)]})
    requests.add(request(0, seed=3))
    with pytest.raises(ZeroDivisionError):
        requests.step()


def server_of(fake, timeout=TIMEOUT, run="run"):
    return VLLMServer(ServerHTTP(fake.url, timeout), run)


def send(server, **more):
    server.count()
    server.load(Path("/weights"), **more)


def test_weights_are_loaded_old_results_dropped_and_the_version_set(fake):
    server, fake.busy = server_of(fake), 3  # blocks of dropped requests are freed a moment later
    assert server.connect(MODEL, [1], tokens=100)["block_size"] == 16
    send(server)
    server.check()
    assert fake.version == server.version == "run:1"
    order = ["load_folder", "/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache", "/update_weight_version"]
    assert [call for call in dict.fromkeys(fake.calls) if call in order] == order
    other = server_of(fake)
    other.count()
    other.check()


HELD = {
    "default": "was restarted and has the weights of its start",
    "run:1": "has older weights .run:1, not run:2.",
    "another:2": "got the weights of another run .another:2., and each run needs a server of its own",
}


@pytest.mark.parametrize("held", HELD)
def test_a_server_with_other_weights_is_found(fake, held):
    server = server_of(fake)
    for _ in range(2):
        send(server)
    fake.version = held
    with pytest.raises(ServerError, match=HELD[held] + ": .*continue with --resume auto"):
        server.check()


def test_a_server_with_another_model_is_refused(fake):
    with pytest.raises(ServerError, match=r"another model \(hidden_size 8\) .*being trained \(hidden_size 16\)"):
        server_of(fake).connect(MODEL | {"hidden_size": 16}, [], tokens=100)


def test_a_server_whose_requests_are_too_short_is_refused(fake):
    with pytest.raises(ServerError, match=r"takes 4096 tokens per request, .*start it with --max-model-len 5000"):
        server_of(fake).connect(MODEL, [], tokens=5000)


def test_a_server_without_the_worker_of_trees_is_refused(fake):
    fake.reply = lambda path, body: (404, {"detail": "Not Found"}) if path == "/collective_rpc" else (200, {})
    with pytest.raises(ServerError, match=r"cannot serve rollout trees \(Not Found\).*scripts/vllm_server.py"):
        server_of(fake).connect(MODEL, [], tokens=100)


def test_weights_that_the_server_cannot_read_are_reported(fake):
    fake.loads = False
    with pytest.raises(ServerError, match=r"cannot load the weights in /weights \(No such file or directory\)"):
        send(server_of(fake))


def test_a_server_that_serves_others_too_is_refused(fake, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    fake.busy = 99
    with pytest.raises(ServerError, match="keeps requests of another client"):
        send(server_of(fake))


def test_a_server_that_is_not_there_is_waited_for_and_then_reported():
    start = time.monotonic()
    with pytest.raises(ServerError, match=r"no vLLM server answers at http://127.0.0.1:9 for 0.3 s .*vllm_server.py"):
        VLLMServer(ServerHTTP("http://127.0.0.1:9", 0.3), "run").connect({}, [], tokens=1)
    assert 0.3 < time.monotonic() - start < 3


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://node", "http://", ""])
def test_what_is_no_url_is_refused(url):
    with pytest.raises(ValueError, match="is not the URL of a vLLM server"):
        ServerHTTP(url, 1.0)
