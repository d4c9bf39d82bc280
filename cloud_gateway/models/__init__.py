"""Target model, draft sources, tokenizer text and grammars.

Public, by module:

- `grammar`: all
- `headers`: `check_llamacpp`, `check_torch`, `family_of`, `heads_need`, `llamacpp_need`, `Need`, `spare_sequences`,
  `torch_need`
- `settings`: `PREFILL_CHUNK`, `TargetSettings`
- `text`: `Text`
"""
