"""Modules of both worker and gateway around their cores: settings, folders, keys, pairing codes, control socket.

Unlike `edgespec.core` they use files and sockets. They import nothing of `edgespec` but `core` and each other.

Public, by module:

- `acceptor`: `Acceptor`, `AdmittedConnection`, `MeteredSocket`, `raise_descriptor_limit`, `share_descriptors`
- `address`: `Address`, `BOOKS`, `DEFAULT_PORT`, `FEATURES`, `LINK_PATH`, `not_counted`, `PAIR_PATH`,
  `parse_address`, `REQUESTS`, `requests_of`, `stored_address`, `TIMES`,
  `Tunnelled`
- `command`: all
- `contained`: `Contained`, `describe_fault`
- `control`: all
- `control_client`: all
- `fields`: `AUTO_MODELS`, `Cores`, `Folder`, `GatewayAddress`, `GpuLayers`, `Host`, `LogLevel`, `machine_name`,
  `MachineName`, `ModelPath`, `NetworkText`, `OptionalModelPath`, `pin`, `Port`, `Threads`
- `files`: `held`, `locked`, `private_folder`, `read_private`, `RecordFile`, `write_private`
- `folders`: all
- `guards`: `C`, `Guards`, `MakeGuards`, `PLAIN`, `PortBounds`, `PortGuard`, `NewcomerRefusal`
- `hf_vocabulary`: `hf_vocabulary`, `json_object`, `vocabulary`
- `installed`: `another`, `require`
- `keystore`: `KeyStore`, `new_key`
- `limited_port`: `LimitedConnection`, `LimitedPort`
- `log_text`: `cause`, `clean`, `LimitedLog`, `origin`, `places`, `Throttle`
- `logs`: all
- `models`: all
- `nearby`: `ALONE`, `Announced`, `Announcer`, `Finder`, `Found`, `GATEWAY`, `Kind`, `Nearby`
- `paired`: `PairedGateway`, `PairedGateways`, `PairedMachines`, `shown_as`, `StoredName`, `UnixTime`
- `pairing_listener`: `Invitation`, `PairingListener`
- `part`: `brought`, `composed`, `guards_of`, `Lines`, `nearby_of`, `no_lines`, `Part`, `require_trials`, `Settings`,
  `thread_rule`
- `procstat`: all
- `sdnotify`: all
- `server_keys`: `new_identity`, `new_tls_key`, `ServerIdentity`, `ServerKeyStore`
- `settings`: all
- `starting`: `on_stop_signals`, `Starting`, `Stopped`
- `threads`: `begun`, `fixed_if`, `FixedRule`, `FixedUse`, `ONE_CORE_LEFT`, `Step`, `ThreadRule`, `ThreadUse`
- `tls`: `client_context`, `peer_spki_hash`, `rotations_in`, `spki_hash`, `trusted`
- `vocabfiles`: `gguf_metadata`, `gguf_tensors`, `gguf_vocabulary`, `is_gguf`, `Vocabulary`, `vocabulary_in`
- `wire`: `FlowLimitedClient`, `PinnedClient`, `WEBSOCKET_OPTIONS`, `Wire`
"""
