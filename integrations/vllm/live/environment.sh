# The environment of a vLLM in $1 that runs in the process of a test, on one core; sourced.
cd "$(dirname "$0")/../../.."
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_CPU_KVCACHE_SPACE=1
export VLLM_CPU_OMP_THREADS_BIND=0 LD_PRELOAD="$PWD/$1/lib/libiomp5.so" EDGESPEC_VLLM_MODEL="${EDGESPEC_VLLM_MODEL:-$PWD/$1/smol}"
export PYTHONPATH="$PWD:$PWD/integrations/vllm"
