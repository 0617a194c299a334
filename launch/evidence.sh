#!/usr/bin/env bash
# Train and score the runs of docs/evidence.md, or only those named:  launch/evidence.sh [RUN …]
# What is done is not done again, and what was killed goes on, so the grid can be run in several sittings.
# Each model is decoded twice: debiased with the ratio of its training (α 0.5 for models trained without), and plainly.
# D2E_EVIDENCE_PRECISION=float32 trains and scores in float32, in a folder of its own (runs/evidence-float32): to see whether
# bfloat16's rounding decides anything, and because a processor without AMX multiplies float32 faster.
set -euo pipefail
recipe=smollm2-135m-evidence/full
precision=${D2E_EVIDENCE_PRECISION:-bfloat16}
out=${D2E_EVIDENCE:-runs/evidence}$([ "$precision" = bfloat16 ] || echo "-$precision")

overrides() { # what a run changes in the recipe
  case $1 in
    *-seed1) overrides "${1%-seed1}" && echo train.seed=1 ;;
    *-lr*) overrides "${1%-lr*}" && echo "train.learning_rate=${1##*-lr}" ;;
    d2e) ;;
    sft) echo d2e.debias=false d2e.distill=false ;;
    no-distill) echo d2e.distill=false ;;
    no-debias) echo d2e.debias=false ;;
    original-gradient) echo d2e.view_gradients=original ;;
    refined-original) echo d2e.kl_direction=refined_original ;;
    original-gradient-refined-original) echo d2e.view_gradients=original d2e.kl_direction=refined_original ;;
    alpha-*) echo "d2e.alpha=${1#alpha-}" ;;
    sft-equal-compute) overrides sft && echo train.epochs=3 ;; # d2e lays out 1.54 times the tokens of sft
    *) echo "unknown run $1" >&2; return 2 ;;
  esac
}

ratio() { # the α that a run is decoded with: that of its training, else 0.5
  local options
  options=$(overrides "$1") || return
  case "$options" in
    *d2e.alpha=*) options=${options#*d2e.alpha=} && echo "${options%%[[:space:]]*}" ;;
    *) echo 0.5 ;;
  esac
}

score() { # MODEL ALPHA RESULTS [OPTION …]
  d2e eval "$1" --suite piper --alpha "$2" --out "$out/$3" --max-samples 100 --max-new-tokens 48 --batch-size 100 \
    --dtype "$precision" "${@:4}"
}

error_patterns() { # MODEL ALPHA RESULTS: by rule, which asks for the answers without the contexts
  score "$1" "$2" "$3" --without-context
  d2e errors "$out/$3" --bench piper
}

runs=("$@")
if [ ${#runs[@]} -eq 0 ]; then
  runs=(base sft d2e no-distill no-debias original-gradient refined-original sft-seed1 d2e-seed1 sft-equal-compute
    alpha-0.1 alpha-0.3 alpha-0.7 alpha-1.0 d2e-at-0.25 d2e-at-0.75 d2e-cut-0.1 sft-cut-0.1
    original-gradient-refined-original d2e-lr1e-4 sft-lr1e-4)
fi
for run in "${runs[@]}"; do
  if [ "$run" = base ]; then
    score builtin:smollm2-135m-instruct 0 base-plain
    score builtin:smollm2-135m-instruct 0.5 base
    error_patterns builtin:smollm2-135m-instruct 0 base-plain
    continue
  fi
  case $run in # a model that is trained already, decoded otherwise
    *-at-* | *-cut-*)
      model=${run%-at-*} && model=${model%-cut-*}
      [ -f "$out/$model/model.safetensors" ] || { echo "$run: $out/$model is not trained yet" >&2; exit 2; }
      ;;&
    *-at-*) # MODEL-at-ALPHA: with another ratio
      score "$out/${run%-at-*}" "${run##*-at-}" "$run"
      continue
      ;;
    *-cut-*) # MODEL-cut-BETA: with its ratio, and a plausibility cut-off
      alpha=$(ratio "${run%-cut-*}")
      score "$out/${run%-cut-*}" "$alpha" "$run" --plausibility "${run##*-cut-}"
      continue
      ;;
  esac
  options=$(overrides "$run")
  if [ ! -f "$out/$run/model.safetensors" ] || [ ! -f "$out/$run/trainer_state.json" ]; then
    how=$(if compgen -G "$out/$run/checkpoint-*" > /dev/null; then echo --resume; elif [ -d "$out/$run" ]; then echo --overwrite; fi)
    # shellcheck disable=SC2086  # overrides are words
    d2e train $recipe train.output_dir="$out/$run" train.precision="$precision" $options $how
  fi
  alpha=$(ratio "$run")
  score "$out/$run" "$alpha" "$run"
  score "$out/$run" 0 "$run-plain"
  case $run in
    sft | d2e) # answers without the contexts are decoded plainly, so only runs of one α compare
      error_patterns "$out/$run" 0.5 "$run"
      error_patterns "$out/$run" 0 "$run-plain"
      ;;
  esac
done
