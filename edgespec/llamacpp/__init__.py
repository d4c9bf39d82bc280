"""Draft models in llama.cpp, used by the worker and by the gateway's local draft."""
