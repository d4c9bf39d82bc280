"""`target.engine = "vllm"`: the gateway's API, keys and links before a vLLM, which computes the target.

Like `link/` it runs in edgespec's environment. `bodies` (pure) is what passes over HTTP, `server` the vLLM that is
started or found, `same` whether one that was found serves the model, `engine` what the API submits to, `process` the
gateway with them.
"""

from edgespec_vllm.gateway.process import VllmGateway

__all__ = ["VllmGateway"]
