"""Small chat templates, hand-made, that do what those of well-known models do."""

from __future__ import annotations

from temper.models.tiny import CHAT_TEMPLATE as TINY

QWEN_LIKE = (
    "{%- if tools %}<|system|>"
    "{%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{%- endif %}"
    "<tools>{%- for tool in tools %}\n{{ tool | tojson }}{%- endfor %}\n</tools>\n"
    'Write <tool_call>{"name": ..., "arguments": ...}</tool_call><|end|>\n'
    "{%- elif messages[0].role == 'system' %}<|system|>{{ messages[0].content }}<|end|>\n{%- endif %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'user' or message.role == 'assistant' %}"
    "<|{{ message.role }}|>{{ message.content }}<|end|>\n"
    "{%- elif message.role == 'tool' %}"
    "{%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}<|user|>{%- endif %}"
    "<tool_response>\n{{ message.content }}\n</tool_response>"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|end|>\n{%- endif %}"
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}<|assistant|>{%- endif %}"
)
"""Tools in the system message, calls in tags, results joined in one user's message, as Qwen2.5's has them."""

LLAMA_LIKE = (
    "{%- for message in messages %}<|{{ message.role }}|>\n\n"
    "{%- if tools and loop.first %}"
    'Respond with {"name": function name, "parameters": dictionary}.\n'
    "{%- for tool in tools %}{{ tool | tojson }}\n{%- endfor %}{%- endif %}"
    "{{ message.content | trim }}<|end|>{%- endfor %}"
    "{%- if add_generation_prompt %}<|assistant|>\n\n{%- endif %}"
)
"""Contents trimmed; bare JSON calls, as Llama 3.1's."""

FORGETS_REASONING = (
    "{%- for message in messages %}<|{{ message.role }}|>"
    "{%- if message.role == 'assistant' and '</think>' in message.content %}"
    "{{ message.content.split('</think>')[-1].lstrip('\\n') }}"
    "{%- else %}{{ message.content }}{%- endif %}<|end|>"
    "{%- endfor %}{%- if add_generation_prompt %}<|assistant|>{%- endif %}"
)
"""The reasoning of earlier turns is left out, as DeepSeek-R1's and Qwen3's leave it out."""

OPENS_REASONING = (
    "{%- for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{%- endfor %}"
    "{%- if add_generation_prompt %}<|assistant|><think>\n{%- endif %}"
)
"""An answer begins inside its reasoning; earlier turns are written without the opening, so each is rewritten."""

STRICT = (
    "{%- for message in messages %}"
    "{%- if (message.role == 'user') != (loop.index0 % 2 == 0) or message.role not in ('user', 'assistant') %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{%- endif %}"
    "<|{{ message.role }}|>{{ message.content }}<|end|>\n{%- endfor %}"
    "{%- if add_generation_prompt %}<|assistant|>{%- endif %}"
)
"""No system message, no tools, strict turns, as Gemma's."""

ALWAYS_THINKS = (
    "{%- if tools %}<|system|>{%- for tool in tools %}{{ tool | tojson }}\n{%- endfor %}"
    "<tool_call></tool_call><|end|>\n{%- endif %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'assistant' %}"
    "{%- set content = message.content.split('</think>')[-1].lstrip('\n') %}"
    "{%- set reasoning = message.content.split('</think>')[0].split('<think>')[-1] if '</think>' in message.content %}"
    "<|assistant|><think>\n{{ (reasoning or '').strip('\n') }}\n</think>\n\n{{ content }}<|end|>\n"
    "{%- elif message.role == 'tool' %}<|user|>\n<tool_response>\n{{ message.content }}\n</tool_response><|end|>\n"
    "{%- else %}<|{{ message.role }}|>\n{{ message.content }}<|end|>\n{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}<|assistant|>{%- endif %}"
)
"""Every answer is written with a block of reasoning, empty where there was none, as Qwen3's are."""

TOOLS_LAST = (
    "{%- set users = messages | selectattr('role', 'equalto', 'user') | list %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'user' %}"
    "{%- if tools and message == users[-1] %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{%- endif %}"
    "<|user|>{{ message.content }}<|end|>"
    "{%- elif message.role == 'tool' %}<|tool|>{{ message.content + message.tool_call_id }}<|end|>"
    "{%- else %}<|{{ message.role }}|>{{ message.content }}<|end|>{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}<|assistant|>{%- endif %}"
)
"""Tools before the last question, in a form of its own, and results only by the number of a call, as Mistral's."""

ALL = {
    "tiny": TINY,
    "qwen_like": QWEN_LIKE,
    "llama_like": LLAMA_LIKE,
    "forgets_reasoning": FORGETS_REASONING,
    "opens_reasoning": OPENS_REASONING,
    "strict": STRICT,
    "always_thinks": ALWAYS_THINKS,
    "tools_last": TOOLS_LAST,
}
