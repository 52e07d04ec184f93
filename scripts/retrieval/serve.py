"""Serves a corpus over HTTP: BM25, or a dense index made with a local encoder.

    python scripts/retrieval/serve.py --corpus data/wiki --port 8000
    python scripts/retrieval/serve.py --corpus data/wiki --dense models/e5-base-v2 \\
        --query_prefix "query: " --passage_prefix "passage: "

POST /retrieve {"queries": ["..."], "topk": 3, "return_scores": true} answers {"result": [[{"document": {"id", "title",
"text", "contents"}, "score"}, ...], ...]}, one list per query, best first; without return_scores bare documents.
GET /health answers {"status": "ok", "documents": N, "index": "bm25" or "dense"}. Errors are {"error": sentence}.
Exit status 2 if the corpus, the encoder or the address cannot be used.
"""

import argparse
import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

ROOT = use_checkout()
sys.path.insert(0, str(ROOT / "scripts" / "retrieval"))

from task.errors import UserError
from task.retrieval.bm25 import BM25Retriever
from task.runners.optional import need


def main(argv: list[str] | None = None) -> int:
    args = _parse_arguments(argv)
    try:
        for package in ("fastapi", "uvicorn"):
            need(package, "search")
        retriever = _retriever(args)
        listening = _listen(args.host, args.port)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    import uvicorn
    from search_app import make_app

    app = make_app(retriever, "dense" if args.dense else "bm25")
    host, port = listening.getsockname()[:2]
    print(f"serving {len(retriever.documents)} documents on http://{host}:{port}/retrieve", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
    return 0


def _retriever(args):
    if args.dense is None:
        return BM25Retriever(args.corpus)
    from dense import DenseRetriever

    return DenseRetriever(args.corpus, args.dense, args.query_prefix, args.passage_prefix)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # otherwise each answer waits 40 ms for an ACK
        return listening
    except (OSError, OverflowError) as error:
        raise UserError(
            f"nothing can listen on {host} port {port} ({error}): give another --host or --port."
        ) from error


def _parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--corpus", required=True, type=Path, help="folder of build_corpus.py, or a .jsonl file")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; 0.0.0.0: all addresses of the machine"
    )
    parser.add_argument("--port", type=int, default=8000, help="port; 0: any free one, printed in the first line")
    parser.add_argument("--dense", type=Path, metavar="ENCODER", help="folder of an encoder that AutoModel can load")
    parser.add_argument("--query_prefix", default="", help="prefix that the encoder expects before a query, as E5 does")
    parser.add_argument("--passage_prefix", default="", help="prefix that the encoder expects before a passage")
    args = parser.parse_args(argv)
    if args.dense is None and (args.query_prefix or args.passage_prefix):
        parser.error("--query_prefix and --passage_prefix belong to --dense")
    return args


if __name__ == "__main__":
    raise SystemExit(main())
