#!/usr/bin/env bash
# Train and score the runs of docs/evidence.md, or only those named:  launch/evidence.sh [RUN …]
# What is done is not done again, and what was killed goes on, so the grid can be run in several sittings.
# Each model is decoded twice: debiased with the ratio of its training (α 0.5 for models trained without), and plainly.
set -euo pipefail
recipe=recipes/smollm2-135m/evidence.yaml
out=${D2E_EVIDENCE:-runs/evidence}

overrides() { # what a run changes in the recipe
  case $1 in
    *-seed1) echo "$(overrides "${1%-seed1}") train.seed=1" ;;
    *-lr*) echo "$(overrides "${1%-lr*}") train.learning_rate=${1##*-lr}" ;;
    d2e) ;;
    sft) echo d2e.debias=false d2e.distill=false ;;
    no-distill) echo d2e.distill=false ;;
    no-debias) echo d2e.debias=false ;;
    original-gradient) echo d2e.view_gradients=original ;;
    refined-original) echo d2e.kl_direction=refined_original ;;
    original-gradient-refined-original) echo d2e.view_gradients=original d2e.kl_direction=refined_original ;;
    alpha-*) echo "d2e.alpha=${1#alpha-}" ;;
    sft-equal-compute) echo "$(overrides sft) train.epochs=3" ;; # d2e lays out 1.54 times the tokens of sft
    *) echo "unknown run $1" >&2; exit 2 ;;
  esac
}

ratio() { # the α that a run is decoded with: that of its training, else 0.5
  local options
  options=$(overrides "$1")
  case "$options" in
    *d2e.alpha=*) options=${options#*d2e.alpha=} && echo "${options%% *}" ;;
    *) echo 0.5 ;;
  esac
}

score() { # MODEL ALPHA RESULTS [OPTION …]
  d2e eval "$1" --suite piper --alpha "$2" --out "$out/$3" --max-samples 100 --max-new-tokens 48 --batch-size 100 \
    --dtype bfloat16 "${@:4}"
}

error_patterns() { # MODEL ALPHA RESULTS: by rule, which asks for the answers without the contexts
  score "$1" "$2" "$3" --without-context
  d2e errors "$out/$3" --bench piper
}

runs=("$@")
if [ ${#runs[@]} -eq 0 ]; then
  runs=(base sft d2e no-distill no-debias original-gradient refined-original sft-seed1 d2e-seed1 sft-equal-compute
    alpha-0.1 alpha-0.3 alpha-0.7 alpha-1.0 original-gradient-refined-original float32)
fi
for run in "${runs[@]}"; do
  if [ "$run" = base ]; then
    score builtin:smollm2-135m-instruct 0 base-plain
    score builtin:smollm2-135m-instruct 0.5 base
    error_patterns builtin:smollm2-135m-instruct 0 base-plain
    continue
  fi
  if [ "$run" = float32 ]; then # how much of a score is bfloat16's rounding; needs sft
    score "$out/sft" 0 sft-plain-float32 --dtype float32
    continue
  fi
  case $run in # a model that is trained already, decoded otherwise
    *-at-*) # MODEL-at-ALPHA: with another ratio
      score "$out/${run%-at-*}" "${run##*-at-}" "$run"
      continue
      ;;
    *-cut-*) # MODEL-cut-BETA: with its ratio, and a plausibility cut-off
      score "$out/${run%-cut-*}" "$(ratio "${run%-cut-*}")" "$run" --plausibility "${run##*-cut-}"
      continue
      ;;
  esac
  options=$(overrides "$run")
  if [ ! -f "$out/$run/model.safetensors" ] || [ ! -f "$out/$run/trainer_state.json" ]; then
    how=$(if compgen -G "$out/$run/checkpoint-*" > /dev/null; then echo --resume; elif [ -d "$out/$run" ]; then echo --overwrite; fi)
    # shellcheck disable=SC2086  # overrides are words
    d2e train $recipe train.output_dir="$out/$run" $options $how
  fi
  score "$out/$run" "$(ratio "$run")" "$run"
  score "$out/$run" 0 "$run-plain"
  case $run in # each as it is meant to be decoded
    sft) error_patterns "$out/sft" 0 sft-plain ;;
    d2e) error_patterns "$out/d2e" 0.5 d2e ;;
  esac
done
