"""Target model, draft sources, tokenizer text and grammars.

Public, by module:

- `grammar`: all
- `headers`: `check_llamacpp`, `family_of`, `gguf_numbers`, `heads_need`, `llamacpp_need`, `Need`, `read_config`,
  `spare_sequences`, `tensor_shapes`
- `settings`: `DEFAULTS`, `PREFILL_CHUNK`, `TargetSettings`
- `text`: `Text`
"""
