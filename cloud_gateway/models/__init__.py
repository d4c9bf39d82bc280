"""Target model, draft sources, tokenizer text and grammars.

Public, by module:

- `families`: `check_torch`, `family_of`
- `grammar`: all
- `sizes`: `Need`, `heads_need`, `llamacpp_need`, `torch_need`
- `settings`: `PREFILL_CHUNK`, `TargetSettings`
- `text`: `Text`
"""
