"""Chat templates in the manner of well-known model families, with their control tokens, over tiny tokenizers.

The templates are short ones of our own. They use the control tokens of their family and look into contents, trim,
cut and quote them the way that the family's template does.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from tests.support.tiny_tokenizer import tiny_tokenizer


@dataclass(frozen=True)
class Family:
    """A template and the tokens that it needs. `added` are control tokens that are not marked as special."""

    template: str
    special: Sequence[str]
    added: Sequence[str] = ()
    ordinary: Sequence[str] = ()
    """Added tokens that are only text."""
    bos: str | None = None
    sentencepiece: bool = False
    tools: bool = False


ASSISTANT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe helpful.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}" + ASSISTANT
)
QWEN_TOOLS = (
    "{%- if tools %}{{- '<|im_start|>system\n' }}"
    "{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}"
    "{{- '# Tools\n<tools>' }}{%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}"
    "{{- '\n</tools>\nAnswer with <tool_call>{}</tool_call>.<|im_end|>\n' }}"
    "{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}"
    "{%- endif %}"
)
QWEN_CALLS = (
    "{%- for call in message.tool_calls %}{%- if call.function %}{%- set call = call.function %}{%- endif %}"
    '{{- \'\n<tool_call>\n{"name": "\' }}{{- call.name }}{{- \'", "arguments": \' }}'
    "{%- if call.arguments is string %}{{- call.arguments }}{%- else %}{{- call.arguments | tojson }}{%- endif %}"
    "{{- '}\n</tool_call>' }}{%- endfor %}"
)
QWEN_RESULTS = (
    "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}"
    "{{- '\n<tool_response>\n' }}{{- content }}{{- '\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}"
)
QWEN_25 = (
    QWEN_TOOLS + "{%- for message in messages %}{%- set content = message.content %}"
    "{%- if message.role == 'user' or (message.role == 'system' and not loop.first)"
    " or (message.role == 'assistant' and not message.tool_calls) %}"
    "{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}"
    "{%- elif message.role == 'assistant' %}{{- '<|im_start|>' + message.role }}"
    "{%- if content %}{{- '\n' + content }}{%- endif %}" + QWEN_CALLS + "{{- '<|im_end|>\n' }}"
    "{%- elif message.role == 'tool' %}" + QWEN_RESULTS + "{%- endif %}{%- endfor %}" + ASSISTANT
)
QWEN_3 = (
    QWEN_TOOLS + "{%- set ns = namespace(searching=true, last=messages|length - 1) %}"
    "{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}"
    "{%- if ns.searching and message.role == 'user' and message.content is string"
    " and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}"
    "{%- set ns.searching = false %}{%- set ns.last = index %}{%- endif %}{%- endfor %}"
    "{%- for message in messages %}"
    "{%- if message.content is string %}{%- set content = message.content %}{%- else %}"
    "{%- set content = '' %}{%- endif %}"
    "{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}"
    "{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}"
    "{%- elif message.role == 'assistant' %}{%- set reasoning = '' %}"
    "{%- if '</think>' in content %}"
    "{%- set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}"
    "{%- if loop.index0 > ns.last and (loop.last or reasoning) %}"
    "{{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning.strip('\n') + '\n</think>\n\n'"
    " + content.lstrip('\n') }}"
    "{%- else %}{{- '<|im_start|>' + message.role + '\n' + content }}{%- endif %}"
    + QWEN_CALLS
    + "{{- '<|im_end|>\n' }}"
    "{%- elif message.role == 'tool' %}" + QWEN_RESULTS + "{%- endif %}{%- endfor %}" + ASSISTANT
)
LLAMA_2 = (
    "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system = messages[0]['content'] %}"
    "{% else %}{% set rest = messages %}{% set system = false %}{% endif %}{% for message in rest %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}"
    "{% endif %}{% if loop.index0 == 0 and system != false %}"
    "{% set content = '<<SYS>>\n' + system + '\n<</SYS>>\n\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
LLAMA_31 = (
    "{{- bos_token }}{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content']|trim %}"
    "{%- set messages = messages[1:] %}{%- else %}{%- set system = '' %}{%- endif %}"
    "{{- '<|start_header_id|>system<|end_header_id|>\n\n' }}{%- if tools is not none %}"
    "{{- 'Environment: ipython\n' }}"
    "{%- for t in tools %}{{- t | tojson(indent=4) }}{{- '\n\n' }}{%- endfor %}{%- endif %}{{- system }}"
    "{{- '<|eot_id|>' }}"
    "{%- for message in messages %}{%- if not (message.role == 'tool' or 'tool_calls' in message) %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}"
    "{%- elif 'tool_calls' in message %}{%- set call = message.tool_calls[0].function %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}{{- '{\"name\": \"' + call.name + '\", ' }}"
    "{{- '\"parameters\": ' }}{{- call.arguments | tojson }}{{- '}' }}{{- '<|eot_id|>' }}"
    "{%- else %}{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' }}{{- message.content | tojson }}"
    "{{- '<|eot_id|>' }}"
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
MISTRAL_3 = (
    "{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'] %}"
    "{%- set rest = messages[1:] %}"
    "{%- else %}{%- set rest = messages %}{%- endif %}{{- bos_token }}{%- for message in rest %}"
    "{%- if message['role'] == 'user' %}{%- if tools is not none and loop.first %}{{- '[AVAILABLE_TOOLS] [' }}"
    '{%- for tool in tools %}{%- set tool = tool.function %}{{- \'{"type": "function", "function": {\' }}'
    "{%- for key, val in tool.items() if key != 'return' %}{%- if val is string %}"
    "{{- '\"' + key + '\": \"' + val + '\"' }}{%- else %}{{- '\"' + key + '\": ' + val|tojson }}{%- endif %}"
    "{%- if not loop.last %}{{- ', ' }}{%- endif %}{%- endfor %}{{- '}}' }}"
    "{%- if not loop.last %}{{- ', ' }}{%- else %}{{- ']' }}{%- endif %}{%- endfor %}{{- '[/AVAILABLE_TOOLS]' }}"
    "{%- endif %}{%- if loop.last and system is defined %}"
    "{{- '[INST] ' + system + '\n\n' + message['content'] + '[/INST]' }}"
    "{%- else %}{{- '[INST] ' + message['content'] + '[/INST]' }}{%- endif %}"
    "{%- elif message.tool_calls is defined %}{{- '[TOOL_CALLS] [' }}{%- for call in message.tool_calls %}"
    "{%- set out = call.function|tojson %}{{- out[:-1] }}{%- if call.id is not defined or call.id|length != 9 %}"
    "{{- raise_exception('Tool call IDs have length 9!') }}{%- endif %}{{- ', \"id\": \"' + call.id + '\"}' }}"
    "{%- if not loop.last %}{{- ', ' }}{%- else %}{{- ']' + eos_token }}{%- endif %}{%- endfor %}"
    "{%- elif message['role'] == 'assistant' %}{{- ' ' + message['content']|trim + eos_token }}"
    "{%- elif message['role'] == 'tool' %}{{- '[TOOL_RESULTS] {\"content\": ' + message.content|string + ', ' }}"
    "{{- '\"call_id\": \"' + message.tool_call_id + '\"}[/TOOL_RESULTS]' }}{%- endif %}{%- endfor %}"
)
GEMMA = (
    "{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}{%- set prefix = messages[0]['content'] + '\n\n' -%}"
    "{%- set rest = messages[1:] -%}{%- else -%}{%- set prefix = '' -%}{%- set rest = messages -%}{%- endif -%}"
    "{%- for message in rest -%}{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}"
    "{{ raise_exception('roles must alternate') }}{%- endif -%}"
    "{%- if message['role'] == 'assistant' -%}{%- set role = 'model' -%}{%- else -%}"
    "{%- set role = message['role'] -%}"
    "{%- endif -%}{{ '<start_of_turn>' + role + '\n' + (prefix if loop.first else '') }}"
    "{%- if message['content'] is string -%}{{ message['content'] | trim }}{%- endif -%}{{ '<end_of_turn>\n' }}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"
)
PHI_3 = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + '\n' + message['content'] + '<|end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
OLMO_2 = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}"
    "{{ '<|system|>\n' + message['content'] + '\n' }}{% elif message['role'] == 'user' %}"
    "{{ '<|user|>\n' + message['content'] + '\n' }}{% elif message['role'] == 'assistant' %}{% if not loop.last %}"
    "{{ '<|assistant|>\n' + message['content'] + eos_token + '\n' }}{% else %}"
    "{{ '<|assistant|>\n' + message['content'] + eos_token }}{% endif %}{% endif %}"
    "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}"
)
HARMONY = (
    "{%- macro kind(spec) %}{%- if spec.enum %}{{- spec.enum|join(' | ') }}"
    "{%- elif spec.type == 'array' %}{{- kind(spec['items'] or {}) + '[]' }}{%- else %}{{- spec.type or 'any' }}"
    "{%- endif %}{%- endmacro %}"
    "{%- macro opening(role, channel='') %}{{- '<|start|>' + role }}"
    "{%- if channel %}{{- '<|channel|>' + channel }}{%- endif %}{{- '<|message|>' }}{%- endmacro %}"
    "{{- opening('system') }}{{- 'You answer.\n# Valid channels: analysis, final.' }}{{- '<|end|>' }}"
    "{%- if messages[0].role == 'system' %}{%- set developer = messages[0].content %}{%- set rest = messages[1:] %}"
    "{%- else %}{%- set developer = '' %}{%- set rest = messages %}{%- endif %}"
    "{%- if developer or tools %}{{- opening('developer') }}{{- developer }}{%- if tools %}"
    "{{- '\nnamespace functions {\n' }}"
    "{%- for tool in tools %}{%- set tool = tool.function %}"
    "{{- '// ' + tool.description + '\ntype ' + tool.name + ' = (_: {' }}"
    "{%- for name, spec in tool.parameters.properties.items() %}{{- '\n' + name }}"
    "{%- if name not in (tool.parameters.required or []) %}{{- '?' }}{%- endif %}"
    "{{- ': ' + kind(spec) + ',' }}{%- endfor %}"
    "{{- '\n}) => any;\n' }}{%- endfor %}{{- '}' }}{%- endif %}{{- '<|end|>' }}{%- endif %}"
    "{%- set last = namespace(name=none) %}{%- for message in rest %}{%- if message.role == 'assistant' %}"
    "{%- if message.tool_calls %}{%- set call = message.tool_calls[0].function %}{%- set last.name = call.name %}"
    "{{- '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json<|message|>' }}"
    "{{- call.arguments|tojson }}{{- '<|call|>' }}{%- else %}"
    "{%- if '<|channel|>' in message.content %}{{- raise_exception('Pass thinking apart.') }}{%- endif %}"
    "{{- opening('assistant', 'final') }}{{- message.content }}{{- '<|end|>' }}{%- endif %}"
    "{%- elif message.role == 'tool' %}{{- '<|start|>functions.' + (last.name or 'tool') }}"
    "{{- ' to=assistant<|channel|>commentary<|message|>' + message.content|tojson + '<|end|>' }}"
    "{%- else %}{{- opening(message.role) }}{{- message.content }}{{- '<|end|>' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}"
)
DEEPSEEK = (
    "{% set ns = namespace(is_first=true, system='', is_tool=false) %}{%- for message in messages %}"
    "{%- if message['role'] == 'system' %}{% set ns.system = ns.system + '\n\n' + message['content'] %}{%- endif %}"
    "{%- endfor %}{{ bos_token }}{{ ns.system }}{%- for message in messages %}{%- if message['role'] == 'user' %}"
    "{%- set ns.is_tool = false %}{{ '<｜User｜>' + message['content'] }}{%- endif %}"
    "{%- if message['role'] == 'assistant' and message['tool_calls'] %}{{ '<｜Assistant｜><｜tool▁calls▁begin｜>' }}"
    "{%- for tool in message['tool_calls'] %}{{ '<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>'"
    " + tool['function']['name'] + '\n```json\n' + tool['function']['arguments']|tojson + '\n```'"
    " + '<｜tool▁call▁end｜>' }}"
    "{%- endfor %}{{ '<｜tool▁calls▁end｜>' + eos_token }}{%- elif message['role'] == 'assistant' %}"
    "{%- set content = message['content'] %}{%- if '</think>' in content %}"
    "{%- set content = content.split('</think>')[-1] %}{%- endif %}"
    "{{ '<｜Assistant｜>' + content + eos_token }}{%- endif %}"
    "{%- if message['role'] == 'tool' %}"
    "{{ '<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>' }}"
    "{%- endif %}{%- endfor %}{# tools #}{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\n' }}{% endif %}"
)
PUT_TOGETHER = (
    "{% set marks = {'user': '<|u|>', 'assistant': '<|a|>', 'system': '<|s|>'} %}{% set parts = [] %}"
    "{% for message in messages %}"
    "{{ [marks[message.role], message.content|replace('\n', '<|nl|>'), '<|e|>']|join('\n') }}"
    "{{ '\n'.join(['', message.content|upper|lower, '<|e|>']) }}{{ '<|e' ~ '|>' }}"
    "{{ message.name or '<|e|>' }}{{ '<|nl|>' if message.content[0] == '^' else '' }}{% endfor %}"
    "{% set end %}{{ '<|a|>' }}{% endset %}{{ end|trim|default('<|e|>') }}"
    "{% with x = '<|u|>' %}{{ {'a': x, 'b': '<|e|>'}['b'] }}{{ {'a': x}.get('a') }}"
    "{{ {}.get('a', '<|a|>') }}{% endwith %}"
    "{% for x in ['<|u|>', '<|e|>'] %}{{ loop.previtem or '<|s|>' }}{{ ('<|u|>', x)[1] }}{% endfor %}"
    "{% filter trim %} <|e|> {% endfilter %}{% macro m(a, b='<|s|>') %}{{ a }}{{ b }}{% endmacro %}{{ m('<|u|>') }}"
)
QWEN_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<|fim_pad|>")
CHATML_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA_3_TOKENS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>")
MISTRAL_TOKENS = (
    "[INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_CALLS] [TOOL_RESULTS] [/TOOL_RESULTS]".split()
)
DEEPSEEK_TAGS = (
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁output▁begin｜>",
    "<｜tool▁output▁end｜>",
)
FAMILIES: Mapping[str, Family] = {
    "smollm2": Family(CHATML, CHATML_TOKENS),
    "qwen2.5": Family(QWEN_25, CHATML_TOKENS, QWEN_TAGS, tools=True),
    "qwen3": Family(QWEN_3, CHATML_TOKENS, QWEN_TAGS, tools=True),
    "llama2": Family(LLAMA_2, ("<s>", "</s>"), bos="<s>", sentencepiece=True),
    "llama3.1": Family(LLAMA_31, LLAMA_3_TOKENS, bos="<|begin_of_text|>", tools=True),
    "mistral3": Family(MISTRAL_3, ("<s>", "</s>", *MISTRAL_TOKENS), bos="<s>", sentencepiece=True, tools=True),
    "gemma3": Family(
        GEMMA, ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"), ("<unused0>",), ("\n\n", "<table>"), "<bos>"
    ),
    "phi3": Family(PHI_3, ("<|endoftext|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>")),
    "olmo2": Family(OLMO_2, ("<|endoftext|>",), bos="<|endoftext|>"),
    "harmony": Family(
        HARMONY, ("<|endoftext|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>"), tools=True
    ),
    "deepseek": Family(
        DEEPSEEK,
        ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
        DEEPSEEK_TAGS,
        (),
        "<｜begin▁of▁sentence｜>",
        tools=True,
    ),
    "put-together": Family(PUT_TOGETHER, ("<|u|>", "<|a|>", "<|s|>", "<|e|>", "<|nl|>")),
}


@functools.cache
def family_tokenizer(name: str) -> Any:
    """The family's tokenizer, as transformers has it."""
    family = FAMILIES[name]
    backend = _sentencepiece() if family.sentencepiece else _byte_level()
    eos = next(
        (token for token in family.special if token in ("</s>", "<eos>", "<｜end▁of▁sentence｜>")), family.special[0]
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=family.bos, eos_token=eos, extra_special_tokens=list(family.special)
    )
    tokenizer.add_tokens([*family.added, *family.ordinary])
    if name == "phi3":  # whose tokens take the white space behind them along
        greedy = [AddedToken(token, rstrip=True, normalized=False, special=True) for token in family.special]
        tokenizer.add_tokens(greedy, special_tokens=True)
    tokenizer.chat_template = family.template
    return tokenizer


def _byte_level() -> Tokenizer:
    state = tiny_tokenizer(300).tokenizer_json()
    return Tokenizer.from_str(json.dumps({**state, "added_tokens": []}))


def _sentencepiece() -> Tokenizer:
    """As Llama 2 and Mistral have it: the specials are in the vocabulary too, and a merge even makes one of them."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["▁", *"abcdefghijklmnopqrstuvwxyz<>/[]INST|", "</", "s>", "th", "the", "▁the"]
    merges = [("<", "/"), ("s", ">"), ("</", "s>"), ("t", "h"), ("th", "e"), ("▁", "the")]
    vocab = {word: i for i, word in enumerate(dict.fromkeys(words))}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend
