"""The worker daemon: drafting loop, link to the gateway, discovery, pairing, configuration.

Public, by module:

- `config`: all
- `dial`: `GatewayAddresses`
- `discovery`: `Browser`
- `link`: `Handler`, `Link`, `keep_linked`
- `models`: `identity`, `load_drafter`, `load_translation`
- `pair`: `pair`, `pair_through_peers`
- `part`: `always`, `MAY_DRAFT`, `Permission`, `Presence`, `WorkerPart`, `WorkerVerb`
- `report`: all
- `service`: `paired_gateway`
- `start`: all
"""
