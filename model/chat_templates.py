"""What a model's chat template is told besides the turns, and the thought that some templates open themselves."""

from __future__ import annotations

import json
import re

from task.errors import UserError

OURS = ("messages", "tools", "add_generation_prompt", "tokenize", "return_dict", "continue_final_message")
# The end of a prompt whose template has opened the thought, such as "<think>\n"; the header of a turn may be a tag too.
OPENED = re.compile(r"[<\[][\w:]*(?:think|thought|reason|analysis)[\w:]*[>\]]\s*$", re.IGNORECASE)


def read_template_kwargs(given: str | dict | None) -> dict:
    """The value of `chat_template_kwargs` as a dict. UserError for anything but an object.

    >>> read_template_kwargs('{"enable_thinking": false}')
    {'enable_thinking': False}
    """
    try:
        found = json.loads(given) if isinstance(given, str) else given or {}
    except ValueError:
        found = given
    if not isinstance(found, dict):
        raise UserError(
            f"chat_template_kwargs={given!r} is not a JSON object: give the template's switches by name, such as "
            "'{\"enable_thinking\": false}'."
        )
    return found


def check_template_kwargs(kwargs: dict, template) -> None:
    """Raises UserError for a switch that the template never reads, and for what is passed to every template."""
    for name in kwargs:
        if name in OURS:
            raise UserError(f"chat_template_kwargs: {name} is set for every prompt by this project: leave it out.")
        if not re.search(rf"\b{re.escape(name)}\b", str(template)):
            raise UserError(
                f"chat_template_kwargs: the model's chat template does not read {name!r}: correct the name after "
                "chat_template.jinja in the model's folder, or leave it out."
            )


def opened_by(rendered: str) -> str:
    """The tag of a thought, with the white space after it, with which a prompt ends; "" if it ends otherwise.

    >>> opened_by("<|im_start|>assistant\\n<think>\\n"), opened_by("<|im_start|>assistant\\n"), opened_by("<bot>")
    ('<think>\\n', '', '')
    """
    found = OPENED.search(rendered)
    return found[0] if found else ""
