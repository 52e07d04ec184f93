"""ShareRobot (BAAI/ShareRobot, Apache-2.0): trajectories and affordances.

{"id": number or picture path, "meta_data": {"original_width", "original_height"}, "instruction",
"points": [[x, y], ...] or "affordance": {"x", "y", "width", "height"}}
"""

from converters.converted import Converted, need, others, sentence, text
from task.errors import UserError

ENDINGS = (".jpg", ".png", ".jpeg")


def trajectory(raw, options):
    points = need(raw, "points")
    return [_record(raw, options, "trajectory-sharerobot", "points", points)]


def affordance(raw, options):
    """The box stays x, y, width, height, which the task can read."""
    box = need(raw, "affordance")
    if not isinstance(box, dict) or set(box) != {"x", "y", "width", "height"}:
        raise UserError(f"affordance is {box!r:.60}: x, y, width and height are needed")
    return [_record(raw, options, "affordance-sharerobot", "affordance", box)]


def _record(raw, options, question_type, key, answer):
    meta = need(raw, "meta_data")
    image, changes = _picture(raw, options.image_root)
    record = {"id": need(raw, "id"), "image": image, "question": sentence(text(raw, "instruction"))}
    record |= {"question_type": question_type, "answer": answer, "meta_data": meta}
    size = (need(meta, "original_width"), need(meta, "original_height"))
    rest = others(raw, "id", "image", "meta_data", "instruction", key)
    return Converted(record, changes, size=size, rest=rest)


def _picture(raw, image_root):
    """The picture's path: `image` if given, else the id as a path, else a file named after the id."""
    if isinstance(raw.get("image"), str):
        return raw["image"], []
    name = str(need(raw, "id"))
    if name.lower().endswith(ENDINGS):
        return name, []
    for path in (f"{folder}{name}{ending}" for folder in ("", "images/") for ending in ENDINGS):
        if (image_root / path).is_file():
            return path, ["picture found by the id"]
    raise UserError(f"id {name!r} is not the path of a picture, and {image_root} has no {name}.jpg or .png")
