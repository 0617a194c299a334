"""Writes the page docs/reference/recipe-keys.md from the schema of recipes: `python docs/recipe_keys.py`."""

from pathlib import Path

from d2e_sft.config.reference import recipe_keys

PAGE = Path(__file__).parent / "reference" / "recipe-keys.md"
ABOUT = """\
# Recipe keys

Every key of a recipe, with type, default and meaning. `d2e recipes explain KEY` prints one; `d2e recipes schema >
recipe.schema.json` writes the JSON schema, which editors check YAML by: begin a recipe with the line
`# yaml-language-server: $schema=recipe.schema.json`. How recipes are composed: [Recipes](recipes.md).

This page is made from the schema: `python docs/recipe_keys.py`.
"""


def files() -> dict[Path, str]:
    """The page with a table per section."""
    lines = [ABOUT]
    for key in recipe_keys():
        kind, meaning = (text.replace("|", "\\|") for text in (key.kind, key.meaning))
        default = "required" if key.default is None else f"`{key.default}`"
        if key.is_section:
            lines += [
                f"\n## {key.name}\n",
                f"{key.meaning}\n",
                "| key | values | default | meaning |",
                "|---|---|---|---|",
            ]
        else:
            lines.append(f"| `{key.name}` | {kind} | {default} | {meaning} |")
    return {PAGE: "\n".join(lines) + "\n"}


if __name__ == "__main__":
    for file, text in files().items():
        file.write_text(text, encoding="utf-8")
        print(f"written: {file}")
