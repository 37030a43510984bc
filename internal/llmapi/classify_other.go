//go:build !amd64

package llmapi

func classify(block *[blockSize]byte) classes { return classifyWords(block) }
