"""Pairing by a one-time code: messages, the SPAKE2 exchange, the gateway's window.

Public, by module:

- `exchange`: `GatewayExchange`, `LINK`, `Party`, `Peer`, `ExchangeState`, `WorkerExchange`
- `groups`: `DEFAULT_GROUPS`, `Groups`, `OWN_GROUP`, `parse_groups`
- `messages`: `Code`, `decode_pairing`, `MAX_PAIRING_BYTES`, `PairingFailed`, `PairingMessage`,
  `parse_code`, `Reason`, `Refused`, `SENTENCES`, `Start`
- `window`: `WindowClosed`, `Event`, `AttemptFailed`, `MAX_FAILURES`, `Paired`, `PairingWindow`, `Shown`, `WINDOW_S`
"""
