"""The link process: workers' links, and the board's other end (`cloud-gateway link`).

It runs in edgespec's environment, not in vLLM's: this subpackage and `gateway` alone import `edgespec` and
`cloud_gateway`.
"""
