"""Chat templates in the manner of well-known models, written for the tests; special tokens are those of the fixture."""

from __future__ import annotations

LLAMA3 = (
    "{{- '<|endoftext|>' }}"
    "{%- for m in messages %}"
    "{{- '<|im_start|>' + m.role + '<|im_start|>\n\n' + (m.content | trim) + '<|im_end|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant<|im_start|>\n\n' }}{%- endif %}"
)
MISTRAL = (
    "{{- '<|endoftext|>' }}"
    "{%- for m in messages %}"
    "{%- if m.role == 'user' %}{{- '[INST] ' + m.content + ' [/INST]' }}"
    "{%- elif m.role == 'assistant' %}{{- ' ' + m.content + '<|im_end|>' }}"
    "{%- else %}{{- raise_exception('Only user and assistant roles are supported') }}{%- endif %}"
    "{%- endfor %}"
)
QWEN2 = (
    "{%- if messages[0].role != 'system' %}"
    "{{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{%- endif %}"
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
QWEN3 = (
    "{%- for m in messages %}"
    "{{- '<|im_start|>' + m.role + '\n' }}"
    "{%- if m.role == 'assistant' and loop.last %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"
    "{{- m.content + '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
MARKED = (
    "{%- for m in messages %}"
    "{{- '<|im_start|>' + m.role + '\n' }}"
    "{%- if m.role == 'assistant' %}{% generation %}{{- m.content }}{% endgeneration %}"
    "{%- else %}{{- m.content }}{%- endif %}"
    "{{- '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
SILENT_ON_TOOLS = (
    "{%- for m in messages if m.role in ('user', 'assistant') %}"
    "{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
SYSTEM_LAST = (
    "{%- for m in messages if m.role != 'system' %}"
    "{{- '<|im_start|>' + m.role + '\n' }}"
    "{%- if loop.last and messages[0].role == 'system' %}{{- messages[0].content + ' ' }}{%- endif %}"
    "{{- m.content + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
OTHER_PROMPT = (
    QWEN2.rpartition("{%- if add_generation_prompt")[0]
    + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>\n' }}{%- endif %}"
)
WANTS_SYSTEM = (
    "{%- if messages[0].role != 'system' %}{{- raise_exception('Begin with a system turn') }}{%- endif %}" + QWEN2
)
END_AT_LAST = (
    "{%- for m in messages %}{{- m.role + ': ' + m.content }}"
    "{%- if loop.last and m.role == 'assistant' %}{{- '<|im_end|>' }}{%- endif %}{{- '\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- 'assistant: ' }}{%- endif %}"
)
SPACE_BEFORE_ANSWER = (
    "{%- for m in messages %}{{- m.role + ': ' + m.content + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- 'assistant: ' }}{%- endif %}"
)
ENDLESS = (
    "{%- for m in messages %}{{- m.role + ': ' + m.content + '\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- 'assistant: ' }}{%- endif %}"
)
