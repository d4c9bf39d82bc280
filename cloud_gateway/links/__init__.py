"""The link port: the server of workers' links, each link, and the table of linked workers.

Public, by module:

- `judge`: `Judge`
- `link`: `Download`, `TokenizerOffer`, `WorkerInfo`
- `paired`: `PairedWorker`, `PairedWorkers`
- `server`: `CONNECTIONS`, `link_bounds`, `Links`
"""
