"""Options of decoding, and the reference of keys, which is made from the code."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.config.decoding import DECODERS, DecodingConfig, describe
from d2e_sft.config.functions import load_function
from d2e_sft.config.lookup import bundled_recipes, require_recipe
from d2e_sft.config.recipe import Recipe, flat, unresolved_yaml
from d2e_sft.config.reference import explain, json_schema, recipe_keys
from d2e_sft.util.files import load_yaml
from tests.command import output_of


@pytest.mark.parametrize(
    ("decoder", "kept", "alpha"),
    [
        ("d2e", "d2e", 0.4),
        ("d2e:alpha=0.7", "d2e", 0.7),
        ("plain", "plain", 0.0),
        ("cad", "cad:weight=1", 0.0),
        ("cad:weight=0.50", "cad:weight=0.5", 0.0),
        ("my.decoders:mine:k=3:j=0.5", "my.decoders:mine:k=3,j=0.5", 0.0),
        ("my.decoders:mine:k=3,j=0.5", "my.decoders:mine:k=3,j=0.5", 0.0),
        ("my.decoders:mine", "my.decoders:mine", 0.0),
    ],
)
def test_a_decoder_is_kept_with_its_options_spelt_out(decoder: str, kept: str, alpha: float) -> None:
    config = DecodingConfig(alpha=0.4, decoder=decoder)
    assert (config.decoder, config.alpha) == (kept, alpha)
    assert DecodingConfig(alpha=config.alpha, decoder=config.decoder) == config


def test_plain_decoding_alone_needs_no_imagined_view() -> None:
    needing = {name for name in DECODERS if DecodingConfig(decoder=name).needs_imagined}
    assert needing == set(DECODERS) - {"plain"}
    assert not DecodingConfig(alpha=0).needs_imagined
    assert DecodingConfig(decoder="mine:f").needs_imagined


@pytest.mark.parametrize(
    ("config", "record", "words"),
    [
        (DecodingConfig(alpha=0), {"alpha": 0}, "plainly"),
        (DecodingConfig(decoder="plain"), {"alpha": 0.0}, "plainly"),
        (DecodingConfig(alpha=0.5), {"alpha": 0.5}, "debiased with α = 0.5"),
        (
            DecodingConfig(alpha=0.5, plausibility=0.1),
            {"alpha": 0.5, "plausibility": 0.1},
            "debiased with α = 0.5 and a plausibility cut-off of 0.1",
        ),
        (
            DecodingConfig(decoder="adacad", plausibility=0.1),
            {"alpha": None, "decoder": "adacad:floor=0", "plausibility": 0.1},
            "with adacad:floor=0 and a plausibility cut-off of 0.1",
        ),
    ],
)
def test_a_record_holds_what_is_not_the_default(config: DecodingConfig, record: dict[str, Any], words: str) -> None:
    assert config.record() == record
    assert describe({**record, "model": "m"}) == words


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def test_it_is_found_in_the_working_folder_and_in_packages_there(folder: Path) -> None:
    (folder / "mine_one.py").write_text("def twice(x):\n    return 2 * x\n", encoding="utf-8")
    (folder / "mine_two").mkdir()
    (folder / "mine_two" / "part.py").write_text("def thrice(x):\n    return 3 * x\n", encoding="utf-8")
    assert load_function("mine_one:twice", "decoder")(4) == 8
    assert load_function("mine_two.part:thrice", "decoder")(4) == 12


def test_an_installed_module_comes_before_one_of_the_same_name_here(folder: Path) -> None:
    (folder / "fractions.py").write_text("gcd = None\n", encoding="utf-8")
    assert load_function("fractions:Fraction", "decoder")(1, 2) == 0.5


def test_every_key_of_a_resolved_recipe_is_there_with_its_default_and_a_meaning() -> None:
    recipe = Recipe.model_validate({"model": {"lora": {}}, "data": {"train": "x"}, "train": {"output_dir": "y"}})
    keys = {key.name: key for key in recipe_keys() if not key.is_section}
    resolved = dict(flat(recipe.model_dump()))
    assert keys.keys() - {"model.lora"} == resolved.keys()
    assert {name for name, key in keys.items() if key.default is None} == {"data.train", "train.output_dir"}
    for name, key in keys.items():
        assert key.meaning.endswith((".", "…")), name
        if key.default is not None and name != "model.lora":
            read = load_yaml(key.default)
            # A tracker's empty list and numbers in another writing: the value counts.
            assert (float(read) if isinstance(resolved[name], float) else read) == resolved[name], name


def test_a_key_is_found_by_its_name_its_end_and_its_section() -> None:
    assert [key.name for key in explain("train.optim")] == ["train.optim"]
    assert [key.name for key in explain("alpha")] == ["d2e.alpha", "eval.alpha"]
    assert explain("use_dora") == explain("model.lora.use_dora")
    lora = [key.name for key in explain("model.lora")]
    assert lora[0] == "model.lora"
    assert "model.lora.use_rslora" in lora
    assert "data.train" in [key.name for key in explain("data")]


def test_the_schema_takes_every_bundled_recipe_and_knows_every_key() -> None:
    schema = json.loads(output_of("recipes", "schema"))
    assert schema == json_schema()
    for name in bundled_recipes():
        assert_fits(load_yaml(unresolved_yaml(require_recipe(name))), schema, schema)
    for extended in ("other.yaml", ["other.yaml", "d2e"]):
        assert_fits({"extends": extended}, schema, schema)
    with pytest.raises(AssertionError):
        assert_fits({"train": {"learing_rate": 1}}, schema, schema)
    with pytest.raises(AssertionError):
        assert_fits({"train": {"packing": "none"}}, schema, schema)


def assert_fits(value: Any, schema: dict[str, Any], whole: dict[str, Any]) -> None:
    """The part of JSON Schema that the recipe's needs: references, alternatives, objects, types and enumerations."""
    if "$ref" in schema:
        return assert_fits(value, whole["$defs"][schema["$ref"].rpartition("/")[2]], whole)
    if "anyOf" in schema:
        errors = []
        for option in schema["anyOf"]:
            try:
                return assert_fits(value, option, whole)
            except AssertionError as error:
                errors.append(error)
        raise AssertionError(errors)
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool}
    if schema.get("type") in kinds:
        assert isinstance(value, kinds[schema["type"]]), (value, schema)  # type: ignore[arg-type]
    if schema.get("type") == "null":
        assert value is None
    assert value in schema.get("enum", [value])
    for key, inner in value.items() if isinstance(value, dict) else ():
        assert key in schema["properties"], f"{key} is not among {list(schema['properties'])}"
        assert_fits(inner, schema["properties"][key], whole)
    return None
