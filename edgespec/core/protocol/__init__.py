"""The wire protocol `edgespec/2`: messages, signatures, handshake, session, prefix hashes (docs/protocol.md).

Public, by module:

- `gateway_session`: `GatewaySession`, `standing_error`
- `handshake`: `CloseCode`, `final_error`, `GatewayIdentity`, `NO_TOKENIZER`, `NONCE_BYTES`, `Pin`,
  `quarantine_notice`, `shown`, `Standing`, `WorkerIdentity`
- `inflow`: `Bucket`, `flood`, `Inflow`, `InflowLimits`, `TREES_BURST`, `TREES_PER_S`
- `messages`: `AnyBody`, `Bye`, `Bytes32`, `Bytes64`, `check_tree_shape`, `Close`, `Commit`, `Decline`, `decoded`,
  `encode`, `Fetch`, `Frame`, `FRAME_NODES`, `Hello`, `levels`, `MAX_COST`, `MAX_DEPTH`, `MAX_FRAME_BYTES`,
  `MAX_LEAVES`, `MAX_MICROS`, `MAX_NODES`, `MAX_PIECE_BYTES`, `MAX_POINTS`, `MAX_SHARES`, `MAX_TOKENS_PER_FRAME`,
  `Message`, `Name`, `Open`, `Pause`, `Piece`, `PROTOCOL`, `Refuse`, `Resume`, `ROOT`, `Rotation`, `Sampling`,
  `shape_error`, `Share`, `step_curve`, `StepTimes`, `Text`, `ToWorker`, `Tree`, `VERSION`, `Version`, `WorkerBody`
- `names`: `free_name`, `key_id`, `MAX_NAME`
- `prefix`: `Prefix`, `prefix_hash`
- `ranges`: all
- `redial`: `Redial`, `restart_reason`, `RESTART_S`, `restart_s`, `SETTLED_S`
- `rotation`: `gateway_rotation`, `GatewayRotation`, `GatewayRotations`, `GRACE_S`, `MAX_ROTATIONS`, `rotation`,
  `Rotations`, `successor`, `up_to`
- `session`: `DEFAULT_TIMERS`, `Event`, `Linked`, `RttSample`, `Session`, `State`, `Timers`, `together`,
  `WorkerSession`
- `signing`: `bucket`, `check_public_key`, `digest`, `HEADER_BYTES`, `SIGNATURE_BYTES`, `SigningKey`, `verify`
- `tokenizer_file`: `packed`, `TokenizerFile`, `unpacked`
- `vocabulary`: `canonical`, `fill_gaps`, `tokenizer_digest`
"""
