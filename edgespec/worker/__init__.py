"""The worker daemon: drafting loop, link to the gateway, pairing, configuration.

Public, by module:

- `commands`: all
- `config`: all
- `dial`: `GatewayAddresses`
- `link`: `Addresses`, `Handler`, `Link`, `keep_linked`
- `models`: `identity`, `load_drafter`, `target_tokens`
- `pair`: `pair`
- `part`: `always`, `MAY_DRAFT`, `PairingOption`, `Permission`, `Presence`, `RunningPart`, `WorkerPart`,
  `WorkerProcess`, `WorkerVerb`
- `report`: all
- `service`: `paired_gateway`
- `start`: all
- `step_timer`: `ASSUMED`, `StepTimer`
- `tokens`: `DraftTokens`, `RefusedTokens`, `TargetTokens`
"""
