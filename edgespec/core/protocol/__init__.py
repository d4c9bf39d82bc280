"""The wire protocol `edgespec/2`: messages, signatures, handshake, session, prefix hashes (docs/protocol.md).

Public, by module:

- `digests`: `canonical`, `fill_gaps`, `Prefix`, `prefix_hash`, `tokenizer_digest`
- `gateway_session`: `GatewaySession`, `standing_error`
- `handshake`: `CloseCode`, `final_error`, `gateway_rotation`, `GatewayIdentity`, `GatewayRotation`,
  `GatewayRotations`, `GRACE_S`, `MAX_ROTATIONS`, `NO_TOKENIZER`, `NONCE_BYTES`, `Notice`, `notice_of`, `Pin`,
  `rotation`, `Rotations`, `shown`, `Standing`, `successor`, `up_to`, `WorkerIdentity`
- `inflow`: `Bucket`, `flood`, `Inflow`, `InflowLimits`, `TREES_BURST`, `TREES_PER_S`
- `messages`: `AnyBody`, `Books`, `Bye`, `Bytes32`, `Bytes64`, `check_tree_shape`, `Close`, `Commit`, `Decline`,
  `decoded`, `encode`, `Extra`, `Fetch`, `Frame`, `FRAME_NODES`, `Hello`, `levels`, `MAX_COST`, `MAX_DEPTH`,
  `MAX_FRAME_BYTES`, `MAX_LEAVES`, `MAX_MICROS`, `MAX_NODES`, `MAX_PIECE_BYTES`, `MAX_POINTS`, `MAX_SHARES`,
  `MAX_TOKENIZER_BYTES`, `MAX_TOKENS_PER_FRAME`, `Message`, `Name`, `Open`, `Pause`, `Piece`, `PROTOCOL`, `Refuse`,
  `Resume`, `ROOT`, `Rotation`, `Sampling`, `shape_error`, `Share`, `step_curve`, `StepTimes`, `Text`, `ToWorker`,
  `Tree`, `VERSION`, `Version`, `WorkerBody`, `WorkerTimes`
- `names`: `free_name`, `key_id`, `MAX_NAME`
- `ranges`: all
- `redial`: `Redial`, `restart_reason`, `RESTART_S`, `restart_s`, `SETTLED_S`
- `session`: `DEFAULT_TIMERS`, `Event`, `Linked`, `RttSample`, `Session`, `SessionState`, `Timers`, `together`,
  `WorkerSession`
- `signing`: `bucket`, `check_public_key`, `digest`, `HEADER_BYTES`, `SIGNATURE_BYTES`, `SigningKey`, `StoredKind`,
  `verify`
- `worth`: `figures_of`, `helps`, `judged`, `LATE`, `late_share`, `NOTHING`, `verdict`, `WorkerFigures`
"""
