"""Writes frequencies.json: rotary frequencies and attention factors as transformers computes them.

Needs torch and transformers. Each case is a config.json and, for the kinds that look at it, a
sequence length; for gemma3 also the layer type. Frequencies are float32 printed exactly.

    python generate.py > frequencies.json
"""

import json

import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

SIZES = dict(
    vocab_size=96, hidden_size=48, intermediate_size=44, num_hidden_layers=7,
    num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=4096,
)
DIVISORS = dict(
    short_factor=[1.0 + i / 16 for i in range(9)],
    long_factor=[1.5 + i * i / 8 for i in range(9)],
)

CASES = [
    ("default", "llama", dict(rope_theta=10000.0), None, None),
    ("default, integer theta", "qwen2", dict(rope_theta=1000000), None, None),
    ("explicit head_dim", "qwen3", dict(rope_theta=1000000.0, head_dim=64), None, None),
    ("linear, legacy type", "llama", dict(rope_theta=10000.0, rope_scaling={"type": "linear", "factor": 4.0}), None, None),
    ("linear, rope_parameters", "mistral", dict(rope_parameters={"rope_type": "linear", "factor": 2.5, "rope_theta": 500000.0}), None, None),
    ("llama3", "llama", dict(rope_theta=500000.0, head_dim=64, rope_scaling={
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512}), None, None),
    ("llama3, other bounds", "llama", dict(rope_parameters={
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 0.5, "high_freq_factor": 9.0,
        "original_max_position_embeddings": 1024, "rope_theta": 10000.0}), None, None),
    ("yarn", "qwen2", dict(rope_theta=1000000.0, rope_scaling={
        "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}), None, None),
    ("yarn, betas", "qwen3", dict(rope_theta=10000.0, head_dim=64, rope_scaling={
        "rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 256, "beta_fast": 20, "beta_slow": 2}), None, None),
    ("yarn, attention_factor", "llama", dict(rope_theta=10000.0, rope_scaling={
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "attention_factor": 0.75}), None, None),
    ("yarn, mscale", "llama", dict(rope_theta=10000.0, head_dim=64, rope_scaling={
        "rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 128, "mscale": 0.707, "mscale_all_dim": 1.5}), None, None),
    ("yarn, mscale alone", "llama", dict(rope_theta=10000.0, rope_scaling={
        "rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 128, "mscale": 0.707}), None, None),
    ("yarn, not truncated", "llama", dict(rope_theta=150000.0, head_dim=64, rope_scaling={
        "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}), None, None),
    ("yarn, tiny original context", "llama", dict(rope_theta=10000.0, rope_scaling={
        "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4}), None, None),
    ("longrope, short", "phi3", dict(partial_rotary_factor=0.75, original_max_position_embeddings=512,
        rope_theta=10000.0, rope_scaling={"type": "longrope", **DIVISORS}), 512, None),
    ("longrope, long", "phi3", dict(partial_rotary_factor=0.75, original_max_position_embeddings=512,
        rope_theta=10000.0, rope_scaling={"type": "longrope", **DIVISORS}), 513, None),
    ("longrope, factor and attention_factor", "phi3", dict(partial_rotary_factor=0.75, original_max_position_embeddings=512,
        rope_theta=10000.0, rope_scaling={"rope_type": "longrope", "factor": 2.0, "attention_factor": 1.25, **DIVISORS}), 600, None),
    ("partial rotation", "phi3", dict(partial_rotary_factor=0.5, rope_theta=10000.0), None, None),
    ("gemma2", "gemma2", dict(head_dim=32, rope_theta=10000.0), None, None),
    ("gemma3, global", "gemma3_text", dict(head_dim=32, rope_theta=1000000.0, rope_local_base_freq=10000.0,
        rope_scaling={"rope_type": "linear", "factor": 8.0}), None, "full_attention"),
    ("gemma3, local", "gemma3_text", dict(head_dim=32, rope_theta=1000000.0, rope_local_base_freq=10000.0,
        rope_scaling={"rope_type": "linear", "factor": 8.0}), None, "sliding_attention"),
    ("gemma3, by layer type", "gemma3_text", dict(head_dim=32, rope_parameters={
        "full_attention": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "rope_theta": 500000.0},
        "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 20000.0}}), None, "sliding_attention"),
]

MODELS = {
    "llama": transformers.models.llama.modeling_llama.LlamaRotaryEmbedding,
    "mistral": transformers.models.mistral.modeling_mistral.MistralRotaryEmbedding,
    "qwen2": transformers.models.qwen2.modeling_qwen2.Qwen2RotaryEmbedding,
    "qwen3": transformers.models.qwen3.modeling_qwen3.Qwen3RotaryEmbedding,
    "phi3": transformers.models.phi3.modeling_phi3.Phi3RotaryEmbedding,
    "gemma2": transformers.models.gemma2.modeling_gemma2.Gemma2RotaryEmbedding,
    "gemma3_text": transformers.models.gemma3.modeling_gemma3.Gemma3RotaryEmbedding,
}

out = []
for name, family, keys, length, layer_type in CASES:
    raw = {"model_type": family, **SIZES, **keys}
    if family == "phi3":
        raw.update(pad_token_id=0, eos_token_id=2)
    config = transformers.AutoConfig.for_model(**json.loads(json.dumps(raw)))
    parameters = config.rope_parameters if layer_type is None else config.rope_parameters[layer_type]
    arguments = {} if layer_type is None else {"layer_type": layer_type}
    if parameters["rope_type"] == "default":
        frequencies, factor = MODELS[family].compute_default_rope_parameters(config, **arguments)
    else:
        frequencies, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, seq_len=length, **arguments)
    out.append({
        "name": name, "config": raw, "length": length or 1, "layer_type": layer_type or "",
        "frequencies": frequencies.tolist(), "attention_factor": float(factor),
    })

print("[\n" + ",\n".join(json.dumps(case) for case in out) + "\n]")
