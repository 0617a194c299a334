"""Hook of the documentation site: links that lead out of docs/ become plain text, as the site has no source files."""

import re

_SOURCE_LINK = re.compile(
    r"\[(?P<text>[^\]]+)\]\((?:\.\./)+(?:d2e_sft|data_builders|eval|launch|recipes|tests|examples)/[^)]*\)"
)


def on_page_markdown(markdown: str, **_: object) -> str:
    """A page's text with every link to a source file replaced by the link's own text."""
    return _SOURCE_LINK.sub(r"\g<text>", markdown)
