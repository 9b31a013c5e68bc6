"""Small tokenizers, chat templates and models for tests. Nothing is downloaded: all are made here.

The templates are written after the structure of well-known ones: what they print, trim, refuse or rewrite.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Qwen 2.5: a default system message; tool results are wrapped, several in one user turn.
QWEN25 = """\
{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) or message.role == "assistant" %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- message.content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
# Qwen 3: as above, and thinking is kept only behind the last user message.
QWEN3 = """\
{%- if messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}{%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}{%- set thinking = '' %}
        {%- if '</think>' in content %}
            {%- set thinking = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or thinking) %}
            {{- '<|im_start|>assistant\\n<think>\\n' + thinking.strip('\\n') + '\\n</think>\\n\\n' + content }}
        {%- else %}{{- '<|im_start|>assistant\\n' + content }}{%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""
# Llama 3: begins with bos, trims every message, prints the date, tool results as JSON strings.
LLAMA3 = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: " + date_string + "\\n\\n" + system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.role == "tool" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" + (message.content | tojson) + "<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""
# Gemma: no system, no tool, strict alternation, the assistant is called model.
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'assistant' %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
# Mistral: the system message is printed with the *last* user message, so it moves; no header words; space before eos.
MISTRAL = (
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] + '\n\n' %}{% set rest = messages[1:] %}"
    "{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}{{ bos_token }}{% for message in rest %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + (system if loop.last else '') + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + ' ' + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
# GLM: nothing closes an assistant turn but the header of whoever speaks next.
GLM = (
    "[gMASK]{% for m in messages %}{% if m['role'] == 'tool' %}<|observation|>\n{% else %}<|{{ m['role'] }}|>\n{% endif %}"
    "{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
COUNTER = "Conversation of {{ messages | length }} messages\n" + CHATML
PLAIN_TEXT = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "
DROPS_TOOL = CHATML.replace(
    "{% for message in messages %}", "{% for message in messages if message['role'] != 'tool' %}"
)

SPECIAL = (
    "<|pad|>",
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "[INST]",
    "[/INST]",
    "[gMASK]",
    "<|user|>",
    "<|system|>",
    "<|assistant|>",
    "<|observation|>",
)
# Added, but not special: part of what models write and read.
MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>")
_CORPUS = [
    "You are in a room. A door is to the east; you hold a key. What now? The door is locked.",
    'system user assistant tool model {"name": "go", "arguments": {"direction": "east"}}\n\n\n\nx\n\ny',
    "guess 4 too low too high 0 1 2 3 5 6 7 8 9 go take open use key door north south west",
]


@cache
def _bpe(vocabulary: int) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS * 20, trainer)
    tokenizer.add_tokens(list(MARKUP))
    text: str = tokenizer.to_str()
    return text


def byte_tokenizer(
    template: str | None = CHATML, *, eos: str = "<|im_end|>", vocabulary: int = 360, **kwargs: Any
) -> Any:
    """A byte-level BPE (as of GPT-2, Llama 3, Qwen) that knows the special tokens of every template here."""
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_bpe(vocabulary)),
        bos_token="<s>",
        eos_token=eos,
        chat_template=template,
        **kwargs,
    )


def metaspace_tokenizer(template: str, *, eos: str, scheme: str = "first") -> Any:
    """A BPE that writes spaces as ▁ and puts one before the text (as of Llama 2, Mistral, Gemma)."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<unk>", *SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    tokenizer.train_from_iterator([piece for line in _CORPUS for piece in line.split(" ")] * 20, trainer)
    # The bytes are part of the vocabulary, not special.
    fast = Tokenizer.from_str(_without_byte_tokens(tokenizer.to_str()))
    return PreTrainedTokenizerFast(
        tokenizer_object=fast, bos_token="<s>", eos_token=eos, chat_template=template
    )


def _without_byte_tokens(text: str) -> str:
    import json

    data = json.loads(text)
    data["added_tokens"] = [t for t in data["added_tokens"] if not t["content"].startswith("<0x")]
    return json.dumps(data)


def tiny_model(kind: str = "llama", *, seed: int = 0, vocabulary: int = 364, **changes: Any) -> Any:
    """A randomly initialised model of two layers. The spread of weights is wide, so that outputs differ clearly."""
    import torch
    import transformers

    common = {
        "vocab_size": vocabulary,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    decoder = common | {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
    }
    sliding = decoder | {"sliding_window": 8}
    makers: dict[str, tuple[str, dict[str, Any]]] = {
        "llama": ("Llama", decoder),
        "qwen2": ("Qwen2", decoder),
        "qwen3": ("Qwen3", decoder),
        "mistral": ("Mistral", sliding),
        "gemma2": ("Gemma2", sliding | {"query_pre_attn_scalar": 8}),
        "gemma3": (
            "Gemma3Text",
            sliding | {"query_pre_attn_scalar": 8, "layer_types": ["sliding_attention", "full_attention"]},
        ),
        "gpt2": ("GPT2", common | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}),
        "opt": (
            "OPT",
            common
            | {"hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
            | {"word_embed_proj_dim": 32, "max_position_embeddings": 512, "dropout": 0.0},
        ),
        "mamba": ("Mamba", common | {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}),
        "bloom": ("Bloom", common | {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    }
    name, options = makers[kind]
    config = getattr(transformers, f"{name}Config")(**(options | changes))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = "LMHeadModel" if kind == "gpt2" else "ForCausalLM"
        model = getattr(transformers, name.removesuffix("Text") + head)(config)
    return model.eval()
