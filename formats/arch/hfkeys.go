package arch

import (
	"fmt"
	"slices"

	"qtool/formats/strictjson"
)

// readKeys are the keys of config.json that FromHF reads for every family.
var readKeys = []string{
	"model_type", "architectures", "vocab_size", "hidden_size", "intermediate_size",
	"num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
	"max_position_embeddings", "rms_norm_eps", "tie_word_embeddings", "layer_types",
	"bos_token_id", "eos_token_id", "pad_token_id",
	"rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor",
	"original_max_position_embeddings",
}

// keys returns the keys that FromHF reads for this family besides readKeys.
func (f family) keys() []string {
	list := []string{f.activationKey}
	if f.attentionBiasKey {
		list = append(list, "attention_bias")
	}
	if f.mlpBiasKey {
		list = append(list, "mlp_bias")
	}
	if f.window > 0 || f.name == Phi3 {
		list = append(list, "sliding_window")
	}
	switch f.name {
	case Qwen2, Qwen3:
		list = append(list, "use_sliding_window", "max_window_layers")
	case Gemma2:
		list = append(list, "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "hidden_act")
	case Gemma3Text:
		list = append(list, "query_pre_attn_scalar", "final_logit_softcapping", "hidden_act", "sliding_window_pattern", "rope_local_base_freq")
	}
	return list
}

// harmlessKeys are known not to change what a model computes at inference from token ids:
// training settings, generation defaults, records of who wrote the file. max_window_layers means
// nothing without use_sliding_window, which is refused for families that do not read it.
var harmlessKeys = []string{
	"_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal", "_commit_hash", "_flash_attn_2_enabled",
	"_name_or_path", "attention_dropout", "attention_probs_dropout_prob", "attn_implementation", "attn_pdrop", "auto_map",
	"bad_words_ids", "begin_suppress_tokens", "cache_implementation", "chunk_size_feed_forward",
	"classifier_dropout", "diversity_penalty", "do_sample", "dtype", "early_stopping", "embd_pdrop",
	"encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "finetuning_task",
	"forced_bos_token_id", "forced_eos_token_id", "gradient_checkpointing", "hidden_dropout",
	"hidden_dropout_prob", "id2label", "initializer_range", "is_decoder", "label2id", "length_penalty", "max_length",
	"max_window_layers", "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences",
	"output_attentions", "output_hidden_states", "output_scores", "prefix", "pretraining_tp",
	"problem_type", "pruned_heads", "remove_invalid_values", "repetition_penalty", "resid_pdrop",
	"return_dict", "return_dict_in_generate", "router_aux_loss_coef", "sep_token_id", "suppress_tokens",
	"task_specific_params", "temperature", "tf_legacy_loss", "tie_encoder_decoder",
	"tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript", "transformers.js_config", "transformers_version",
	"typical_p", "unsloth_fixed", "unsloth_version", "use_bfloat16", "use_cache", "use_return_dict",
}

// resultKeys change what a model computes and belong to no supported family, or to others than
// the one at hand. Each is refused unless its value is null, false, 0 or empty, or is the one
// listed here, which means that nothing is changed.
var resultKeys = map[string]any{
	"activation_function": nil, "add_cross_attention": nil, "alibi": nil, "altup_num_inputs": nil,
	"attention_bias": nil, "attention_chunk_size": nil, "attention_in_multiplier": 1.0,
	"attention_multiplier": nil, "attention_out_bias": nil, "attention_out_multiplier": 1.0,
	"attention_sinks": nil, "attn_logit_softcapping": nil, "attn_output_gate": nil,
	"attn_temperature_tuning": nil, "audio_config": nil, "block_multiple_of": nil, "clip_qkv": nil,
	"compression_config": nil, "cross_attention_layers": nil, "decoder_sparse_step": 1.0,
	"dim_model_base": nil, "embedding_multiplier": 1.0, "embd_layer": nil, "final_logit_softcapping": nil,
	"first_k_dense_replace": nil, "hidden_act": nil, "hidden_activation": nil,
	"hidden_size_per_layer_input": nil, "img_processor": nil, "is_causal": true, "is_encoder_decoder": nil, "key_multiplier": 1.0, "kv_lora_rank": nil, "laurel_rank": nil,
	"lm_head_bias": nil, "lm_head_multiplier": 1.0, "logit_scale": 1.0, "logits_scaling": 1.0,
	"long_factor": nil, "mlp_bias": nil, "mlp_multipliers": nil, "mlp_only_layers": nil,
	"moe_intermediate_size": nil, "mrope_section": nil, "multi_query": nil, "n_routed_experts": nil,
	"no_rope_layer_interval": nil, "no_rope_layers": nil, "num_experts": nil,
	"num_experts_per_tok": nil, "num_kv_shared_layers": nil, "num_local_experts": nil,
	"num_nextn_predict_layers": nil, "parallel_attn": nil, "per_layer_config": nil,
	"q_lora_rank": nil, "qk_layernorm": nil, "qk_nope_head_dim": nil, "qk_norm": nil,
	"qk_rope_head_dim": nil, "qkv_bias": nil, "quantization_config": nil,
	"query_pre_attn_scalar": nil, "residual_multiplier": 1.0, "rope_interleaved": nil,
	"rope_local_base_freq": nil, "rope_ratio": 1.0, "rotary_pct": 1.0, "rotary_dim": nil, "scale_depth": nil, "scale_emb": 1.0,
	"short_factor": nil, "sliding_window": nil, "sliding_window_pattern": nil, "sparsity_config": nil,
	"text_config": nil, "use_bias": nil, "use_bidirectional_attention": nil, "use_mrope": nil,
	"use_parallel_residual": nil, "use_qk_norm": nil, "use_sliding_window": nil, "v_head_dim": nil,
	"vision_config": nil,
}

// refuseUnknown refuses keys that would change the result, and lists unknown ones as warnings.
func (o *object) refuseUnknown(f family, c *Config) {
	own := f.keys()
	for _, m := range o.value.Members {
		if slices.Contains(readKeys, m.Key) || slices.Contains(own, m.Key) {
			continue
		}
		neutral, matters := resultKeys[m.Key]
		switch {
		case m.Key == "_sliding_window_pattern":
			o.hiddenPattern(f, m.Value)
		case f.qkvBias && (m.Key == "attention_bias" || m.Key == "qkv_bias"):
			if b, err := m.Value.BoolValue(); err != nil || !b {
				o.refuse(m.Value, m.Key, "model type %q always has biases on q, k and v", f.name)
			}
		case matters && !isNeutral(m.Value, neutral):
			o.refuse(m.Value, m.Key, "changes the result of a %s model in a way that is not supported", f.name)
			if m.Key == "quantization_config" {
				o.err = quantized(o, m.Value)
			}
		case matters || slices.Contains(harmlessKeys, m.Key):
		default:
			c.Warnings = append(c.Warnings, fmt.Sprintf("config.json key %q is not known and was ignored", m.Key))
		}
	}
}

// hiddenPattern accepts the attribute that transformers 5 writes beside gemma3's layer_types, and
// reads back only from sliding_window_pattern.
func (o *object) hiddenPattern(f family, v strictjson.Value) {
	if types, ok := o.get("layer_types"); ok && types.Kind == strictjson.Array {
		return
	}
	n, err := v.Int()
	if f.name != Gemma3Text || err != nil || n != int64(o.size("sliding_window_pattern", maxPositions, 6, refused)) {
		o.refuse(v, "_sliding_window_pattern", "without layer_types is not read by transformers")
	}
}

// isNeutral reports whether a value says that a feature is off.
func isNeutral(v strictjson.Value, neutral any) bool {
	switch v.Kind {
	case strictjson.Null:
		return true
	case strictjson.Bool:
		b, err := v.BoolValue()
		return err == nil && b == (neutral == true)
	case strictjson.Number:
		x, err := v.Float()
		return err == nil && (x == 0 || neutral == x) && !(x == 0 && neutral == 1.0)
	case strictjson.String:
		s, err := v.Str()
		return err == nil && s == ""
	case strictjson.Array:
		return len(v.Elements) == 0
	case strictjson.Object:
		return len(v.Members) == 0
	}
	return false
}

// quantized is the error for weights that another tool has compressed.
func quantized(o *object, v strictjson.Value) error {
	p := &object{file: o.file, value: v}
	method := p.text("quant_method", "unknown")
	p.err = nil
	p.refuse(v, "quantization_config", "the weights are quantized by %q", method)
	return p.err
}
