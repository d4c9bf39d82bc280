"""The link port: the server of workers' links, and their registry.

Public, by module:

- `paired`: `PairedWorker`, `PairedWorkers`
- `port`: `CONNECTIONS`, `link_admission`, `LinkLimits`
- `registry`: `WorkerInfo`
- `server`: `Links`
"""
