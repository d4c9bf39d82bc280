"""Pairing by a one-time code: messages, the SPAKE2 exchange, the gateway's window.

Public, by module:

- `announcements`: `Announcements`
- `exchange`: `Entropy`, `GatewayExchange`, `Party`, `Peer`, `Purpose`, `State`, `WorkerExchange`
- `groups`: `DEFAULT_GROUPS`, `Groups`, `OWN_GROUP`, `parse_groups`
- `messages`: `CHECK_DIGITS`, `check_number`, `Code`, `decode_pairing`, `MAX_NAMEPLATE`, `MAX_PAIRING_BYTES`,
  `MIN_NAMEPLATE`, `PairingFailed`, `PairingMessage`, `Reason`, `Refused`, `SENTENCES`, `Start`
- `window`: `Closed`, `Event`, `Failed`, `MAX_FAILURES`, `Paired`, `PairingWindow`, `Shown`, `WINDOW_S`
"""
