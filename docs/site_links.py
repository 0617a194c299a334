"""Hook of the documentation site: links out of docs/ become plain text, and the navigation shows names of pages."""

import re
from typing import Any

_SOURCE_LINK = re.compile(
    r"\[(?P<text>[^\]]+)\]\((?:\.\./)+(?:d2e_sft|data_builders|eval|launch|recipes|tests|examples)/[^)]*\)"
)


def on_nav(nav: Any, **_: object) -> Any:
    """The navigation without the purposes of pages, which fill several lines: `Name: purpose`."""
    for page in nav.pages:
        page.title = page.title.partition(": ")[0]
    return nav


def on_page_markdown(markdown: str, **_: object) -> str:
    """A page's text with every link to a source file replaced by the link's own text: the site has no source files."""
    return _SOURCE_LINK.sub(r"\g<text>", markdown)
