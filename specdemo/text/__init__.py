"""Between text and token ids: tokenizer, chat templates, grammars."""
