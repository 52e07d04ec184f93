"""Dense search: a local encoder's mean-pooled, normalised vectors in an exact faiss index (inner product).

The index is stored beside the corpus; it takes 4 bytes per dimension and document, also in memory.
"""

import hashlib
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import AutoModel, AutoTokenizer

from task.errors import UserError
from task.retrieval.corpus import Documents, corpus_file, read_documents, save_positions, sha256_of
from task.retrieval.index_folder import make_ready
from task.retrieval.passages import Passage, check_search
from task.runners.optional import need

FORM = 1  # of the index folder
BATCH = 64  # texts per pass
WINDOW = 16 * BATCH  # documents read before their texts are sorted by length
LONGEST = 512  # tokens per text; the rest is ignored
INPUTS = ("*.safetensors", "*.bin", "config.json", "tokenizer.json", "vocab.txt")  # files that determine the vectors


class DenseRetriever:
    """The Retriever of a corpus and an encoder folder. UserError if one of them, or faiss, cannot be used.

    Allows one search at a time: the caller batches and serialises queries.
    """

    def __init__(self, corpus: Path, encoder: Path, query_prefix: str = "", passage_prefix: str = ""):
        need("faiss", "search")
        import faiss

        file = corpus_file(corpus)
        self._prefix = query_prefix
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._tokenizer, self._model = _load(encoder, self._device)
        self._longest = min(LONGEST, self._tokenizer.model_max_length)
        folder = file.with_suffix(".dense")
        made_of = {"corpus_sha256": sha256_of(file), "encoder": _fingerprint(encoder), "prefix": passage_prefix}
        make_ready(folder, made_of | {"form": FORM}, lambda new: self._write_index(file, new, passage_prefix))
        self.documents = Documents(file, folder)
        self._index = faiss.read_index(str(folder / "vectors.faiss"))

    def search(self, queries: list[str], top_k: int) -> list[list[Passage]]:
        """As Retriever.search; every query gets top_k passages if the corpus has as many."""
        check_search(queries, top_k)
        if not queries:
            return []
        scores, numbers = self._index.search(
            self._encode([self._prefix + query for query in queries]), min(top_k, len(self.documents))
        )
        return [
            [
                Passage(**self.documents[int(number)], score=round(float(score), 4))
                for score, number in zip(*pair, strict=True)
            ]
            for pair in zip(scores, numbers, strict=True)
        ]

    def _write_index(self, file: Path, folder: Path, prefix: str) -> None:
        import faiss

        index, positions, texts = faiss.IndexFlatIP(self._model.config.hidden_size), [], []
        for position, document in tqdm(read_documents(file), unit="document", desc="encoding"):
            positions.append(position)
            texts.append(f"{prefix}{document['title']}\n{document['text']}")
            if len(texts) == WINDOW:
                index.add(self._encode(texts))
                texts = []
        if texts:
            index.add(self._encode(texts))
        faiss.write_index(index, str(folder / "vectors.faiss"))
        save_positions(folder, positions)

    @torch.inference_mode()
    def _encode(self, texts: list[str]):
        """(B, D) float32 array of unit vectors; batches texts of similar length to save padding."""
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        vectors = torch.empty(len(texts), self._model.config.hidden_size)
        for start in range(0, len(order), BATCH):
            places = order[start : start + BATCH]
            vectors[places] = self._encode_batch([texts[place] for place in places]).float().cpu()
        return vectors.numpy()

    def _encode_batch(self, texts: list[str]):
        batch = self._tokenizer(texts, padding=True, truncation=True, max_length=self._longest, return_tensors="pt").to(
            self._device
        )
        hidden = self._model(**batch).last_hidden_state  # (B, T, D)
        mask = batch["attention_mask"][..., None]
        mean = (hidden * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(mean, dim=-1)


def _load(encoder: Path, device: str):
    try:
        tokenizer = AutoTokenizer.from_pretrained(encoder, local_files_only=True)
        return tokenizer, AutoModel.from_pretrained(encoder, local_files_only=True).eval().to(device)
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"{encoder} contains no encoder that AutoModel can load ({reason}): give --dense its folder."
        ) from error


def _fingerprint(encoder: Path) -> str:
    files = sorted({file for pattern in INPUTS for file in encoder.glob(pattern)})
    return hashlib.sha256("".join(sha256_of(file) for file in files).encode()).hexdigest()
