#!/usr/bin/env bash
# The tests that need vLLM, in the environment $1: `make test-vllm`. vLLM runs in the tests' process, on one core.
set -eu
source "$(dirname "$0")/environment.sh"
exec "$1/bin/python" -m pytest -q -c /dev/null --rootdir integrations/vllm --import-mode=importlib -p no:cacheprovider \
  integrations/vllm/live "${@:2}"
