"""The worker daemon: drafting loop, link to the gateway, discovery, pairing, configuration.

Public, by module:

- `config`: all
- `discovery`: `Browser`
- `nearby`: `pair_nearby`
- `pair`: `pair`, `Pairing`
- `priority`: all
- `report`: all
- `service`: `load_drafter`, `Service`
"""
