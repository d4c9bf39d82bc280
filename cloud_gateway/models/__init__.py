"""Target model, draft sources, tokenizer text and grammars."""
