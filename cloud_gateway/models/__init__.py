"""Target model, draft sources and tokenizer text.

Public, by module:

- `headers`: `check_llamacpp`, `family_of`, `gguf_numbers`, `llamacpp_need`, `Need`, `read_config`, `spare_sequences`,
  `tensor_shapes`
- `settings`: `DEFAULTS`, `PREFILL_CHUNK`, `TargetSettings`
- `text`: `Text`
"""
