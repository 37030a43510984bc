package vllm

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"lmwarden/e2e/internal/wardentest"
)

// Tokens of the model: one for each byte, then the marks.
const (
	tokenStart = 256 + iota // opens a message
	tokenEnd                // closes it, and ends an answer
	tokenCount
)

// chatTemplate writes a message as its mark, role, line feed, text, mark and line
// feed. The answer follows the opening of an assistant's message.
const chatTemplate = `{% for m in messages %}{{ '<|start|>' + m.role + '\n' + m.content + '<|end|>\n' }}{% endfor %}` +
	`{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}`

// opening is how many tokens the template adds behind the messages.
const opening = 1 + len("assistant\n")

// rendered is how many tokens the template makes of a message.
func rendered(role, text string) int {
	return len("S") + len(role) + len("\n") + len(text) + len("E\n")
}

// writeModel makes a folder that vLLM can serve with --load-format dummy: a
// transformer of two small layers with random weights, whose tokens are bytes, so
// that token counts follow from texts.
func writeModel(dir string) error {
	byteLevel := map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}
	mark := func(id int, text string) map[string]any {
		return map[string]any{"id": id, "content": text, "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}
	}
	files := map[string]any{
		"config.json": map[string]any{
			"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama", "torch_dtype": "float32",
			"num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": 256, "hidden_act": "silu",
			"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
			"vocab_size": tokenCount, "max_position_embeddings": maxModelLen,
			"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": true,
			"bos_token_id": tokenStart, "eos_token_id": tokenEnd,
		},
		"generation_config.json": map[string]any{"bos_token_id": tokenStart, "eos_token_id": tokenEnd},
		"tokenizer.json": map[string]any{
			"version":       "1.0",
			"added_tokens":  []any{mark(tokenStart, "<|start|>"), mark(tokenEnd, "<|end|>")},
			"pre_tokenizer": byteLevel, "decoder": byteLevel,
			"normalizer": nil, "post_processor": nil, "truncation": nil, "padding": nil,
			"model": map[string]any{"type": "BPE", "vocab": wardentest.ByteVocabulary(), "merges": []string{}},
		},
		"tokenizer_config.json": map[string]any{
			"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": maxModelLen,
			"bos_token": "<|start|>", "eos_token": "<|end|>", "add_bos_token": false,
			"clean_up_tokenization_spaces": false, "chat_template": chatTemplate,
		},
	}
	for name, content := range files {
		b, err := json.Marshal(content)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			return err
		}
	}
	return nil
}
