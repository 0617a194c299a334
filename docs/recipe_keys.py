"""Writes the page docs/reference/recipe-keys.md from the schema of recipes: `python docs/recipe_keys.py`."""

from pathlib import Path

from d2e_sft.config.reference import as_markdown

PAGE = Path(__file__).parent / "reference" / "recipe-keys.md"

if __name__ == "__main__":
    PAGE.write_text(as_markdown(), encoding="utf-8")
    print(f"written: {PAGE}")
