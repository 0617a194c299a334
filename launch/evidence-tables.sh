#!/usr/bin/env bash
# The tables of docs/evidence.md from what launch/evidence.sh has scored so far:  launch/evidence-tables.sh
# Scores, recipes and manifests go along; predictions do not, as some datasets may not be passed on.
set -euo pipefail
runs=${D2E_EVIDENCE:-runs/evidence}
out=${D2E_EVIDENCE_TABLES:-docs/results/evidence}
mkdir -p "$out/scores" "$out/recipes"

scored=()
for folder in "$runs"/*/; do
  run=$(basename "$folder")
  [ -f "$folder/eval/piper/scores.json" ] || continue
  [ -f "$folder/recipe.yaml" ] && cp "$folder/recipe.yaml" "$out/recipes/$run.yaml"
  scored+=("$run")
  cp "$folder/eval/piper/scores.json" "$out/scores/$run.json"
  [ -f "$folder/eval/piper/error_patterns.png" ] && cp "$folder/eval/piper/error_patterns.png" "$out/errors-$run.png"
done
cp data/piper/manifest.json "$out/piper.json"
cp data/piper-640/manifest.json "$out/piper-640.json"

having() { # those of the named runs that are scored
  for run in "$@"; do
    if [[ " ${scored[*]} " == *" $run "* ]]; then echo "$runs/$run"; else echo "not scored yet: $run" >&2; fi
  done
}

compare() { # NAME RUN… : differences to the first RUN
  local folders
  mapfile -t folders < <(having "${@:2}")
  [ ${#folders[@]} -lt 2 ] || d2e compare "${folders[@]}" --bench piper --json "$out/$1.json" > "$out/$1.md"
}

table() { # NAME LAYOUT RUN…
  local folders
  mapfile -t folders < <(having "${@:3}")
  [ ${#folders[@]} -eq 0 ] || d2e table "${folders[@]}" --bench piper --layout "$2" --out "$out/$1.md"
}

compare main sft-plain d2e d2e-plain sft base-plain base
compare seeds sft-seed1-plain d2e-seed1 d2e-seed1-plain
compare equal-compute sft-equal-compute-plain d2e
compare ablation d2e no-distill no-debias-plain no-debias sft-plain
compare gradient-and-direction d2e original-gradient refined-original original-gradient-refined-original
compare alpha d2e alpha-0.1 alpha-0.3 alpha-0.7 alpha-1.0 sft-plain
compare decoding d2e d2e-plain d2e-at-0.25 d2e-at-0.75 d2e-cut-0.1
compare rounding sft-plain sft-plain-float32
table table-main piper base-plain base sft-plain sft d2e-plain d2e
table table-ablation ablation sft d2e no-distill no-debias
table table-alpha sensitivity alpha-0.1 alpha-0.3 d2e alpha-0.7 alpha-1.0

mapfile -t pages < <(having base-plain sft-plain d2e-plain d2e)
[ ${#pages[@]} -lt 2 ] || d2e report "${pages[@]}" --bench piper --no-texts --title "SFT and D²E-SFT on PIPER: SmolLM2-135M" \
  --out "$out/report.html"
echo "wrote $out from ${#scored[@]} scored runs"
