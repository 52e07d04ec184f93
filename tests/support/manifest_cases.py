"""A manifest of one file, and the JSON text of a record whose answer is put in."""

RECORD = '{"question": "Move.", "question_type": "trajectory-sharerobot", "answer": %s}'


def manifest(folder, text):
    (folder / "data.jsonl").write_text(text)
    (folder / "data.yaml").write_text("datasets:\n- json_path: data.jsonl\n")
    return folder / "data.yaml"
