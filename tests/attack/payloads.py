"""Texts that run a script or become an element on a page without escaping, and how to detect that."""

import random
from pathlib import Path

from tests.browser import Tab

_RUN = "window.planted=(window.planted||0)+1"
_ENDS = (
    "", '"', "'", "`", '">', "'>", "\\\">", "\\x3e", "-->", "]]>", "*/", "</script>", "</script ", "</SCRIPT\n>",
    "</textarea>", "</title>", "</style>", "</pre>", "</code>", "</option></select>", "</svg>", "</text></svg>",
    "</template>", "</noscript>", "&quot;>", "&#34;>", "\u2028", "\0", "|", "](", "```\n\n", "{{", "{%",
    "<!--", "<![CDATA[",
)  # fmt: skip
_BEGINNINGS = (
    f"<script planted>{_RUN}</script>",
    f"<ScRiPt planted>{_RUN}//",
    f"<img planted src=x onerror={_RUN}>",
    f"<img/planted/src=x/onerror={_RUN}>",
    f"<svg planted onload={_RUN}>",
    f"<svg planted><script>{_RUN}</script></svg>",
    f"<svg planted><animate onbegin={_RUN} attributeName=x dur=1s>",
    f"<iframe planted srcdoc=\"<script>parent.{_RUN.replace('window', 'parent')}</script>\">",
    f"<details planted open ontoggle={_RUN}>",
    f"<input planted autofocus onfocus={_RUN}>",
    f"<video planted><source onerror={_RUN}></video>",
    f"<body planted onload={_RUN}>",
    f"<math planted><a href=javascript:{_RUN}>x</a></math>",
    f"<a planted href=javascript:{_RUN}>x</a>",
    f"<form planted action=javascript:{_RUN}><button>x</button></form>",
    f"<meta planted http-equiv=refresh content=0;url=javascript:{_RUN}>",
    "<base planted href=//planted.invalid/>",
    "<link planted rel=stylesheet href=//planted.invalid/x.css>",
    "<style planted>*{display:none}</style>",
    "<plaintext planted>",
    "<b planted>",
    f" planted onmouseover={_RUN} x=",
    f' planted tabindex=1 onfocus="{_RUN}" ',
    f"javascript:{_RUN}//",
    f"[x](javascript:{_RUN})",
    f"<javascript:{_RUN}>",
    f"![x](x\" planted onerror=\"{_RUN})",
    "&lt;b planted&gt;",
    f"`{_RUN}`",
    "{{ 7 * 7 }}${7*7}#{7*7}",
)  # fmt: skip

# Finds planted content on a page. `planted` is the name of a global, an attribute, and a host that does not exist.
_FOUND = """(() => {
  const links = ["href", "src", "action", "formaction", "xlink:href", "data", "srcdoc", "content"];
  const bad = [...document.querySelectorAll("*")].filter((one) => one.hasAttribute("planted")
    || [...one.attributes].some(({name, value}) => (name.startsWith("on") && value.includes("planted"))
      || (links.includes(name) && /^\\s*(javascript|vbscript):|planted\\.invalid/i.test(value))));
  return {ran: window.planted || 0, elements: bad.map((one) => one.outerHTML.slice(0, 200)),
          hidden: getComputedStyle(document.body).display === "none"};
})()"""
# Does what a reader may do: unfold, point at, focus, press and choose.
_USE = """(() => {
  document.querySelectorAll("details").forEach((one) => { one.open = true });
  for (const one of document.querySelectorAll("body *")) {
    for (const kind of ["mouseover", "mouseenter", "focus", "pointerdown"]) one.dispatchEvent(new Event(kind));
  }
  document.querySelectorAll("button, summary, input[type=radio]").forEach((one) => one.click());
  for (const one of document.querySelectorAll("select, input[type=range]")) {
    if (one.options) one.selectedIndex = one.options.length - 1; else one.value = one.max;
    for (const kind of ["input", "change"]) one.dispatchEvent(new Event(kind, {bubbles: true}));
  }
  document.querySelectorAll("details").forEach((one) => { one.open = true });
})()"""


class Planter:
    """Makes payloads, and keeps them for the search."""

    def __init__(self, numbers: random.Random) -> None:
        self._numbers = numbers
        self.planted: list[str] = []

    def __call__(self) -> str:
        """Return a new payload, made unique by a number."""
        pick = self._numbers.choice
        text = f"p{len(self.planted)} {pick(_ENDS)}{pick(_BEGINNINGS)}{pick(_ENDS)}"
        self.planted.append(text)
        return text

    def line(self) -> str:
        """Return a payload that is valid as a name: no NUL, one line."""
        text = " ".join(self().replace("\0", "").replace("\u2028", "").split())
        self.planted[-1] = text
        return text

    def name(self) -> str:
        """Return a payload that is valid as a file name."""
        text = self.line().replace("/", "\\")
        self.planted[-1] = text
        return text


def check(tab: Tab, *, use: bool = True) -> None:
    """Assert that nothing planted is active on the open page, after a reader used all controls."""
    tab.wait_for("document.readyState === 'complete'")
    if use:
        tab.evaluate(_USE)
        tab.evaluate("new Promise((done) => setTimeout(done, 60))")  # lets events finish
    found = tab.evaluate(_FOUND)
    assert found == {"ran": 0, "elements": [], "hidden": False}, found


def shown(tab: Tab, texts: list[str]) -> int:
    """Return how many payloads the page shows as text."""
    fields = "[...document.querySelectorAll('input, textarea')].map((one) => one.value).join(' ')"
    text = " ".join(str(tab.evaluate(f"document.documentElement.textContent + {fields}")).split())
    return sum(one.split(maxsplit=1)[0] + " " in text for one in texts)


def everything(page: Path) -> None:
    """Write a page that escapes nothing, which `check` must reject."""
    page.write_text("<!doctype html><body>" + "\n".join(f"<p>{one}</p>" for one in _BEGINNINGS[:12]), "utf-8")
