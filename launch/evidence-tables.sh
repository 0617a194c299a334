#!/usr/bin/env bash
# The tables of docs/evidence.md from what launch/evidence.sh has scored:  launch/evidence-tables.sh [--partial]
# A table some of whose runs are not scored is left as it was; with --partial it is made of those that are.
# Scores, recipes, training logs and manifests go along; predictions do not, as some datasets may not be passed on.
# D2E_EVIDENCE_PRECISION=float32 takes the runs of that precision, into docs/results/evidence-float32.
set -euo pipefail
precision=${D2E_EVIDENCE_PRECISION:-bfloat16}
suffix=$([ "$precision" = bfloat16 ] || echo "-$precision")
runs=${D2E_EVIDENCE:-runs/evidence}$suffix
out=${D2E_EVIDENCE_TABLES:-docs/results/evidence}$suffix
partial=${1:-}
if [ $# -gt 1 ] || [[ "$partial" != "" && "$partial" != --partial ]]; then
  echo "usage: launch/evidence-tables.sh [--partial]" >&2
  exit 2
fi
for manifest in data/piper/manifest.json data/piper-640/manifest.json; do
  [ -f "$manifest" ] || { echo "$manifest is missing: build the data first, as recipes/models/smollm2-135m-evidence.yaml says" >&2; exit 2; }
done
compgen -G "$runs/*/eval/piper/scores.json" > /dev/null || { echo "$runs: no scored run; launch/evidence.sh makes them" >&2; exit 2; }
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT
mkdir -p "$out/scores" "$out/recipes" "$out/training"

scored=()
for folder in "$runs"/*/; do
  run=$(basename "$folder")
  if [ -f "$folder/model.safetensors" ] && [ -f "$folder/trainer_state.json" ]; then
    cp "$folder/recipe.yaml" "$out/recipes/$run.yaml"
    cp "$folder/trainer_state.json" "$out/training/$run.json"
  fi
  [ -f "$folder/eval/piper/scores.json" ] || continue
  scored+=("$run")
  cp "$folder/eval/piper/scores.json" "$out/scores/$run.json"
  [ -f "$folder/eval/piper/error_patterns.png" ] && cp "$folder/eval/piper/error_patterns.png" "$out/errors-$run.png"
done
cp data/piper/manifest.json "$out/piper.json"
cp data/piper-640/manifest.json "$out/piper-640.json"

folders=()
take() { # WHAT RUN… : sets `folders` to the runs' folders; fails where the table cannot be made of them
  local run missing=()
  folders=()
  for run in "${@:2}"; do
    if [[ " ${scored[*]} " == *" $run "* ]]; then folders+=("$runs/$run"); else missing+=("$run"); fi
  done
  [ ${#missing[@]} -eq 0 ] && return
  if [ "$partial" = --partial ] && [ "${missing[0]}" != "$2" ] && [ ${#folders[@]} -gt 1 ]; then
    echo "$1: without ${missing[*]}, not scored yet" >&2
  else
    echo "$1: left as it was, not scored yet: ${missing[*]}" >&2
    return 1
  fi
}

compare() { # NAME RUN… : differences to the first RUN
  take "$@" || return 0
  d2e compare "${folders[@]}" --bench piper --json "$new/$1.json" > "$new/$1.md"
  mv "$new/$1.json" "$new/$1.md" "$out"
}

table() { # NAME LAYOUT RUN…
  take "$1" "${@:3}" || return 0
  d2e table "${folders[@]}" --bench piper --layout "$2" --out "$out/$1.md"
}

compare main sft-plain d2e d2e-plain sft base-plain base
compare seeds sft-seed1-plain d2e-seed1 d2e-seed1-plain
compare equal-compute sft-equal-compute-plain d2e
compare ablation d2e no-distill no-debias-plain no-debias sft-plain
compare gradient-and-direction d2e original-gradient refined-original original-gradient-refined-original
compare alpha d2e alpha-0.1 alpha-0.3 alpha-0.7 alpha-1.0 sft-plain
compare decoding d2e d2e-plain d2e-at-0.25 d2e-at-0.75 d2e-cut-0.1
compare learning-rate sft-lr1e-4-plain d2e-lr1e-4 d2e-lr1e-4-plain sft-lr1e-4
compare learning-rate-d2e d2e d2e-lr1e-4 d2e-lr1e-4-plain
table table-main piper base-plain base sft-plain sft d2e-plain d2e
table table-ablation ablation d2e no-distill no-debias-plain sft-plain
table table-alpha sensitivity d2e alpha-0.1 alpha-0.3 alpha-0.7 alpha-1.0

if take report.html base-plain sft-plain d2e-plain d2e; then
  d2e report "${folders[@]}" --bench piper --no-texts --title "SFT and D²E-SFT on PIPER: SmolLM2-135M" --out "$out/report.html"
fi
echo "wrote $out from ${#scored[@]} scored runs"
