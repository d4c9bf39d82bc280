"""Target model, draft sources, tokenizer text and grammars.

Public, by module:

- `grammar`: all
- `settings`: `TargetSettings`
- `text`: `Text`
"""
