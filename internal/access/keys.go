package access

import (
	"slices"
	"strings"
)

// Key is one API key and what its holder may take.
type Key struct {
	// Name stands in logs, on pages and in the configuration; unique.
	Name string
	Hash KeyHash
	// Models are the model names that it may ask for, with * as in qwen-*; empty
	// means all.
	Models []string
	Limits
	// Batch marks requests that wait behind those of other keys.
	Batch bool
}

// may says whether a model is among those of the key.
func (k *Key) may(model string) bool {
	if len(k.Models) == 0 || model == "" {
		return true
	}
	return slices.ContainsFunc(k.Models, func(pattern string) bool { return matches(pattern, model) })
}

// matches compares a name with a pattern in which * stands for any text.
func matches(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	first, last := parts[0], parts[len(parts)-1]
	if len(parts) == 1 {
		return name == pattern
	}
	if len(name) < len(first)+len(last) || !strings.HasPrefix(name, first) || !strings.HasSuffix(name, last) {
		return false
	}
	name = name[len(first) : len(name)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		_, rest, ok := strings.Cut(name, part)
		if !ok {
			return false
		}
		name = rest
	}
	return true
}
