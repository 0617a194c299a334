"""Rows for a reader: which are drawn, what is marked, what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.util.errors import UserError
from data_builders.quality.rows import draw, marked, pick, share_kept, write_rows_page
from tests.tiny import make_sample


def own(name: str = "d-1", **changes: object) -> EventSample:
    fields: dict[str, object] = {
        "id": name,
        "context": "It rained. Cats slept.\nThe <dam> broke.",
        "refined_context": "It rained.\nThe <dam> broke.",
        "answers": ["rain", "a storm"],
    }
    return make_sample(**{**fields, **changes})


def test_rows_are_drawn_by_the_seed_in_the_datas_order() -> None:
    rows = [own(f"d-{number}") for number in range(50)]
    drawn = draw(rows, 10, seed=1)
    assert drawn == draw(rows, 10, seed=1) != draw(rows, 10, seed=2)
    assert [rows.index(one) for one in drawn] == sorted(rows.index(one) for one in drawn)
    assert draw(rows, 99, seed=1) == rows


def test_rows_are_picked_by_id() -> None:
    rows = [own("d-1"), own("d-2")]
    assert pick(rows, ["d-2", "d-1"]) == rows[::-1]
    with pytest.raises(UserError, match=r"--id: got 'd-3'; none of 2 rows has it. Did you mean 'd-\d'"):
        pick(rows, ["d-3"])


def test_what_the_refined_context_lacks_is_marked() -> None:
    left_out = [text for text, kept in marked(own()) if not kept]
    assert left_out == ["Cats slept."]
    assert "".join(text for text, _ in marked(own())) == own().context
    assert share_kept(own()) == pytest.approx(5 / 7)
    shorter = own(context="It rained, oddly, so the dam broke.", refined_context="It rained so the dam broke.")
    assert [text for text, kept in marked(shorter) if not kept] == ["oddly,"]


@pytest.mark.parametrize("refined", ["It rained hard.", "The <dam> broke. It rained."])
def test_a_refined_context_of_its_own_marks_nothing(refined: str) -> None:
    assert marked(own(refined_context=refined)) == [(own().context, True)]


def test_the_page_has_contexts_and_prompts_escaped(tmp_path: Path) -> None:
    swap = {"swapped": {"from": "the <dam>", "to": "the wall"}}
    rows = [own(meta=swap), own("d-2", refined_context="A flood came."), own("d-3", refined_context=None)]
    write_rows_page("rows", rows, load_prompt_set("default"), tmp_path / "rows.html")
    page = (tmp_path / "rows.html").read_text("utf-8")
    first, second, third = page.split("<article")[1:]
    assert '<span class="left-out">Cats slept.</span>' in first
    assert "The &lt;dam&gt; broke." in first
    assert "<dt>swapped</dt><dd>the &lt;dam&gt; → the wall</dd>" in first
    assert "<dt>swapped</dt>" not in second
    assert "<dam>" not in page
    assert "71 % of its words" in first
    assert ">A flood came.<" in second
    assert [part.count("prompt of the refined view") for part in (first, second, third)] == [1, 1, 0]
    assert page.count("prompt of the imagined view") == 3
    assert "rain | a storm" in first
