#!/usr/bin/env bash
# Drafts in company, in the environment $1 that `make vllm` made; further arguments are priced.py's.
set -eu
source "$(dirname "$0")/environment.sh"
exec "$1/bin/python" -m integrations.vllm.live.priced "${@:2}"
