"""Links into a report: to one tree, one node, one record."""

import pytest
import report_cases as cases
from page_measures import measured
from report_page import page_of

pytestmark = pytest.mark.slow
pytest_plugins = ["browser"]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A report of two runs with trees and of two evaluations, with names and ids that an address must encode."""
    folder = tmp_path_factory.mktemp("links")
    for name in ("first & best", "second"):
        cases.write_run(folder / name / "train")
        items = [cases.prediction(i, id=f"scene {i}/ä&b=1") for i in range(40)]
        cases.write_evaluation(folder / name / "eval", items)
    return page_of(folder / "first & best", folder / "second")


def copied(page) -> str:
    """The address that a page has after its link button was pressed."""
    return page.evaluate("location.href")


@pytest.mark.parametrize("width", [1280, 390])
def test_a_link_opens_one_tree_at_one_node(open_page, address, width):
    page = open_page(address, width)
    page.locator(".tree-controls select").select_option("second/train")
    page.get_by_label("Training step").fill("1")
    page.locator(".prompt", has_text="question-1").click()
    page.locator(".node[data-node='2']").click()
    page.locator(".ask").get_by_role("button", name="Copy link").click()
    link = copied(page)
    assert link.endswith("#tree=question-1&step=21&run=second%2Ftrain&node=2")
    assert measured(page, "layoutFaults") == []
    other = open_page(link, width)
    for _ in range(2):
        assert other.locator("output").inner_text() == "step 21"
        assert other.locator(".tree-controls select").input_value() == "second/train"
        assert other.locator(".prompt[aria-pressed=true]").inner_text().startswith("question-1")
        box = other.locator("#node-detail").bounding_box()
        assert box["y"] >= 0 and box["y"] + box["height"] <= 901
        other.reload()
        other.wait_for_selector("body[data-ready=yes]")
    assert other.said == []


def test_a_link_opens_one_record(open_page, address):
    page = open_page(address)
    page.locator(".item").nth(3).click()
    page.keyboard.press("ArrowRight")
    page.locator("#detail").get_by_role("button", name="Copy link").click()
    link = copied(page)
    assert link.endswith("&evaluation=second%2Feval")
    other = open_page(link)
    for _ in range(2):
        assert other.locator("#detail h3").inner_text() == "scene 4/ä&b=1"
        other.reload()
        other.wait_for_selector("body[data-ready=yes]")
    other.get_by_role("button", name="Close", exact=True).click()
    other.reload()
    other.wait_for_selector("body[data-ready=yes]")
    assert not other.locator("#detail").is_visible()
    assert other.said == []


def test_the_button_copies_the_link(open_page, address):
    page = open_page(address)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    button = page.locator(".ask").get_by_role("button", name="Copy link")
    button.click()
    page.get_by_role("button", name="Link copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == copied(page)
    assert "#tree=scene-1&step=81" in copied(page)


def test_where_the_clipboard_is_refused_the_link_is_in_the_address_bar(open_page, address):
    page = open_page(address)
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('refused')); }")
    page.locator(".ask").get_by_role("button", name="Copy link").click()
    page.get_by_role("button", name="Link is in the address bar").wait_for()
    assert "#tree=scene-1&step=81" in copied(page)


def test_a_short_link_opens_the_newest_tree_of_a_prompt(open_page, address):
    page = open_page(address + "#tree=deep")
    assert page.locator("output").inner_text() == "step 81"
    assert page.locator(".prompt[aria-pressed=true]").inner_text().startswith("deep")
    page.evaluate("location.hash = '#tree=scene-1&step=1'")
    page.locator("output", has_text="step 1").wait_for()
    assert page.locator(".prompt[aria-pressed=true]").inner_text().startswith("scene-1")


@pytest.mark.parametrize(
    ("fragment", "said"),
    [
        ("tree=scene-1&step=2", "no tree “scene-1”, step 2"),
        ("tree=gone", "no tree “gone”"),
        ("record=gone&evaluation=second%2Feval", "no record “gone”, evaluation second/eval"),
    ],
)
def test_a_link_to_what_the_report_lacks_says_so(open_page, address, fragment, said):
    page = open_page(f"{address}#{fragment}")
    assert said in page.locator("#lost").inner_text()
    assert not page.locator("#detail").is_visible()
    page.evaluate("location.hash = '#tree=deep'")
    page.locator("#lost").wait_for(state="hidden")
    assert page.said == []


def test_the_links_to_sections_are_no_such_links(open_page, address):
    page = open_page(address + "#trees")
    assert not page.locator("#lost").is_visible() and not page.locator("#detail").is_visible()
