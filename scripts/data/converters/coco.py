"""COCO's annotation files: all objects of a picture, or one object that a text refers to (RefCOCO, RefCOCO+, RefCOCOg).

{"images": [{"id", "file_name", "width", "height"}], "annotations": [{"image_id", "category_id", "bbox": [x, y, w, h]}],
"categories": [{"id", "name"}]}. References are in "refs": [{"ann_id", "image_id", "sentences"}], or each picture has a
"caption" that describes its only annotation.
"""

from collections import defaultdict

from converters.converted import Converted, need, sentence, text
from converters.sources import load
from task.errors import UserError

KINDS = "Find every object of these kinds: {}."


def read_pictures(source, options):
    """(place, {"picture", "annotations", "names"}) of each picture, including those without objects."""
    content = _content(source)
    names = {one["id"]: one["name"] for one in content.get("categories", [])}
    if not names:
        raise UserError(f"{source} has no categories: --format refcoco is for pictures with one described object.")
    found = defaultdict(list)
    for one in content["annotations"]:
        found[one["image_id"]].append(one)
    lost = sorted(found.keys() - {picture["id"] for picture in content["images"]}, key=repr)
    if lost:
        fault = f"{source}: {len(lost)} of {len(found)} image_id in annotations are no picture's id, first {lost[0]!r}"
        if len(lost) == len(found):  # "1" and 1, for example: every picture would seem to show nothing
            raise UserError(f"{fault}: give annotations and pictures the same ids.")
        options.refuse(fault)
    return [
        (f"{source} picture {picture['id']}", {"picture": picture, "annotations": found[picture["id"]], "names": names})
        for picture in content["images"]
    ]


def detection(raw, options):
    picture, names = raw["picture"], raw["names"]
    objects, changes = [], []
    for one in raw["annotations"]:
        if one.get("iscrowd"):
            changes.append("region of a crowd left out")
            continue
        box = corners(need(one, "bbox"))
        if box[2] <= box[0] or box[3] <= box[1]:
            changes.append("box without area left out")
            continue
        if one.get("category_id") not in names:
            raise UserError(f"category_id {one.get('category_id')!r} is not among the categories")
        objects.append({"bbox_2d": box, "label": names[one["category_id"]]})
    if raw["annotations"] and not objects:
        raise UserError(f"{' and '.join(sorted(set(changes)))}: the answer would say that the picture shows nothing")
    record = {"id": str(picture["id"]), "image": text(picture, "file_name"), "question_type": "object-detection"}
    record |= {"question": KINDS.format(", ".join(names.values())), "answer": objects}
    return [Converted(record, changes, size=_size(picture))]


def read_references(source, options):
    """(place, {"picture", "annotation", "sentences"}) of each referred object."""
    content = _content(source)
    pictures = {one["id"]: one for one in content["images"]}
    annotations = {one["id"]: one for one in content["annotations"]}
    refs = content.get("refs")
    if refs is None:
        refs = [_of_caption(one, pictures) for one in content["annotations"]]
    return [
        (
            f"{source} reference {number}",
            {
                "picture": pictures.get(ref.get("image_id")),
                "annotation": annotations.get(ref.get("ann_id")),
                "sentences": ref.get("sentences"),
            },
        )
        for number, ref in enumerate(refs)
    ]


def reference(raw, options):
    """One record per sentence."""
    picture, annotation = need(raw, "picture"), need(raw, "annotation")
    box, sentences = corners(need(annotation, "bbox")), need(raw, "sentences")
    converted = []
    for number, one in enumerate(sentences):
        words = one if isinstance(one, str) else text(one, "sent", "raw")
        record = {"id": f"{annotation['id']}-{number}", "image": text(picture, "file_name")}
        record |= {"question": f"Find {sentence(words)[:1].lower()}{sentence(words)[1:]}"}
        record |= {"question_type": "object-detection", "answer": box}
        converted.append(Converted(record, size=_size(picture)))
    if not converted:
        raise UserError("there is no sentence")
    return converted


def corners(bbox):
    """COCO's x, y, width, height as two corners, to a hundredth of a pixel."""
    try:
        x, y, width, height = (float(number) for number in bbox)
    except (TypeError, ValueError) as error:
        raise UserError(f"bbox is {bbox!r:.60}: four numbers x, y, width, height are needed") from error
    return [round(number, 2) for number in (x, y, x + width, y + height)]


def _of_caption(annotation, pictures):
    picture = pictures.get(annotation.get("image_id"), {})
    caption = picture.get("caption")
    return {
        "ann_id": annotation["id"],
        "image_id": annotation.get("image_id"),
        "sentences": None if caption is None else [caption],
    }


def _size(picture):
    return (picture["width"], picture["height"]) if "width" in picture and "height" in picture else None


def _content(source):
    content = load(source)
    if not isinstance(content, dict) or not all(
        isinstance(content.get(key), list) for key in ("images", "annotations")
    ):
        raise UserError(
            f"{source} has no lists `images` and `annotations`: it is not an annotation file in COCO's format."
        )
    return content
