"""The formats that scripts/data/convert.py reads: name -> (function that reads the source, function that converts).

A reader yields (position for messages, raw record); a converter returns the records made from one raw record, and
raises UserError, with the reason, if it cannot be used.
"""

from converters import (
    coco,
    columns,
    conversations,
    easy_vqa,
    mathematics,
    open_questions,
    programs,
    sharerobot,
    text_in_pictures,
)
from converters.sources import read_json, read_json_folder

FORMATS = {
    "sharerobot-trajectory": (read_json, sharerobot.trajectory),
    "sharerobot-affordance": (read_json, sharerobot.affordance),
    "coco": (coco.read_pictures, coco.detection),
    "refcoco": (coco.read_references, coco.reference),
    "llava": (read_json, conversations.conversation),
    "sharegpt": (read_json, conversations.conversation),
    "vlm-r1": (read_json, conversations.conversation),
    "textvqa": (text_in_pictures.read_textvqa, text_in_pictures.textvqa),
    "ocr-vqa": (text_in_pictures.read_ocrvqa, text_in_pictures.ocrvqa),
    "easy-vqa": (easy_vqa.read_easy_vqa, easy_vqa.easy_vqa),
    "gsm8k": (read_json, mathematics.gsm8k),
    "math": (read_json_folder, mathematics.competition),
    "mbpp": (read_json, programs.mbpp),
    "humaneval": (read_json, programs.humaneval),
    "nq": (open_questions.read_questions, open_questions.nq),
    "hotpotqa": (open_questions.read_questions, open_questions.hotpotqa),
    "2wikimultihopqa": (open_questions.read_questions, open_questions.two_wiki),
    "musique": (open_questions.read_questions, open_questions.musique),
    "bamboogle": (open_questions.read_questions, open_questions.bamboogle),
    "table": (columns.read_table, columns.row),
}
