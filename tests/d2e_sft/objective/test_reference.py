"""The reference: log-probabilities of the answers before training, computed once and kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.device import cpu_has_bfloat16
from d2e_sft.objective import reference
from d2e_sft.util.errors import UserError
from tests.naive_pairs import CONFIGS, naive, pair_rows, step
from tests.tiny import save_tiny_model, tiny_model, with_lora


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "cache"))


def test_the_reference_is_computed_once_and_kept_by_weights_and_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = []
    plain = reference.answer_log_probabilities
    monkeypatch.setattr(
        reference, "answer_log_probabilities", lambda *given: computed.append(len(given)) or plain(*given)
    )

    def runs(model: Any, rows: Any = None, **options: Any) -> bool:
        before = len(computed)
        step(tmp_path, CONFIGS["dpo"], pair_rows() if rows is None else rows, model, **options)
        return len(computed) > before

    def fresh_adapter(seed: int) -> Any:
        return with_lora(tiny_model(seed=3), seed, init_lora_weights=True)

    assert runs(tiny_model(seed=3))
    assert not runs(tiny_model(seed=3))
    assert not runs(tiny_model(seed=3), learning_rate=0.3)
    assert not runs(fresh_adapter(1)), "an adapter that changes nothing yet has the reference of its base"
    assert runs(with_lora(tiny_model(seed=3))), "one that does has its own"
    assert runs(tiny_model(seed=4))
    assert runs(tiny_model(seed=3), [{**row, "rejected": [*row["rejected"], 4]} for row in pair_rows()])
    for file in (tmp_path / "cache" / "reference").iterdir():
        file.write_text(file.read_text().replace("-", "", 1))
    assert runs(tiny_model(seed=3)), "a damaged file is not believed"


def test_without_pairs_or_with_another_model_as_reference_it_is_refused(tmp_path: Path) -> None:
    rows = pair_rows()
    with pytest.raises(UserError, match="no training row has a rejected answer") as error:
        step(tmp_path, CONFIGS["dpo"], [{**row, "rejected": []} for row in rows])
    assert "--swap" in str(error.value.remedy)
    save_tiny_model(tmp_path / "other", "qwen2")
    other = D2ESection(objective="prefer", prefer_reference=str(tmp_path / "other"))
    with pytest.raises(UserError, match=r"prefer_reference=.*has the architecture qwen2; expected llama"):
        step(tmp_path, other, rows)


def test_another_run_may_be_the_reference(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "other", seed=4)
    config, rows = D2ESection(objective="prefer", prefer_reference=str(tmp_path / "other")), pair_rows()
    _, log = step(tmp_path, config, rows)
    expected = naive(tiny_model(seed=3).double(), tiny_model(seed=4).double(), rows, config)
    assert log["rewards/margins"] == pytest.approx(float(expected["rewards/margins"]), rel=1e-4)


@pytest.mark.skipif(not cpu_has_bfloat16(), reason="trains in bfloat16")
def test_the_reference_is_computed_in_the_precision_of_training(tmp_path: Path) -> None:
    rows = pair_rows()
    _, log = step(tmp_path, CONFIGS["dpo"], rows, bf16=True)
    assert log["rewards/chosen"] == pytest.approx(0, abs=1e-4), "the model has not changed yet"
