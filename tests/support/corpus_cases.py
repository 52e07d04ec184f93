"""A corpus of four documents, and files of it."""

import json

DOCUMENTS = [
    {"id": "paris", "title": "Paris", "text": "Paris is the capital of France. The Seine flows through it."},
    {"id": "seine", "title": "Seine", "text": "The Seine is a river in northern France, 777 km long."},
    {"id": "jordan", "title": "Jordan River", "text": "A river of the Middle East that flows into the Dead Sea."},
    {"id": 4, "text": "Élan vital, naïve café: übergroß."},
]


def write_corpus(file, documents=DOCUMENTS):
    file.write_text("".join(json.dumps(one) + "\n" for one in documents), encoding="utf-8")
    return file
