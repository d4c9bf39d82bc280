"""A Hugging Face folder (fp32 weights, tokenizer) from a GGUF file: `python mkhf.py GGUF FOLDER`."""

import sys
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

gguf = Path(sys.argv[1])
folder = sys.argv[2]
where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
loaded = AutoModelForCausalLM.from_pretrained(**where)
config = loaded.config
if hasattr(config, "quantization_config"):
    del config.quantization_config
plain = LlamaForCausalLM(config)
plain.load_state_dict(loaded.state_dict())
plain.save_pretrained(folder)
AutoTokenizer.from_pretrained(**where).save_pretrained(folder)
