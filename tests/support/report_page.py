"""The report of some folders as a file for a browser, written in this process."""

from __future__ import annotations

import sys
from pathlib import Path

from paths import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

from report.page import page_content, render_page
from report.sources import find_sources

from task.task_loader import load_tasks


def page_of(*folders: Path) -> str:
    """Address of the report of the folders; it lies in the first one."""
    output = folders[0] / "report.html"
    output.write_text(render_page("report", *page_content(find_sources(list(folders)), load_tasks())), "utf-8")
    return output.as_uri()
