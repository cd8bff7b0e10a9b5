#!/usr/bin/env bash
# Tune `compact` on a folder of photographs, then match two photographs with both models and draw the matches.
#
#   bash examples/tune.sh photos mine a.jpg b.jpg [options of `python -m training tune`]
set -euo pipefail
photos=$1 out=$2 a=$3 b=$4
shift 4

python -m training tune "$photos" -o "$out" "$@"
matchserve match "$a" "$b" --draw "$out-before.png"
matchserve match "$a" "$b" --model "$(realpath "$out")" --draw "$out-after.png"
echo "serve it: MATCHSERVE_MODELS_DIR=$(dirname "$(realpath "$out")") matchserve serve --default-model $(basename "$out")"
