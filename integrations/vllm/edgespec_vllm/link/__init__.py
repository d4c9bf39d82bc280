"""The link process: workers' links, and the board's other end (`cloud-gateway link`).

It runs in edgespec's environment, not in vLLM's: this subpackage alone imports `edgespec` and `cloud_gateway`.
"""
