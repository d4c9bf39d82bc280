"""Target model, draft sources, tokenizer text and grammars.

Public, by module:

- `families`: `check_torch`
- `grammar`: all
- `settings`: `TargetSettings`
- `text`: `Text`
"""
